"""Limits how slowly a client may send the body of a request."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from torchserve_py.transport.http1.deadline import Deadline
from torchserve_py.transport.http1.errors import BodyTooSlow
from torchserve_py.transport.http1.reader import MIN_RATE

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from torchserve_py.transport.http1.request import Request


class Sender:
    """Limits how long the client of a connection takes to send the body that a request waits for.

    Args:
        loop: The event loop.
        timer: The timer of the connection.
        stall_seconds: How long the client may send nothing.
        give_up: Called with a request whose body arrives too slowly, after the request's body has failed.
    """

    def __init__(
        self, loop: AbstractEventLoop, timer: Deadline, stall_seconds: float, give_up: Callable[[Request], None]
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
