"""One deadline of a connection, which moves often and passes seldom."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Timer:
    """Calls back when the deadline set last has passed.

    A deadline that moves back costs no new timer of the event loop: the one that there is looks again.
    """

    __slots__ = ("_deadline", "_handle", "_loop", "_then")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._deadline: float | None = None
        self._then: Callable[[], None] | None = None
        self._handle: asyncio.TimerHandle | None = None

    def start(self, seconds: float, then: Callable[[], None]) -> None:
        """Call ``then`` in so many seconds, and nothing that was to be called before."""
        self._deadline = deadline = self._loop.time() + seconds
        self._then = then
        if self._handle is None:
            self._handle = self._loop.call_at(deadline, self._look)
        elif self._handle.when() > deadline:
            self._handle.cancel()
            self._handle = self._loop.call_at(deadline, self._look)

    def stop(self) -> None:
        """Call nothing."""
        self._deadline = self._then = None

    def close(self) -> None:
        """Leave nothing behind in the event loop."""
        self.stop()
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _look(self) -> None:
        self._handle = None
        deadline, then = self._deadline, self._then
        if deadline is None or then is None:
            return
        # The loop may call a little before the deadline, as exact as its clock is.
        if self._loop.time() < deadline - 0.001:
            self._handle = self._loop.call_at(deadline, self._look)
            return
        self.stop()
        then()
