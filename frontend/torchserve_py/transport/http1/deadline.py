"""One deadline of a connection: it is moved often, and rarely expires."""

import asyncio
from collections.abc import Callable


class Deadline:
    """Calls back when the latest deadline has passed.

    Postponing the deadline needs no new timer of the event loop: the existing one checks the deadline again.
    """

    __slots__ = ("_deadline", "_handle", "_loop", "_then")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._deadline = 0.0
        self._then: Callable[[], None] | None = None
        self._handle: asyncio.TimerHandle | None = None

    def start(self, seconds: float, then: Callable[[], None]) -> None:
        """Call ``then`` after ``seconds``; this replaces an earlier deadline and its callback."""
        self._deadline = deadline = self._loop.time() + seconds
        self._then = then
        if self._handle is None:
            self._handle = self._loop.call_at(deadline, self._look)
        elif self._handle.when() > deadline:
            self._handle.cancel()
            self._handle = self._loop.call_at(deadline, self._look)

    def stop(self) -> None:
        self._then = None

    def close(self) -> None:
        """Cancel the deadline, and the event loop's timer."""
        self.stop()
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _look(self) -> None:
        self._handle = None
        deadline, then = self._deadline, self._then
        if then is None:
            return
        # The event loop may call slightly early, within the resolution of its clock.
        if self._loop.time() < deadline - 0.001:
            self._handle = self._loop.call_at(deadline, self._look)
            return
        self.stop()
        then()
