"""What a version did lately: a window of its requests that slides, with how long their answers took. Pure.

Requests are counted by the second, and the times of answers in buckets that are each a twentieth longer than the one
before. So a window has a size that does not grow with the load, and its quantiles are right to 2.5 percent.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Final

#: By how much a bucket's times are longer than those of the one before, as a logarithm.
_GROWTH: Final = math.log(1.05)
#: The shortest time that has a bucket of its own (seconds).
_SHORTEST: Final = 1e-6


@dataclass
class Record:
    """What a version did in a time.

    Attributes:
        failed: How many requests it failed.
        succeeded: How many it answered.
        seconds: How long the answers took in all.
        times: How many answers took how long, by bucket.
    """

    failed: int = 0
    succeeded: int = 0
    seconds: float = 0.0
    times: Counter[int] = field(default_factory=Counter)

    @property
    def requests(self) -> int:
        """All requests."""
        return self.succeeded + self.failed

    @property
    def failure_share(self) -> float:
        """The share of requests that failed, 0 without requests."""
        return self.failed / self.requests if self.requests else 0.0

    @property
    def mean(self) -> float:
        """How long an answer took on average (seconds), 0 without answers."""
        return self.seconds / self.succeeded if self.succeeded else 0.0

    def quantile(self, share: float) -> float | None:
        """Return the time (seconds) in which this share of the answers came.

        None: there are so few answers that none of them may be slower.
        """
        if self.succeeded * (1 - share) < 1 - 1e-9:
            return None
        wanted, count = share * self.succeeded - 1e-9, 0
        for bucket in sorted(self.times):
            count += self.times[bucket]
            if count >= wanted:
                return _SHORTEST * math.exp((bucket + 0.5) * _GROWTH)
        return None

    def count(self, seconds: float | None) -> None:
        """Count a request that was answered in so many seconds, or has failed (None)."""
        if seconds is None:
            self.failed += 1
            return
        self.succeeded += 1
        self.seconds += seconds
        self.times[int(math.log(max(seconds, _SHORTEST) / _SHORTEST) / _GROWTH)] += 1

    def add(self, other: Record, sign: int = 1) -> None:
        """Add what was done in another time, or with a ``sign`` of -1 take it away."""
        self.failed += sign * other.failed
        self.succeeded += sign * other.succeeded
        self.seconds += sign * other.seconds
        for bucket, number in other.times.items():
            if left := self.times[bucket] + sign * number:
                self.times[bucket] = left
            else:
                del self.times[bucket]


class RecentRequests:
    """The requests of a version in the last ``seconds``, and at least the latest ``fewest`` if there were so many."""

    def __init__(self, seconds: float, fewest: int) -> None:
        self._seconds = seconds
        self._fewest = fewest
        self._by_second: deque[tuple[int, Record]] = deque()
        #: What they come to.
        self.record = Record()

    def count(self, at: float, seconds: float | None) -> None:
        """Count a request that ended at a moment, answered in so many seconds or failed (None)."""
        if not self._by_second or self._by_second[-1][0] < int(at):
            self._by_second.append((int(at), Record()))
        self._by_second[-1][1].count(seconds)
        self.record.count(seconds)

    def forget(self, now: float) -> None:
        """Let the window slide to the moment ``now``."""
        while self._by_second:
            second, record = self._by_second[0]
            if second >= now - self._seconds or self.record.requests - record.requests < self._fewest:
                return
            self._by_second.popleft()
            self.record.add(record, -1)
