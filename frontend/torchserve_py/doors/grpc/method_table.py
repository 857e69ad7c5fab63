"""The methods of gRPC services as tables of `GrpcMethod`, from which the handlers of the transport are made."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.json_format import ParseDict
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpc import StatusCode

from torchserve_py.doors.failures import EXPECTED_ERRORS, DoorError
from torchserve_py.doors.grpc.exchange import GrpcDialect
from torchserve_py.doors.routing import DoorContext
from torchserve_py.doors.token_authorization import TokenType
from torchserve_py.logs import access_log as access
from torchserve_py.transport.http2.call import Call
from torchserve_py.transport.http2.grpc_server import GrpcServer
from torchserve_py.transport.http2.methods import Denied
from torchserve_py.transport.http2.request_head import Metadata

logger = logging.getLogger(__name__)

_AUTHORIZATION: Final = "authorization"
_MAKERS: Final = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}


class GrpcMethod(NamedTuple):
    """How the calls of one method are answered.

    Attributes:
        serve: Gets the request and the call; returns the response (a message, or its JSON), `LATER`, or a coroutine
            that runs in a task. For a two-way call the coroutine reads requests from the call and writes responses.
        dialect: Makes a status of what ``serve`` raises.
        token: The key that a call must carry while token authorization is on.
        read: Makes a request of a message; None for the message class of the definition.
        is_raw: Whether requests and responses are passed as the bytes that they are on the wire.
    """

    serve: Callable[[Any, Any], Any]
    dialect: GrpcDialect
    token: TokenType
    read: Callable[[bytes], Any] | None = None
    is_raw: bool = False


def add_service(
    server: GrpcServer,
    service: ServiceDescriptor,
    methods: Mapping[str, GrpcMethod],
    context: DoorContext,
    raw_limit: tuple[int, str],
) -> None:
    """Let a server serve a service.

    A message of a raw method may have as many bytes as ``raw_limit`` says, which names the setting, too.
    """
    served = {
        each.name: _Served(f"{service.full_name}/{each.name}", methods[each.name], context) for each in service.methods
    }
    handlers = {each.name: served[each.name].handler(each) for each in service.methods}
    server.add_registered_method_handlers(service.full_name, handlers)
    for method in served.values():
        server.guard(f"/{method.name}", None if context.tokens is None else method.admit, method.refuse)
        if method.method.is_raw:
            server.limit_messages((f"/{method.name}",), *raw_limit)


class _Served:
    """A method of a server: checks keys, words failures, and writes the access log."""

    def __init__(self, name: str, method: GrpcMethod, context: DoorContext) -> None:
        self.name = name
        self.method = method
        self._tokens = context.tokens
        self._is_logged = context.settings.access_log

    def handler(self, definition: MethodDescriptor) -> grpc.RpcMethodHandler[Any, Any]:
        """Return the handler in gRPC's form."""
        read: Callable[[bytes], Any] | None = None
        write: Callable[[Any], bytes] | None = None
        if not self.method.is_raw:
            read = self.method.read or GetMessageClass(definition.input_type).FromString
            write = functools.partial(_serialized, GetMessageClass(definition.output_type))
        make = _MAKERS[definition.client_streaming, definition.server_streaming]
        serve = self._serve_logged if self._is_logged else self.method.serve
        return make(serve, request_deserializer=read, response_serializer=write)

    def admit(self, metadata: Metadata, peer: str) -> Denied | None:
        """Check the key of a call; return the status of one that is refused."""
        assert self._tokens is not None, "token authorization is on"
        given = next((value for key, value in metadata if key == _AUTHORIZATION), None)
        try:
            self._tokens.check(self.method.token, given if isinstance(given, str) else None)
        except DoorError as error:
            denied = self.refuse(error)
            if self._is_logged:
                self._note(peer, denied.code, 0.0)
            return denied
        return None

    def refuse(self, error: Exception) -> Denied:
        """Return the status of a call that fails with an exception."""
        if not isinstance(error, EXPECTED_ERRORS):
            logger.error("%s failed.", self.name, exc_info=error)
        refusal = self.method.dialect.refusal(error)
        return Denied(refusal.code, refusal.description, refusal.metadata)

    def _serve_logged(self, request: Any, call: Call) -> Any:
        call.add_done_callback(functools.partial(self._log, time.monotonic()))
        return self.method.serve(request, call)

    def _log(self, started: float, call: Call) -> None:
        self._note(call.peer(), call.code() or StatusCode.OK, time.monotonic() - started)

    def _note(self, peer: str, code: StatusCode, seconds: float) -> None:
        """``/<ip>:<port> "gRPC <full.method/Name> HTTP/2.0" <grpc code> <ms>``; ``peer`` is ``ipv4:<ip>:<port>``."""
        access.note(unquote(peer.partition(":")[2]), "gRPC", self.name, "HTTP/2.0", code.value[0], seconds)


def _serialized(kind: type[Message], response: Any) -> bytes:
    return (ParseDict(response, kind()) if isinstance(response, dict) else response).SerializeToString()
