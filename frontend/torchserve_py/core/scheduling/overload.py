"""More work than the workers can do: which jobs cannot be answered in time, and when the newest go first.

A job that cannot be in time, by how long the latest steps have taken, is refused as soon as it comes, rather than run
for a client that will have left. One that can be is given a moment by which it must begin; if it has not begun by then,
it expires like any other job.

Most clients do not say how long they wait. Where a queue has not been empty for some time, and a client gives up, the
newest jobs go first for some time: first in, first out would always serve the one that is about to leave. That is
adaptive LIFO with CoDel's rule for a queue that only grows, as in B. Maurer, "Fail at Scale", ACM Queue 13 (8), 2015.
But a queue that stands while nobody gives up is one of patient clients, of whom first in, first out lets none starve.
"""

from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

from torchserve_py.core.scheduling.job import Job
from torchserve_py.core.scheduling.lane import Lane, WorkerLoad

#: How many of the latest steps tell how long the next ones will take.
_STEPS_REMEMBERED = 16

#: Seconds that an answer needs besides its step, at least: the network, a busy machine.
_LEAST_RESERVE = 0.02

#: By how many mean deviations a step may take longer than the mean and still be in time. As TCP has it (RFC 6298).
_DEVIATIONS = 4

#: Of the jobs that are refused although a worker is idle, because steps take too long, one of this many runs all the
#: same. Otherwise nobody would notice that steps have become quicker.
_TRIAL = 20


#: For how many steps, and for how many seconds at least, a queue must not have been empty; for so long the newest go
#: first then.
_STANDING_STEPS = 4
_LEAST_STANDING = 0.1


class QueuePosition(NamedTuple):
    """Where a job would wait: in this lane, behind this many of its items, and this many jobs of its own sequence."""

    lane: Lane[Any]
    before: int
    own: int = 0


class Overload:
    """The times of a model's steps, and what follows for the jobs that wait.

    Args:
        workers: The workers that are up: a live view.
        size: How many jobs a worker runs at once.
        joins: Whether jobs join running ones, instead of running in batches.
    """

    __slots__ = ("_hopeless", "_joins", "_size", "_workers", "refused", "step_seconds")

    def __init__(self, workers: Mapping[str, WorkerLoad], size: int, *, joins: bool) -> None:
        self._workers = workers
        self._size = size
        self._joins = joins
        #: How long the latest steps took, each from when its job was sent until a worker returned it: the last job of a
        #: batch, or a job that has joined others. The scheduler adds to it.
        self.step_seconds = deque[float](maxlen=_STEPS_REMEMBERED)
        self._hopeless = 0  # jobs that no worker, even an idle one, could answer in time
        #: How many jobs were refused so far.
        self.refused = 0

    def gave_up(self, lane: Lane[Any], now: float) -> None:
        """The client of a job of the lane has left, while its job waited or ran."""
        interval = _LEAST_STANDING
        if self.step_seconds:
            interval = max(interval, _STANDING_STEPS * sum(self.step_seconds) / len(self.step_seconds))
        if lane.items and now - lane.since >= interval:
            lane.newest_first_until = now + interval

    def refuses(self, job: Job, place: QueuePosition, now: float) -> bool:
        """Whether a job with a time limit, which would wait there, cannot be in time; if it can, limit when it begins.

        What has never been measured cannot be too slow.
        """
        if not self.step_seconds or job.expires_at is None:
            return False
        mean = sum(self.step_seconds) / len(self.step_seconds)
        wait = self._wait(place, mean, now)
        begins_by = job.expires_at
        if job.answer_by is not None:
            begins_by = min(begins_by, job.answer_by - self._needed(job.answer_by - now, mean))
        if now + wait < begins_by:
            job.expires_at = begins_by
            return False
        if not wait:
            self._hopeless += 1
            if self._hopeless % _TRIAL == 0:
                return False
        self.refused += 1
        return True

    def _needed(self, left: float, mean: float) -> float:
        """Return how many of the seconds that are `left` must be kept for the step itself, when a job begins.

        At most half of what a mean step leaves is kept in reserve. Where even a mean step takes too long, what the
        quickest took must be left.
        """
        if left <= mean:
            return min(self.step_seconds)
        deviation = sum(abs(seconds - mean) for seconds in self.step_seconds) / len(self.step_seconds)
        return mean + min(max(_LEAST_RESERVE, _DEVIATIONS * deviation), (left - mean) / 2)

    def _wait(self, place: QueuePosition, mean: float, now: float) -> float:
        """Return how many seconds a job will wait there, if every step takes the mean; 0 if a worker is idle."""
        lane, before, own = place
        wait = own * mean
        if lane.free:
            return wait
        running = [
            next(iter(worker.in_flight.values())).sent_at + mean - now
            for worker in self._workers.values()
            if worker.lane is lane and worker.in_flight and not worker.retiring
        ]
        if not running:
            return wait
        if self._joins:
            return wait + (before + 1) * mean / (self._size * len(running))
        turns, which = divmod(before // self._size, len(running))
        return wait + turns * mean + max(0.0, sorted(running)[which])
