"""What the models did in the last hour: points in rings of a fixed size. Pure: no clock, no I/O.

There are two rings: a point per second for five minutes, and a point per ten seconds for an hour.
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Final

from torchserve_py.base.metrics.catalog import BATCH_BOUNDS, SECONDS_BOUNDS
from torchserve_py.core.serving.model_activity import Activity, Timing

#: The numbers of a point, in order. Times are in milliseconds; a number without anything to measure is NaN.
COLUMNS: Final = (
    "answers",  # per second
    "failures",  # per second
    "batch_size",
    "waiting",
    "waiting_p50",
    "waiting_p99",
    "handler",
    "handler_p50",
    "handler_p99",
    "first_part_p50",
    "first_part_p99",
    "next_part_p50",
    "next_part_p99",
    "queued",
    "running",
    "workers",
    "sequences",
    "memory",
)
#: Columns that have a sum over all models.
_SUMMED: Final = frozenset({"answers", "failures", "queued", "running", "workers", "sequences", "memory"})
_SECONDS: Final = 300
#: Seconds of a point of the coarse ring.
COARSE: Final = 10
_COARSE_POINTS: Final = 360
_MINUTE: Final = 60
_MINUTES: Final = 61
_QUANTILES: Final = (0.5, 0.99)
_NO_TIMES: Final = Timing((0,) * (len(SECONDS_BOUNDS) + 1), 0.0)
_NO_BATCHES: Final = (0,) * (len(BATCH_BOUNDS) + 1)
#: The activity of a model version when it is registered.
NOTHING: Final = Activity(
    0, 0.0, 0.0, {}, 0.0, 0.0, {}, _NO_BATCHES, 0, _NO_TIMES, _NO_TIMES, _NO_TIMES, _NO_TIMES, 0, 0, 0, 0, 0, 0
)

Point = Sequence[float]


class Ring:
    """The latest points, one for each tick of a steady clock; a tick without a sample has the point of the next."""

    def __init__(self, interval: int, length: int) -> None:
        self.interval = interval
        self._length = length
        self._columns = [array("f", [math.nan]) * length for _ in COLUMNS]
        self.last: Point = [math.nan] * len(COLUMNS)
        self._tick: int | None = None

    def add(self, tick: int, point: Point) -> None:
        """Add the point of a later tick."""
        missed = 0 if self._tick is None else min(tick - self._tick - 1, self._length)
        for each in range(tick - missed, tick + 1):
            for column, value in zip(self._columns, point, strict=True):
                column[each % self._length] = value
        self._tick, self.last = tick, point

    def latest(self, column: str, count: int) -> list[float]:
        """Return the last points of a column, oldest first."""
        return self._ordered(self._columns[COLUMNS.index(column)])[-count:]

    def as_json(self) -> dict[str, Any]:
        """Return all points, oldest first; the last is that of the tick before now."""
        return {
            "interval": self.interval,
            "columns": {
                name: [_short(value) for value in self._ordered(column)]
                for name, column in zip(COLUMNS, self._columns, strict=True)
            },
        }

    def _ordered(self, column: array[float]) -> list[float]:
        oldest = (0 if self._tick is None else self._tick + 1) % self._length
        return [*column[oldest:], *column[:oldest]]


class History:
    """The two rings of a model version, or of all models together."""

    def __init__(self) -> None:
        self.seconds = Ring(1, _SECONDS)
        self.coarse = Ring(COARSE, _COARSE_POINTS)

    def second(self, tick: int) -> dict[str, Any]:
        """Return the points that end with a tick."""
        points = {"point": short(self.seconds.last)}
        return {**points, "coarse": short(self.coarse.last)} if ends_coarse(tick) else points

    def as_json(self) -> dict[str, Any]:
        """Return both rings."""
        return {"seconds": self.seconds.as_json(), "coarse": self.coarse.as_json()}


class ModelHistory(History):
    """The history of one model version, from samples of its activity; ``at`` counts seconds of a steady clock.

    ``is_new``: the version was registered within the last second, to which all belongs that the first sample counts.
    """

    def __init__(self, tick: int, activity: Activity, at: float, *, is_new: bool = False) -> None:
        super().__init__()
        before = NOTHING if is_new else activity
        self.activity = activity
        self._at = at
        self._coarse_activity, self._coarse_at = before, at - 1.0 if is_new else at
        #: Failures and batches as they were at each minute of the last hour, oldest first.
        self._minutes = deque([(before.failures, before.batches)], maxlen=_MINUTES)
        self.seconds.add(tick, point_between(before, activity, 1.0))

    def sample(self, tick: int, activity: Activity, at: float) -> None:
        """Add a sample, one for each tick."""
        self.seconds.add(tick, point_between(self.activity, activity, at - self._at))
        self.activity, self._at = activity, at
        if ends_coarse(tick):
            self.coarse.add(tick // COARSE, point_between(self._coarse_activity, activity, at - self._coarse_at))
            self._coarse_activity, self._coarse_at = activity, at
        if tick % _MINUTE == 0:
            before, counted = self._minutes[-1], (activity.failures, activity.batches)
            self._minutes.append(before if before == counted else counted)

    @property
    def failures(self) -> dict[str, int]:
        """The failures of the last hour by cause."""
        before = self._minutes[0][0]
        counts = {cause: count - before.get(cause, 0) for cause, count in self.activity.failures.items()}
        return {cause: count for cause, count in counts.items() if count}

    @property
    def batches(self) -> list[int]:
        """The batches of the last hour, as many as in each bucket of `metrics.catalog.BATCH_BOUNDS`."""
        return [now - before for now, before in zip(self.activity.batches, self._minutes[0][1], strict=True)]


def ends_coarse(tick: int) -> bool:
    """Return whether ten seconds are over with this tick."""
    return tick % COARSE == 0


def sum_of(points: Iterable[Point]) -> Point:
    """Return the point of all models together; NaN where a sum says nothing."""
    every = list(points)
    return [
        math.fsum(point[index] for point in every if not math.isnan(point[index])) if name in _SUMMED else math.nan
        for index, name in enumerate(COLUMNS)
    ]


def short(point: Point) -> list[float | None]:
    """Return a point for JSON, in four digits."""
    return [_short(value) for value in point]


def point_between(before: Activity, now: Activity, seconds: float) -> Point:
    """Return the point of the time between two samples."""
    failures = now.failed - before.failed
    unanswered = sum(now.failures.values()) - sum(before.failures.values())
    answers = now.succeeded - before.succeeded + unanswered
    batches = sum(now.batches) - sum(before.batches)
    seconds = max(seconds, 1e-3)
    return (
        answers / seconds,
        failures / seconds,
        (now.batched - before.batched) / batches if batches else math.nan,
        *timing_between(before.waiting, now.waiting),
        *timing_between(before.handler, now.handler),
        *timing_between(before.first_part, now.first_part)[1:],
        *timing_between(before.next_part, now.next_part)[1:],
        now.queued,
        now.running,
        now.workers,
        now.sequences,
        now.memory,
    )


def timing_between(before: Timing, now: Timing) -> tuple[float, ...]:
    """Return the mean, the median and the 99th percentile of what was counted in between, in milliseconds."""
    if before.counts == now.counts:
        return math.nan, math.nan, math.nan
    counts = [later - earlier for earlier, later in zip(before.counts, now.counts, strict=True)]
    mean = (now.seconds - before.seconds) / sum(counts) * 1000
    return mean, *(_quantile(counts, each) * 1000 for each in _QUANTILES)


def _quantile(counts: Sequence[int], share: float) -> float:
    """Return what this share does not exceed, interpolated within its bucket; the last bound if it lies beyond that."""
    rank = share * sum(counts)
    lower, below = 0.0, 0
    for bound, count in zip(SECONDS_BOUNDS, counts, strict=False):
        if count and below + count >= rank:
            return lower + (bound - lower) * (rank - below) / count
        lower, below = bound, below + count
    return SECONDS_BOUNDS[-1]


def _short(value: float) -> float | None:
    return None if math.isnan(value) else float(f"{value:.4g}")
