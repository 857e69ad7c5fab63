"""The one timer of a scheduler, which rings at its next deadline."""

import asyncio
from collections.abc import Callable


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
