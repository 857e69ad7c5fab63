"""The methods of gRPC services as tables of `GrpcMethod`, from which the methods of the transport are made."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.json_format import ParseDict
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from torchserve_py.apis.grpc.grpc_call import GrpcDialect
from torchserve_py.base.causes import Cause
from torchserve_py.base.logs import access_log as access
from torchserve_py.core.jobs.job_observer import Account
from torchserve_py.endpoints.credentials import Credential, key_in_metadata
from torchserve_py.endpoints.failures import CAUSE_HEADER, EXPECTED_ERRORS, EndpointError, Failure
from torchserve_py.endpoints.routing import EndpointContext
from torchserve_py.endpoints.token_authorization import TokenType
from torchserve_py.net.admission import client_at
from torchserve_py.net.http2.grpc_messages import MessageLimit
from torchserve_py.net.http2.grpc_status import StatusCode
from torchserve_py.net.http2.request_head import Metadata
from torchserve_py.net.http2.rpc import Denied, Rpc, RpcMethod
from ts.protocol.request_names import REQUEST_NAME, header_among, name_among, trace_of

logger = logging.getLogger(__name__)

_TRACEPARENT: Final = "traceparent"
#: Clients whose address is cached in the forms that the log and fair turns use.
_KEPT_PEERS: Final = 1024


class GrpcMethod(NamedTuple):
    """How the calls of one method are answered.

    ``serve`` gets the request and the call; it returns the response (a message, or its JSON), a `LaterReply`, or a
    coroutine that runs in a task. For a two-way call the coroutine reads requests from the call and writes responses.
    """

    serve: Callable[[Any, Any], Any]
    dialect: GrpcDialect
    token: TokenType
    #: Makes a request of a message; None for the message class of the definition.
    read: Callable[[bytes], Any] | None = None
    #: Whether requests and responses are passed as the bytes that they are on the wire.
    is_raw: bool = False


def methods_of(
    service: ServiceDescriptor, table: Mapping[str, GrpcMethod], context: EndpointContext, raw_limit: MessageLimit
) -> dict[str, RpcMethod]:
    """Return the methods of a service by path; ``raw_limit`` is the size limit of the messages of raw methods."""
    limit = MessageLimit(context.settings.max_request_size, "max_request_size sets")
    methods = {}
    for each in service.methods:
        row = table[each.name]
        is_stream = bool(each.client_streaming or each.server_streaming)
        served = _Served(f"{service.full_name}/{each.name}", row, context, is_stream=is_stream)
        admit = None if context.tokens is None else served.admit
        method = RpcMethod(
            row.serve,
            raw_limit if row.is_raw else limit,
            takes_stream=each.client_streaming,
            admit=admit,
            opened=served.opened,
            refuse=served.refuse,
        )
        if not row.is_raw:
            read = row.read or GetMessageClass(each.input_type).FromString
            write = functools.partial(_serialized, GetMessageClass(each.output_type))
            method = method._replace(read=read, write=write)
        methods[f"/{served.name}"] = method
    return methods


class _Served:
    """A method of a server: checks keys, words failures, and writes the access log."""

    def __init__(self, name: str, row: GrpcMethod, context: EndpointContext, *, is_stream: bool) -> None:
        self.name = name
        self._is_stream = is_stream
        self._row = row
        self._tokens = context.tokens
        self._is_logged = context.settings.access_log

    def admit(self, metadata: Metadata, peer: str) -> Denied | Credential:
        """Return what the key of a call allows; the status of a call that is refused."""
        assert self._tokens is not None, "token authorization is on"
        try:
            return self._tokens.admit(self._row.token, key_in_metadata(metadata))
        except EndpointError as error:
            denied = self.refuse(error)
            name = name_among(metadata)
            if self._is_logged:
                self._note(peer, denied.code, 0.0, {"request_id": name})
            return denied if name is None else denied._replace(metadata=(*denied.metadata, (REQUEST_NAME, name)))

    def refuse(self, error: Exception) -> Denied:
        """Return the status of a call that fails with an exception."""
        if not isinstance(error, EXPECTED_ERRORS):
            logger.error("%s failed.", self.name, exc_info=error)
        refusal = self._row.dialect.refusal(error)
        return Denied(refusal.code, refusal.description, refusal.metadata)

    def opened(self, rpc: Rpc) -> None:
        """Give a call the id that its client has given it, and note its end, however that comes."""
        if (name := name_among(rpc.metadata)) is not None:
            rpc.always_sent = ((REQUEST_NAME, name),)
        if self._is_logged:
            rpc.on_end.append(functools.partial(self._log, time.monotonic(), name))
        if self._is_stream and rpc.credential is not None:
            forget = rpc.credential.hold(None, functools.partial(self._lose_right, rpc))
            rpc.on_end.append(lambda _: forget())

    def _lose_right(self, rpc: Rpc, failure: Failure) -> None:
        """End a call whose key is good no more; its handler is cancelled."""
        denied = self.refuse(EndpointError(failure))
        rpc.fail(denied.code, denied.details)

    def _log(self, started: float, name: str | None, rpc: Rpc) -> None:
        code = rpc.code or StatusCode.OK
        cause = dict(rpc.trailing_metadata).get(CAUSE_HEADER)
        if cause is None and code is StatusCode.CANCELLED:
            cause = Cause.cancelled.value
        fields = {
            "trace_id": trace_of(header_among(rpc.metadata, _TRACEPARENT)),
            "cause": cause if isinstance(cause, str) else None,
            **rpc.log_fields,
        }
        if name is not None:
            fields["request_id"] = name
        self._note(rpc.peer, code, time.monotonic() - started, fields)

    def _note(self, peer: str, code: StatusCode, seconds: float, fields: Mapping[str, str | None]) -> None:
        """``/<ip>:<port> "gRPC <full.method/Name> HTTP/2.0" <grpc code> <ms>``; ``peer`` is ``ipv4:<ip>:<port>``."""
        access.note(_address(peer), "gRPC", self.name, "HTTP/2.0", code, seconds, fields)


def client_of(rpc: Rpc) -> str:
    """Return whose call it is, see `admission.client_at`; empty for a client of a Unix socket."""
    return _client_at(rpc.peer)


@functools.lru_cache(maxsize=_KEPT_PEERS)
def _client_at(peer: str) -> str:
    return client_at(_address(peer).rpartition(":")[0].strip("[]"))


@functools.lru_cache(maxsize=_KEPT_PEERS)
def _address(peer: str) -> str:
    """Return ``127.0.0.1:5`` for ``ipv4:127.0.0.1:5``."""
    return unquote(peer.partition(":")[2])


def account_of(rpc: Rpc, model: str) -> Account | None:
    """Return the account to which a call to a model is charged, if it is to one.

    Raises EndpointError: the call's key is not for this model, or is good no more.
    """
    credential: Credential | None = rpc.credential
    return None if credential is None else credential.account(model)


def _serialized(kind: type[Message], response: Any) -> bytes:
    return (ParseDict(response, kind()) if isinstance(response, dict) else response).SerializeToString()
