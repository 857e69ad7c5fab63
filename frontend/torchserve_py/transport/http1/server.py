"""All connections of one listener."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Protocol

from torchserve_py.transport.http1.connection import Connection
from torchserve_py.transport.http1.request import Request
from torchserve_py.transport.http1.turns import Turns


@dataclass(frozen=True, slots=True)
class Limits:
    """How long clients may take (seconds).

    Attributes:
        head_seconds: For a head, from its first byte.
        stall_seconds: Between two bytes of a body, and of an answer that they read.
        idle_seconds: Between two requests. Longer than the proxies in use keep their connections (up to 600 s), or
            those meet closed ones.
        linger_seconds: How long the rest of a refused body is read and dropped, so that the client sees the refusal.
    """

    head_seconds: float
    stall_seconds: float
    idle_seconds: float = 620.0
    linger_seconds: float = 1.0


class Application(Protocol):
    """Who answers requests."""

    def begin(self, request: Request) -> None:
        """Answer a request whose head has arrived, now or later, and `Request.finish` it."""

    def refusal(self, status: int, message: str, peer: Any) -> bytes:
        """The response, head and body, to bytes of a peer that never became a request; the connection closes then."""


class Server:
    """Makes and closes connections.

    Args:
        application: Who answers their requests.
        limits: How long their clients may take.
    """

    def __init__(self, application: Application, limits: Limits) -> None:
        self.application = application
        self.limits = limits
        self.loop = asyncio.get_running_loop()
        self.connections: set[Connection] = set()
        self.turns = Turns(self.loop)
        self._all_closed: asyncio.Future[None] | None = None

    async def close(self, grace: float) -> None:
        """Close idle connections, and the others once their requests are answered.

        Args:
            grace: Seconds until requests without an answer are given up, and what clients have not read is dropped.
        """
        for connection in tuple(self.connections):
            connection.go_away()
        if self.connections:
            self._all_closed = self.loop.create_future()
            await asyncio.wait([self._all_closed], timeout=grace)
        for connection in tuple(self.connections):
            connection.abort()

    def opened(self, connection: Connection) -> None:
        """A connection is there."""
        self.connections.add(connection)

    def closed(self, connection: Connection) -> None:
        """A connection is gone."""
        self.connections.discard(connection)
        if self._all_closed is not None and not self.connections and not self._all_closed.done():
            self._all_closed.set_result(None)
