"""A balancer before servers whose connections break in every way: reset, half-open, in the middle of a frame."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Sequence
from urllib.parse import urlsplit

#: How long a server is left with a connection whose client is gone (seconds).
HALF_OPEN = 3.0
_PIECE = 65536


class _Connection:
    """A client's connection, and its server's."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.client = client
        self.server = server
        self.tears = False  # the next piece in either direction is cut in two, and its second half lost

    def reset(self) -> None:
        for writer in (self.client, self.server):
            writer.transport.abort()

    async def pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass on what one side says until it ends, or until the connection breaks."""
        with contextlib.suppress(OSError):
            while piece := await reader.read(_PIECE):
                if self.tears:
                    writer.write(piece[: len(piece) // 2])
                    await writer.drain()
                    break
                writer.write(piece)
                await writer.drain()


class Balancer:
    """Passes connections on to servers at random.

    Args:
        servers: Their addresses, such as ``http://127.0.0.1:8080``.
    """

    def __init__(self, servers: Sequence[str]) -> None:
        self._servers = [urlsplit(each).netloc.split(":") for each in servers]
        self._open: set[_Connection] = set()
        self._half_open: set[_Connection] = set()
        self.url = ""

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Listen."""
        listening = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = listening.sockets[0].getsockname()
        self.url = f"http://{host}:{port}"
        try:
            yield
        finally:
            listening.close()
            self.reset(len(self._open))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, onward = await asyncio.open_connection(*random.choice(self._servers))
        except OSError:
            writer.transport.abort()
            return
        connection = _Connection(writer, onward)
        self._open.add(connection)
        to_server = asyncio.ensure_future(connection.pass_on(reader, onward))
        to_client = asyncio.ensure_future(connection.pass_on(there, writer))
        await asyncio.wait([to_server, to_client], return_when=asyncio.FIRST_COMPLETED)
        if connection in self._half_open:
            await asyncio.sleep(HALF_OPEN)
        self._open.discard(connection)
        self._half_open.discard(connection)
        for task in (to_server, to_client):
            task.cancel()
        connection.reset()

    def reset(self, count: int) -> None:
        """Break some connections for both sides."""
        for connection in self._some(count):
            connection.reset()

    def leave_half_open(self, count: int) -> None:
        """Break some connections for their clients; the servers do not notice for a while."""
        for connection in self._some(count):
            self._half_open.add(connection)
            connection.client.transport.abort()

    def tear(self, count: int) -> None:
        """Break some connections in the middle of what is said next."""
        for connection in self._some(count):
            connection.tears = True

    def _some(self, count: int) -> list[_Connection]:
        return random.sample(sorted(self._open, key=id), min(count, len(self._open)))
