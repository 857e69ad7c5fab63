"""The limits of a key, and what counts against them."""

import math
import time
from collections.abc import Callable

from torchserve_py.jobs.limits import Exceeded
from torchserve_py.scheduling.effects import Cause


class KeyLimits:
    """How many requests a key may make: in a second, and at once. Tests set the clock ``now`` (seconds).

    What it may make in a second it may make in one moment; after that, one more as often as the rate says (a token
    bucket). Requests that were refused do not count.
    """

    def __init__(self, client: str = "", now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        #: What tells the key from others, and how many turns it has.
        self.client = client
        self.weight = 1.0
        self._per_second: float | None = None
        self._at_once: int | None = None
        self._running = 0
        self._left = 0.0
        self._left_at = now()

    def change(self, per_second: float | None, at_once: int | None) -> None:
        """Set the limits, None for no limit; what runs counts against the new ones."""
        if per_second is not None and per_second != self._per_second:
            self._left = max(1.0, per_second)
        self._per_second, self._at_once = per_second, at_once

    def begin(self) -> Cause | None:
        """Count a request that begins, or return why it may not."""
        if self._at_once is not None and self._running >= self._at_once:
            return Cause.too_many_at_once
        if (rate := self._per_second) is not None:
            now = self._now()
            self._left = min(max(1.0, rate), self._left + (now - self._left_at) * rate)
            self._left_at = now
            if self._left < 1:
                return Cause.rate_limited
            self._left -= 1
        self._running += 1
        return None

    def exceeded(self, cause: Cause) -> Exceeded:
        """Return what to tell a client that `begin` has just refused for this cause."""
        if cause is Cause.rate_limited and (rate := self._per_second) is not None:
            return Exceeded(
                f"This key may make at most {rate:g} requests a second.", math.ceil((1 - self._left) / rate)
            )
        return Exceeded(f"This key may have at most {self._at_once} requests at once.", 1)

    def end(self) -> None:
        """Note that a request which was counted has its answer."""
        self._running -= 1
