"""The time of a scheduler: the clock by which sequences are idle, and the timer that rings at the next deadline.

While the process is stopped (SIGSTOP, a machine that swaps), or has more to do than it has time for, requests wait in
sockets and are not read. By the time of the machine, a sequence would have been idle for too long before its request is
read. So the clock waits whenever the event loop does not come round in time.

Other servers go by the time of the machine. To them what is read right after a standstill has waited since that began:
they have no better information.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable
from typing import Final

#: How often (seconds) the event loop is to come round, and how late it may do so before the clock waits for it.
_BEAT: Final = 0.1
_TOLERANCE: Final = 0.1
#: Until so long (seconds) after a standstill requests are read that have waited through it.
_BACKLOG: Final = 0.2
#: How many standstills are remembered.
_REMEMBERED: Final = 100


class RunningTime:
    """A clock that a standstill of the event loop does not advance."""

    def __init__(self) -> None:
        #: Up to when (monotonic seconds) the clock runs, unless the event loop comes round before.
        self._runs_until = 0.0
        self._lost = 0.0
        #: When, by this clock, the latest standstills were, and how much had been lost before each.
        self._standstills: deque[tuple[float, float]] = deque(maxlen=_REMEMBERED)
        self._beating: asyncio.TimerHandle | None = None

    def now(self) -> float:
        """Return monotonic seconds without those of standstills."""
        now = time.monotonic()
        if self._beating is None:
            self._runs_until = now
            with contextlib.suppress(RuntimeError):  # no event loop runs yet, so none can stand still
                self._next_beat(now)
        return min(now, self._runs_until) - self._lost

    def moment_of(self, shown: float) -> float:
        """Return since when (monotonic seconds) something may have waited that was read when this clock showed that."""
        lost, earliest = self._lost, shown
        for stood_at, lost_before in reversed(self._standstills):
            if stood_at + _BACKLOG < earliest:
                break
            lost, earliest = lost_before, min(earliest, stood_at)
        return shown + lost

    def close(self) -> None:
        """Stop the clock's timer, until `now` is called again."""
        if self._beating is not None:
            self._beating.cancel()
            self._beating = None

    def _next_beat(self, now: float) -> None:
        self._runs_until = now + _BEAT + _TOLERANCE
        self._beating = asyncio.get_running_loop().call_later(_BEAT, self._beat)

    def _beat(self) -> None:
        now = time.monotonic()
        if now > self._runs_until:
            self._standstills.append((self._runs_until - self._lost, self._lost))
            self._lost += now - self._runs_until
        self._next_beat(now)


class Alarm:
    """Rings once, no later than the moment that was named last, though perhaps earlier."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._timer: asyncio.TimerHandle | None = None
        #: When the alarm rings at present.
        self.rings_at = float("inf")

    def set(self, deadline: float, now: float) -> None:
        """Ring by ``deadline`` (monotonic seconds, as ``now``)."""
        if deadline >= self.rings_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self.rings_at = deadline
        self._timer = asyncio.get_running_loop().call_later(max(0.0, deadline - now), self._go_off)

    def cancel(self) -> None:
        """Never ring again."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self.rings_at = None, float("-inf")

    def _go_off(self) -> None:
        self._timer, self.rings_at = None, float("inf")
        self._ring()
