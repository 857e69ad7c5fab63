"""What a server serves, and within which limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from grpc import RpcMethodHandler

from torchserve_py.transport.http2.large_messages import MessageLimit


class Limits(NamedTuple):
    """What clients may make a server hold: bytes of a message, calls of a connection; and for how many seconds it holds
    what waits for a client that does nothing.
    """

    message_size: int
    streams: int
    stall: float = 120.0


class Methods(NamedTuple):
    """Handlers by path (``/package.Service/Method``), and the limits for their calls: for the messages of all, and of
    those that have a limit of their own.
    """

    handlers: Mapping[str, RpcMethodHandler[Any, Any]]
    limits: Limits
    message_limit: MessageLimit
    message_limits: Mapping[str, MessageLimit]
