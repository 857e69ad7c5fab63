"""The methods of gRPC services as tables of `GrpcMethod`, from which the handlers of the transport are made."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote

import grpc
from google.protobuf.message_factory import GetMessageClass
from grpc import StatusCode

from torchserve_py.archive.errors import ArchiveError
from torchserve_py.core.errors import ModelError
from torchserve_py.doors.failures import DoorError
from torchserve_py.logs import access_log as access
from torchserve_py.transport.http2.methods import Denied

if TYPE_CHECKING:
    from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor

    from torchserve_py.doors.grpc.exchange import GrpcDialect
    from torchserve_py.doors.token_authorization import TokenAuthorization, TokenType
    from torchserve_py.transport.http2.call import Call
    from torchserve_py.transport.http2.grpc_server import GrpcServer
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
        serve: Gets the request and the call; returns the response, `LATER`, or a coroutine that runs in a task. For a
            two-way call the coroutine reads requests from the call and writes responses.
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
    tokens: TokenAuthorization | None,
    raw_limit: tuple[int, str],
    *,
    is_logged: bool,
) -> None:
    """Let a server serve a service.

    Args:
        service: The definition of the service.
        methods: The methods of the service by name, and possibly others.
        tokens: None while token authorization is off.
        raw_limit: How many bytes a message of a raw method may have, and the setting that says so.
        is_logged: Whether calls have lines in the access log.
    """
    name = service.full_name
    handlers = {}
    for each in service.methods:
        handlers[each.name] = _handler(f"{name}/{each.name}", each, methods[each.name], is_logged)
    server.add_registered_method_handlers(name, handlers)
    for each in service.methods:
        method, full_name = methods[each.name], f"{name}/{each.name}"
        refuse = functools.partial(_refuse, full_name, method.dialect)
        admit = None if tokens is None else _admission(full_name, method.token, tokens, refuse, is_logged)
        server.guard(f"/{full_name}", admit, refuse)
        if method.is_raw:
            server.limit_messages((f"/{full_name}",), *raw_limit)


def _handler(
    full_name: str, definition: MethodDescriptor, method: GrpcMethod, is_logged: bool
) -> grpc.RpcMethodHandler[Any, Any]:
    read: Callable[[bytes], Any] | None = None
    write: Callable[[Any], bytes] | None = None
    if not method.is_raw:
        read = method.read or GetMessageClass(definition.input_type).FromString
        write = GetMessageClass(definition.output_type).SerializeToString
    serve = method.serve

    def logged(request: Any, call: Call) -> Any:
        call.add_done_callback(functools.partial(_log, full_name, time.monotonic()))
        return serve(request, call)

    make = _MAKERS[definition.client_streaming, definition.server_streaming]
    return make(logged if is_logged else serve, request_deserializer=read, response_serializer=write)


def _refuse(full_name: str, dialect: GrpcDialect, error: Exception) -> Denied:
    """Return the status of a call that fails with an exception."""
    if not isinstance(error, (DoorError, ArchiveError, ModelError)):
        logger.error("%s failed.", full_name, exc_info=error)
    refusal = dialect.refusal(error)
    return Denied(refusal.code, refusal.description, refusal.metadata)


def _admission(
    full_name: str,
    token: TokenType,
    tokens: TokenAuthorization,
    refuse: Callable[[Exception], Denied],
    is_logged: bool,
) -> Callable[[Metadata, str], Denied | None]:
    def admit(metadata: Metadata, peer: str) -> Denied | None:
        given = next((value for key, value in metadata if key == _AUTHORIZATION), None)
        try:
            tokens.check(token, given if isinstance(given, str) else None)
        except DoorError as error:
            denied = refuse(error)
            if is_logged:
                _note(full_name, peer, denied.code, 0.0)
            return denied
        return None

    return admit


def _log(full_name: str, started: float, call: Call) -> None:
    _note(full_name, call.peer(), call.code() or StatusCode.OK, time.monotonic() - started)


def _note(full_name: str, peer: str, code: StatusCode, seconds: float) -> None:
    """``/<ip>:<port> "gRPC <full.method/Name> HTTP/2.0" <grpc code> <ms>``; ``peer`` is ``ipv4:<ip>:<port>``."""
    access.note(unquote(peer.partition(":")[2]), "gRPC", full_name, "HTTP/2.0", code.value[0], seconds)
