"""All connections of one listener."""

import asyncio

from torchserve_py.net.decompression import Decompressor
from torchserve_py.net.http1.http_connection import Application, HttpConnection, HttpLimits
from torchserve_py.net.request_budget import RequestBudget


class HttpServer:
    """Knows and closes the connections of a listener; without ``budget`` it has one of its own."""

    def __init__(self, application: Application, limits: HttpLimits, budget: RequestBudget | None = None) -> None:
        self.application = application
        #: Whether each connection ends after the answer to its next request.
        self.is_leaving = False
        self.limits = limits
        self.budget = budget or RequestBudget()
        self.decompressor = Decompressor()
        self.loop = asyncio.get_running_loop()
        self.connections: set[HttpConnection] = set()
        self._all_closed: asyncio.Future[None] | None = None

    def leave(self) -> None:
        """Have clients go elsewhere: from now on every answer says that its connection is closed."""
        if self.is_leaving:
            return
        self.is_leaving = True
        for connection in tuple(self.connections):
            connection.close_after_requests()

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
