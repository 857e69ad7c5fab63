"""A rate that may be exceeded for a moment: as much as a second has may come at once, then only as the rate says."""

import math
from collections.abc import Callable


class TokenBucket:
    """Starts full. What is taken may be more than it has; then nothing is there until the rate has made up for it.

    Args:
        rate: How much a second has; a bucket holds as much, and one at least.
        now: The clock (seconds).
    """

    def __init__(self, rate: float, now: Callable[[], float]) -> None:
        self.rate = rate
        self._now = now
        self._size = self._left = max(1.0, rate)
        self._left_at = now()

    @property
    def left(self) -> float:
        """How much may be taken now; below zero, by how much was taken too much."""
        now = self._now()
        self._left = min(self._size, self._left + (now - self._left_at) * self.rate)
        self._left_at = now
        return self._left

    def take(self, amount: float) -> None:
        """Take some, whether it is there or not; a negative amount gives some back."""
        self._left = min(self._size, self.left - amount)

    def full_seconds_until_one(self) -> int:
        """Return in how many full seconds one is there, 1 at least."""
        return max(1, math.ceil((1 - self.left) / self.rate))
