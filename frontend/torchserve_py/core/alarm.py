"""One timer for a scheduler, however many deadlines it has."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Alarm:
    """Rings once, no later than the moment that was named last, though perhaps earlier.

    Args:
        ring: What it calls.
    """

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._timer: asyncio.TimerHandle | None = None
        self._rings_at = float("inf")

    def set(self, deadline: float | None, now: float) -> None:
        """Ring by ``deadline`` (monotonic seconds, as ``now``); None if there is none."""
        if deadline is None or deadline >= self._rings_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._rings_at = deadline
        self._timer = asyncio.get_running_loop().call_later(max(0.0, deadline - now), self._go_off)

    def cancel(self) -> None:
        """Ring never again, whatever is named."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._rings_at = None, float("-inf")

    def _go_off(self) -> None:
        self._timer, self._rings_at = None, float("inf")
        self._ring()
