"""The methods of a gRPC server, its limits, and the state that its connections share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from grpc import RpcMethodHandler, StatusCode

from torchserve_py.transport.decompression import Decompressor
from torchserve_py.transport.http2.grpc_messages import MessageLimit
from torchserve_py.transport.http2.request_head import Metadata
from torchserve_py.transport.http2.unread import UnreadOfAll
from torchserve_py.transport.request_budget import RequestBudget

#: The return value of a handler that answers later, by `Call.follow` or `Call.end`.
LATER: Final = object()


class Limits(NamedTuple):
    """Limits per client: bytes of a message, calls of a connection, seconds that a stalled call is kept."""

    message_size: int
    streams: int
    stall: float = 120.0


class Denied(NamedTuple):
    """The status of a call that is not served."""

    code: StatusCode
    details: str
    metadata: Metadata = ()


#: Gets the metadata of a call and the client's address as gRPC writes it; returns None to let the call pass.
Admit = Callable[[Metadata, str], Denied | None]
#: Gets an exception of a handler; returns the status of the call.
Refuse = Callable[[Exception], Denied]


class Method(NamedTuple):
    """A method.

    Attributes:
        handler: The handler, in gRPC's form.
        limit: The size limit of messages.
        admit: Called when the head of a call has arrived, before anything else of the call is kept.
        refuse: Returns the status of a call whose handler raises; without this function the status is UNKNOWN.
    """

    handler: RpcMethodHandler[Any, Any]
    limit: MessageLimit
    admit: Admit | None = None
    refuse: Refuse | None = None


class Shared(NamedTuple):
    """What all connections of a server share; ``methods`` are by path (``/package.Service/Method``)."""

    methods: Mapping[str, Method]
    limits: Limits
    budget: RequestBudget
    unread: UnreadOfAll
    decompressor: Decompressor
