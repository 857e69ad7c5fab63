"""What a server serves, and within which limits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from grpc import RpcMethodHandler, StatusCode

from torchserve_py.transport.http2.grpc_messages import MessageLimit
from torchserve_py.transport.http2.request_head import Metadata

#: What a handler returns that will answer by `Call.follow` or `Call.end`.
LATER: Final = object()


class Limits(NamedTuple):
    """What clients may make a server hold: bytes of a message, calls of a connection; and for how many seconds it holds
    what waits for a client that does nothing.
    """

    message_size: int
    streams: int
    stall: float = 120.0


class Denied(NamedTuple):
    """Why a call is not served, as its client is told."""

    code: StatusCode
    details: str
    metadata: Metadata = ()


#: Gets the metadata of a call and the client's address as gRPC writes it; None lets the call pass.
Admit = Callable[[Metadata, str], Denied | None]


#: Gets an exception of a handler; says how the call ends.
Refuse = Callable[[Exception], Denied]


class Method(NamedTuple):
    """What serves a method.

    Attributes:
        handler: As gRPC has it.
        limit: The limit of its messages.
        admit: Asked when the head of a call is there, before anything else of the call is kept.
        refuse: Asked for the status of a call whose handler raises; without it the status is UNKNOWN.
    """

    handler: RpcMethodHandler[Any, Any]
    limit: MessageLimit
    admit: Admit | None = None
    refuse: Refuse | None = None
