"""All connections of one listener."""

import asyncio
from dataclasses import dataclass
from typing import Any, Protocol

from torchserve_py.transport.decompression import Decompressor
from torchserve_py.transport.http1.http_connection import HttpConnection
from torchserve_py.transport.http1.request import Request
from torchserve_py.transport.request_budget import RequestBudget


@dataclass(frozen=True, slots=True)
class Limits:
    """Time limits for clients (seconds).

    Attributes:
        head_seconds: For a head, from its first byte.
        stall_seconds: Between two bytes of a body that the client sends, and of an answer that it reads.
        idle_seconds: Between two requests. Longer than common proxies keep their connections (up to 600 s), so that
            a proxy never reuses a closed connection.
        linger_seconds: For reading and dropping the rest of a refused body, so that the client sees the refusal.
    """

    head_seconds: float
    stall_seconds: float
    idle_seconds: float = 620.0
    linger_seconds: float = 1.0


class Application(Protocol):
    """Answers requests; `doors.answering.Application` implements this."""

    def begin(self, request: Request) -> None:
        """Answer a request whose head has arrived, now or later, and call its `Request.finish`."""

    def refusal(self, status: int, message: str, peer: Any) -> bytes:
        """Return the response, head and body, to bytes that never became a request; the connection closes after it."""


class HttpServer:
    """Knows and closes the connections of a listener.

    Args:
        application: Answers the requests of all connections.
        limits: Time limits for clients.
        budget: Limits the bytes of bodies that the server holds; None for a budget of this listener's own.
    """

    def __init__(self, application: Application, limits: Limits, budget: RequestBudget | None = None) -> None:
        self.application = application
        self.limits = limits
        self.budget = budget or RequestBudget()
        self.decompressor = Decompressor()
        self.loop = asyncio.get_running_loop()
        self.connections: set[HttpConnection] = set()
        self._all_closed: asyncio.Future[None] | None = None

    async def close(self, grace: float) -> None:
        """Close idle connections, and each other connection once its request is answered.

        Args:
            grace: Seconds after which unanswered requests are given up and unread output is dropped.
        """
        for connection in tuple(self.connections):
            connection.go_away()
        if self.connections:
            self._all_closed = self.loop.create_future()
            await asyncio.wait([self._all_closed], timeout=grace)
        for connection in tuple(self.connections):
            connection.abort()
        self.decompressor.close()

    def opened(self, connection: HttpConnection) -> None:
        """Add a connection."""
        self.connections.add(connection)

    def closed(self, connection: HttpConnection) -> None:
        """Remove a connection."""
        self.connections.discard(connection)
        if self._all_closed is not None and not self.connections and not self._all_closed.done():
            self._all_closed.set_result(None)
