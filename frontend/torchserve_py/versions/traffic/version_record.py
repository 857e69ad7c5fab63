"""What a version did: how many requests failed, and how long answers took, in a size that does not grow. Pure.

The times of answers are counted in buckets that are each a twentieth longer than the one before, so that quantiles are
right to 2.5 percent (`PRECISION`).
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

PRECISION: Final = 0.025
#: By how much a bucket's times are longer than those of the one before, as a logarithm.
_GROWTH: Final = math.log(1.05)
#: The shortest time that has a bucket of its own (seconds).
_SHORTEST: Final = 1e-6


@dataclass
class VersionRecord:
    """What a version did in a time.

    Attributes:
        failed: How many requests it failed.
        succeeded: How many it answered.
        times: How many answers took how long, by bucket.
    """

    failed: int = 0
    succeeded: int = 0
    times: Counter[int] = field(default_factory=Counter)
    _timed: int = 0

    @property
    def requests(self) -> int:
        """All requests."""
        return self.succeeded + self.failed

    def quantile(self, share: float) -> float | None:
        """Return the time (seconds) in which this share of the answers came.

        None: there are so few answers that none of them may be slower.
        """
        if self._timed * (1 - share) < 1 - 1e-9:
            return None
        wanted, count = share * self._timed - 1e-9, 0
        for bucket in sorted(self.times):
            count += self.times[bucket]
            if count >= wanted:
                return _SHORTEST * math.exp((bucket + 0.5) * _GROWTH)
        return None

    def time(self, seconds: float) -> None:
        """Count how long an answer took."""
        self._timed += 1
        self.times[int(math.log(max(seconds, _SHORTEST) / _SHORTEST) / _GROWTH)] += 1
