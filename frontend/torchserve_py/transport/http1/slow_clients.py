"""Limits for slow clients."""

from __future__ import annotations

import asyncio
import logging
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


class Pace:
    """How slowly the client of a connection may read answers and send bodies.

    The connection, whose timer is ``timer``, is reset if its client does not read. ``stall_seconds``: how long the
    client may send or read nothing.
    """

    def __init__(self, connection: HttpConnection, timer: Deadline, stall_seconds: float) -> None:
        #: Whether the transport's write buffer is above its high-water mark.
        self.is_reader_slow = False
        self._connection = connection
        self._timer = timer
        self._stall = stall_seconds
        self._waiters: list[asyncio.Future[None]] = []
        #: When the wait began, and how many bytes were unread then and at the latest check.
        self._since = 0.0
        self._unread_first = self._unread = 0

    def caught_up(self) -> None:
        """End the wait: the client has read most of the output."""
        self.is_reader_slow = False
        if self._waiters:
            self._timer.stop()
        self._end(None)

    def left(self) -> None:
        """End the wait: the client has disconnected."""
        self._end(ConnectionResetError("The client has disconnected."))

    async def drained(self) -> None:
        """Wait until the client has read most of the output.

        Raises ReaderStalled: the client does not read; its connection is reset. ConnectionError: the client has
        disconnected.
        """
        if not self.is_reader_slow:
            return
        waiter = self._connection.loop.create_future()
        self._waiters.append(waiter)
        self.watch_reader()
        await waiter

    def watch_reader(self) -> None:
        """Reset the connection as soon as its client has stalled, or reads too slowly."""
        self._since = self._connection.loop.time()
        self._unread_first = self._unread = self._connection.unread_size
        self._timer.start(self._stall, self._check_reader)

    def _check_reader(self) -> None:
        unread = self._connection.unread_size
        slowest = MIN_RATE * (self._connection.loop.time() - self._since - self._stall)
        if unread < self._unread and self._unread_first - unread >= slowest:
            self._unread = unread
            self._timer.start(self._stall, self._check_reader)
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

    def watch_body(self, request: Request) -> None:
        """Start the limits for the body that ``request`` waits for."""
        self._since = self._connection.loop.time()
        self._timer.start(self._stall, lambda: self._give_up(request))

    def body_grew(self, request: Request) -> None:
        """Move the limit: a piece of the body has arrived, and more follows."""
        now = self._connection.loop.time()
        in_time = min(now, self._since + request.body_size / MIN_RATE) + self._stall
        self._timer.start(in_time - now, lambda: self._give_up(request))

    def _give_up(self, request: Request) -> None:
        seconds = self._connection.loop.time() - self._since
        message = (
            f"The request body arrives too slowly: {request.body_size} bytes in {seconds:.0f} seconds. Its bytes may"
            f" pause for {self._stall:g} seconds and must come at {MIN_RATE:g} bytes per second or more on average."
        )
        self._connection.give_up_body(request, BodyTooSlow(message))
