"""An https listener that answers those who speak plain HTTP to it, instead of hanging up on them.

The first byte of a connection tells: 22 begins a TLS handshake, anything else does not. It is looked at, not taken, and
the connection then goes to the event loop's own TLS or, without, to a listener that refuses every request.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from asyncio import BaseProtocol
from collections.abc import Callable
from functools import partial
from typing import Final

logger = logging.getLogger(__name__)

_HANDSHAKE: Final = 0x16
_HANDSHAKE_SECONDS: Final = 30.0
#: How long accepting rests when the process has no file descriptor left for another connection.
_REST_SECONDS: Final = 0.5
_ACCEPT_AT_ONCE: Final = 64
_NO_ROOM: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class TlsServer:
    """Accepts connections until it is closed.

    Args:
        listening: A socket that listens.
        context: For those who speak TLS.
        secure: Makes the protocol of a connection with TLS.
        plain: Makes the protocol of a connection without.
        max_handshakes: How many clients may be in the middle of the handshake; further ones are hung up on.
    """

    def __init__(
        self,
        listening: socket.socket,
        context: ssl.SSLContext,
        secure: Callable[[], BaseProtocol],
        plain: Callable[[], BaseProtocol],
        max_handshakes: int,
    ) -> None:
        self._listening = listening
        self._context = context
        self._secure = secure
        self._plain = plain
        self._max_handshakes = max_handshakes
        self._loop = asyncio.get_running_loop()
        self._connecting: set[asyncio.Task[None]] = set()
        self._rest: asyncio.TimerHandle | None = None
        self._closed = False
        listening.setblocking(False)
        self._loop.add_reader(listening, self._accept)

    def close(self) -> None:
        """Accept no more, and drop connections whose handshake is not over."""
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._listening)
        if self._rest is not None:
            self._rest.cancel()
        self._listening.close()
        for task in self._connecting:
            task.cancel()

    async def wait_closed(self) -> None:
        """Wait until those are dropped."""
        if self._connecting:
            await asyncio.wait(self._connecting)

    def _accept(self) -> None:
        for _ in range(_ACCEPT_AT_ONCE):
            try:
                connection, _ = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _NO_ROOM:
                    raise
                logger.error("No more connections can be accepted for now: %s", error)
                self._loop.remove_reader(self._listening)
                self._rest = self._loop.call_later(_REST_SECONDS, self._resume)
                return
            if len(self._connecting) >= self._max_handshakes:
                connection.close()
                continue
            connection.setblocking(False)
            task = self._loop.create_task(self._connect(connection))
            self._connecting.add(task)
            task.add_done_callback(partial(self._connected, connection))

    def _connected(self, connection: socket.socket, task: asyncio.Task[None]) -> None:
        self._connecting.discard(task)
        if task.cancelled():
            connection.close()

    def _resume(self) -> None:
        self._rest = None
        self._loop.add_reader(self._listening, self._accept)

    async def _connect(self, connection: socket.socket) -> None:
        """Find out what a new connection speaks, and give it its protocol."""
        try:
            async with asyncio.timeout(_HANDSHAKE_SECONDS):
                first = await self._first_byte(connection)
                if first == _HANDSHAKE:
                    await self._loop.connect_accepted_socket(self._secure, connection, ssl=self._context)
                elif first is not None:
                    await self._loop.connect_accepted_socket(self._plain, connection)
                else:
                    connection.close()
        except OSError as error:  # also a time-out and what TLS finds wrong: it is the client's doing
            connection.close()
            logger.debug("A TLS handshake failed: %s", error)

    async def _first_byte(self, connection: socket.socket) -> int | None:
        """The first byte, left where it is; None if the client has gone without one."""
        readable = asyncio.Event()
        self._loop.add_reader(connection, readable.set)
        try:
            await readable.wait()
        finally:
            self._loop.remove_reader(connection)
        peeked = connection.recv(1, socket.MSG_PEEK)
        return peeked[0] if peeked else None
