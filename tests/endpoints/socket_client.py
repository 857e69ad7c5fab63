"""The client's end of a WebSocket, and how tests wait for what a server does."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

LIMIT = 60


class SocketClient:
    """A client that receives JSON."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    async def receive(self) -> Any:
        async with asyncio.timeout(LIMIT):
            return json.loads(await self.socket.recv())

    async def closed(self) -> tuple[int, str]:
        """Read to the close, and return its code and reason."""
        async with asyncio.timeout(LIMIT):
            try:
                while True:
                    await self.socket.recv()
            except ConnectionClosed as closed:
                assert closed.rcvd is not None, "the server dropped the connection"
                return closed.rcvd.code, closed.rcvd.reason


async def until(condition: Callable[[], Any], what: str) -> None:
    async with asyncio.timeout(LIMIT):
        while not condition():
            await asyncio.sleep(0.01)
    assert condition(), what
