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
    """Time limits for clients (seconds)."""

    #: For a head, from its first byte.
    head_seconds: float
    #: Between two bytes of a body that the client sends, and of an answer that it reads.
    stall_seconds: float
    #: Between two requests; longer than common proxies keep their connections, who must not reuse a closed one.
    idle_seconds: float = 620.0
    #: For reading and dropping what a client still sends, so that it sees the answer.
    linger_seconds: float = 1.0


class Application(Protocol):
    """Answers requests; `doors.answering.Application` implements this."""

    def begin(self, request: Request) -> None:
        """Answer a request whose head has arrived, now or later, and call its `Request.finish`."""

    def refusal(self, status: int, message: str, peer: Any) -> bytes:
        """Return the response, head and body, to bytes that never became a request; the connection closes after it."""


class HttpServer:
    """Knows and closes the connections of a listener; without ``budget`` it has one of its own."""

    def __init__(self, application: Application, limits: Limits, budget: RequestBudget | None = None) -> None:
        self.application = application
        self.limits = limits
        self.budget = budget or RequestBudget()
        self.decompressor = Decompressor()
        self.loop = asyncio.get_running_loop()
        self.connections: set[HttpConnection] = set()
        self._all_closed: asyncio.Future[None] | None = None

    async def close(self, grace: float) -> None:
        """Close each connection once its request is answered; after ``grace`` seconds give up what is left."""
        for connection in tuple(self.connections):
            connection.go_away()
        if self.connections:
            self._all_closed = self.loop.create_future()
            await asyncio.wait([self._all_closed], timeout=grace)
        for connection in tuple(self.connections):
            connection.abort()
        self.decompressor.close()

    def opened(self, connection: HttpConnection) -> None:
        self.connections.add(connection)

    def closed(self, connection: HttpConnection) -> None:
        self.connections.discard(connection)
        if self._all_closed is not None and not self.connections and not self._all_closed.done():
            self._all_closed.set_result(None)
