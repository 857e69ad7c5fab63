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
from torchserve_py.doors.token_authorization import TokenAuthorization, TokenType
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
    """Let a server serve a service; ``raw_limit`` limits the bytes of a raw method's message, and says by which
    setting.
    """
    named = [(f"{service.full_name}/{each.name}", each, methods[each.name]) for each in service.methods]
    is_logged = context.settings.access_log
    handlers = {each.name: _handler(name, each, method, is_logged) for name, each, method in named}
    server.add_registered_method_handlers(service.full_name, handlers)
    for name, _, method in named:
        refuse = functools.partial(_refuse, name, method.dialect)
        admit = None
        if context.tokens is not None:
            admit = functools.partial(_admit, name, method.token, context.tokens, refuse, is_logged)
        server.guard(f"/{name}", admit, refuse)
        if method.is_raw:
            server.limit_messages((f"/{name}",), *raw_limit)


def _handler(
    full_name: str, definition: MethodDescriptor, method: GrpcMethod, is_logged: bool
) -> grpc.RpcMethodHandler[Any, Any]:
    read: Callable[[bytes], Any] | None = None
    write: Callable[[Any], bytes] | None = None
    if not method.is_raw:
        read = method.read or GetMessageClass(definition.input_type).FromString
        write = functools.partial(_serialized, GetMessageClass(definition.output_type))
    serve = method.serve

    def logged(request: Any, call: Call) -> Any:
        call.add_done_callback(functools.partial(_log, full_name, time.monotonic()))
        return serve(request, call)

    make = _MAKERS[definition.client_streaming, definition.server_streaming]
    return make(logged if is_logged else serve, request_deserializer=read, response_serializer=write)


def _serialized(kind: type[Message], response: Any) -> bytes:
    return (ParseDict(response, kind()) if isinstance(response, dict) else response).SerializeToString()


def _refuse(full_name: str, dialect: GrpcDialect, error: Exception) -> Denied:
    """Return the status of a call that fails with an exception."""
    if not isinstance(error, EXPECTED_ERRORS):
        logger.error("%s failed.", full_name, exc_info=error)
    refusal = dialect.refusal(error)
    return Denied(refusal.code, refusal.description, refusal.metadata)


def _admit(
    full_name: str,
    token: TokenType,
    tokens: TokenAuthorization,
    refuse: Callable[[Exception], Denied],
    is_logged: bool,
    metadata: Metadata,
    peer: str,
) -> Denied | None:
    given = next((value for key, value in metadata if key == _AUTHORIZATION), None)
    try:
        tokens.check(token, given if isinstance(given, str) else None)
    except DoorError as error:
        denied = refuse(error)
        if is_logged:
            _note(full_name, peer, denied.code, 0.0)
        return denied
    return None


def _log(full_name: str, started: float, call: Call) -> None:
    _note(full_name, call.peer(), call.code() or StatusCode.OK, time.monotonic() - started)


def _note(full_name: str, peer: str, code: StatusCode, seconds: float) -> None:
    """``/<ip>:<port> "gRPC <full.method/Name> HTTP/2.0" <grpc code> <ms>``; ``peer`` is ``ipv4:<ip>:<port>``."""
    access.note(unquote(peer.partition(":")[2]), "gRPC", full_name, "HTTP/2.0", code.value[0], seconds)
