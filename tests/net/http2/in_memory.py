"""A connection without sockets: bytes go in, frames come out, and nothing may be held when it is over."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from torchserve_py.net.http2 import frames
from torchserve_py.net.http2.grpc_messages import MessageLimit
from torchserve_py.net.http2.grpc_server import GrpcServer
from torchserve_py.net.http2.http2_connection import Http2Connection
from torchserve_py.net.http2.rpc import RpcLimits, RpcMethod
from torchserve_py.net.request_budget import RequestBudget
from torchserve_py.net.unread import UnreadOfAll


class Transport(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.is_over = False

    def write(self, data: Any) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.is_over

    def close(self) -> None:
        self.is_over = True

    def abort(self) -> None:
        self.is_over = True

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def frames(self) -> list[tuple[int, int, int, bytes]]:
        """Take what was written: kind, flags, stream and payload of each frame."""
        found, start = [], 0
        while start < len(self.written):
            length, kind, flags, stream_id = frames.parse_header(bytes(self.written), start)
            start += frames.HEADER_SIZE + length
            found.append((kind, flags, stream_id, bytes(self.written[start - length : start])))
        self.written.clear()
        return found


async def _echo(request: bytes, context: Any) -> bytes:
    return request


async def _talk(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
    async for request in requests:
        yield request


async def _many(request: bytes, context: Any) -> None:
    for _ in range(30):
        await context.write(request)


def _methods() -> dict[str, RpcMethod]:
    limit = MessageLimit(1 << 20, "a test sets")
    return {
        "/test.Service/Echo": RpcMethod(_echo, limit),
        "/test.Service/Talk": RpcMethod(_talk, limit, takes_stream=True),
        "/test.Service/Many": RpcMethod(_many, limit),
    }


class InMemory:
    """A server's end of one connection, which has begun."""

    def __init__(self, budget: int = 1 << 20, unread: int = 1 << 20) -> None:
        self.server = GrpcServer(_methods(), RpcLimits(20, 1000.0), budget=RequestBudget(budget))
        self.server.unread = UnreadOfAll(unread, unread)
        self.transport = Transport()
        self.connection = Http2Connection(self.server)
        self.connection.connection_made(self.transport)
        self.send(frames.PREFACE + frames.settings({}))

    def send(self, data: bytes) -> None:
        """The client sends something."""
        self.connection.data_received(data)

    async def settle(self) -> None:
        """Let handlers go on until they wait for the client."""
        for _ in range(100):
            await asyncio.sleep(0)

    async def end(self) -> None:
        """The client hangs up.

        Raises:
            AssertionError: Something of it is held still.
        """
        self.connection.connection_lost(None)
        for _ in range(1000):
            if not self.connection.running:
                break
            await asyncio.sleep(0.001)
        self.server.decompressor.close()
        assert self.server.budget.held == 0
        assert self.server.unread.held == 0
        assert not self.server.unread.clients
