"""Batches of which no step is late because others are in its batch, nor because of the batch before its own."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torchserve_py.core.scheduling.batch_admission import WhenIdle
from torchserve_py.core.scheduling.lane import Lane, WorkerLoad
from torchserve_py.core.scheduling.order import Due
from torchserve_py.core.scheduling.sequence_times import SequenceTimes
from torchserve_py.core.scheduling.step_times import StepTimes

#: A deadline is far if so many of the longest batches fit before it.
_FAR = 4


class InTime:
    """Does as `WhenIdle`, but a batch with deadlines is no larger than these allow, and waits for no further steps.

    Args:
        times: How long batches take, whatever is in them.
        sequence_times: How long the steps of each sequence take; None where there are no sequences.
        slack: Returns how long a batch without a guarantee may take (seconds) beside the sessions with one of a lane.
    """

    __slots__ = ("_sequence_times", "_slack", "_times", "_when_idle")

    def __init__(
        self,
        when_idle: WhenIdle,
        times: StepTimes,
        sequence_times: SequenceTimes | None,
        slack: Callable[[Lane[Any]], float],
    ) -> None:
        self._when_idle = when_idle
        self._times = times
        self._sequence_times = sequence_times
        self._slack = slack

    def room(self, worker: WorkerLoad) -> int:
        """See `WhenIdle.room`."""
        return self._when_idle.room(worker)

    def choose(self, free: Mapping[str, WorkerLoad]) -> WorkerLoad:
        """See `WhenIdle.choose`."""
        return self._when_idle.choose(free)

    def waits(self, lane: Lane[Any], now: float) -> bool:
        """Whether to wait for a fuller batch: not if a deadline is near by then, when there may be more to do."""
        due = () if lane.order is None else lane.order.due(1)
        if due:
            table, waits_until = self._times.table, lane.due(now) or now
            if table is None or due[0].is_guaranteed or due[0].at < waits_until + _FAR * table[-1]:
                return False
        return self._when_idle.waits(lane, now)

    def takes(self, worker: WorkerLoad, lane: Lane[Any], now: float) -> int:
        """Return how many of the first items of the lane the worker takes.

        A step that would be late even in a batch of its own makes no batch smaller, or others would be late as well.
        """
        most, table = self._when_idle.takes(worker, lane, now), self._times.table
        if table is None or lane.order is None:
            return most
        others, left = self._slack(lane), math.inf
        waiting = min(most, len(lane.items))
        due = lane.order.due(waiting)
        seconds = table[1:] if others < math.inf else self._seconds(due, waiting, table)
        for size in range(1, waiting + 1):
            limit = min(left, others)
            if size <= len(due):
                until = due[size - 1].at - now
                left = min(left, until) if until >= seconds[0] else left
                limit = left if due[size - 1].is_guaranteed else min(left, others)
            if size > 1 and seconds[size - 1] > limit:
                return size - 1
        return most

    def _seconds(self, due: Sequence[Due], waiting: int, table: Sequence[float]) -> Sequence[float]:
        """Return how long batches of the first items take at the most, by their size from 1.

        Guarantees are computed with the times of any batches of a size, so where there are some, only these count.
        """
        items = [*(each.item for each in due), *[None] * (waiting - len(due))]
        known = None if self._sequence_times is None else self._sequence_times.at_most(items)
        return table[1:] if known is None else known
