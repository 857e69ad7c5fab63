"""Limits for slow clients: how slowly they may read answers and send bodies."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from torchserve_py.transport.http1.deadline import Deadline
from torchserve_py.transport.http1.errors import BodyTooSlow, ReaderStalled

if TYPE_CHECKING:
    from torchserve_py.transport.http1.http_connection import HttpConnection
    from torchserve_py.transport.http1.request import Request

logger = logging.getLogger(__name__)

#: Bytes per second that a client must read of an answer, and send of a body, on average; otherwise one byte a minute
#: would keep a connection open for ever.
MIN_RATE: Final = 500.0
_NO_LINGERING: Final = struct.pack("ii", 1, 0)


class SlowReader:
    """Limits how slowly the client of a connection reads.

    Args:
        connection: The connection; it is reset when its client does not read.
        timer: The timer of the connection.
        stall_seconds: How long the client may read nothing.
    """

    def __init__(self, connection: HttpConnection, timer: Deadline, stall_seconds: float) -> None:
        #: Whether the transport's write buffer is above its high-water mark.
        self.is_slow = False
        self._connection = connection
        self._timer = timer
        self._stall = stall_seconds
        self._waiters: list[asyncio.Future[None]] = []
        #: When the wait began, and how many bytes were unread then and at the latest check.
        self._since = 0.0
        self._unread_first = self._unread = 0

    def caught_up(self) -> None:
        """End the wait: the client has read most of the output."""
        self.is_slow = False
        if self._waiters:
            self._timer.stop()
        self._end(None)

    def left(self) -> None:
        """End the wait: the client has disconnected."""
        self._end(ConnectionResetError("The client has disconnected."))

    async def drained(self) -> None:
        """Wait until the client has read most of the output.

        Raises:
            ReaderStalled: The client does not read; its connection is reset.
            ConnectionError: The client has disconnected.
        """
        if not self.is_slow:
            return
        waiter = self._connection.loop.create_future()
        self._waiters.append(waiter)
        self.watch()
        await waiter

    def watch(self) -> None:
        """Reset the connection as soon as its client has stalled, or reads too slowly."""
        self._since = self._connection.loop.time()
        self._unread_first = self._unread = self._connection.unread_size
        self._timer.start(self._stall, self._check)

    def _check(self) -> None:
        unread = self._connection.unread_size
        slowest = MIN_RATE * (self._connection.loop.time() - self._since - self._stall)
        if unread < self._unread and self._unread_first - unread >= slowest:
            self._unread = unread
            self._timer.start(self._stall, self._check)
            return
        problem = f"the client has read nothing for {self._stall:g} seconds"
        if unread < self._unread:
            problem = f"the client reads fewer than {MIN_RATE:g} bytes per second"
        logger.warning("Dropped a connection: %s.", problem)
        self._end(ReaderStalled(problem))
        self._connection.reset()

    def _end(self, error: Exception | None) -> None:
        for waiter in self._waiters:
            if waiter.done():
                continue
            if error is None:
                waiter.set_result(None)
            else:
                waiter.set_exception(error)
        self._waiters.clear()


class SlowSender:
    """Limits how long the client of a connection takes to send the body that a request waits for.

    Args:
        loop: The event loop.
        timer: The timer of the connection.
        stall_seconds: How long the client may send nothing.
        give_up: Called with a request whose body arrives too slowly, after the request's body has failed.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, timer: Deadline, stall_seconds: float, give_up: Callable[[Request], None]
    ) -> None:
        self._loop = loop
        self._timer = timer
        self._stall = stall_seconds
        self._give_up = give_up
        self._since = 0.0

    def watch(self, request: Request) -> None:
        """Start the limits: ``request`` waits for its body from now on."""
        self._since = self._loop.time()
        self._timer.start(self._stall, lambda: self._fail(request))

    def sent(self, request: Request) -> None:
        """Check the limits: a piece of the body has arrived, and more follows."""
        now = self._loop.time()
        in_time = min(now, self._since + request.body_size / MIN_RATE) + self._stall
        self._timer.start(in_time - now, lambda: self._fail(request))

    def _fail(self, request: Request) -> None:
        seconds = self._loop.time() - self._since
        message = (
            f"The request body arrives too slowly: {request.body_size} bytes in {seconds:.0f} seconds. Its bytes may"
            f" pause for {self._stall:g} seconds and must come at {MIN_RATE:g} bytes per second or more on average."
        )
        request.fail_body(BodyTooSlow(message))
        self._give_up(request)


def reset(transport: asyncio.Transport) -> None:
    """End a connection at once and drop unsent output, so that its client sees an error instead of an orderly end."""
    connection = transport.get_extra_info("socket")
    if connection is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGERING)
    transport.abort()
