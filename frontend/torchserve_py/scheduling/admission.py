"""When a worker takes more: once it is idle (batches), or while it runs fewer than n jobs (continuous, concurrent)."""

from collections.abc import Mapping
from typing import Any, Protocol

from torchserve_py.scheduling.lane import Lane, WorkerLoad


class Admission(Protocol):
    """How many jobs a worker may take now, which worker takes, and whether to wait for more jobs first."""

    def room(self, worker: WorkerLoad) -> int:
        """How many jobs the worker may take."""

    def choose(self, free: Mapping[str, WorkerLoad]) -> WorkerLoad:
        """The worker that takes next; `free` is not empty and in the order in which they became free."""

    def waits(self, lane: Lane[Any], now: float) -> bool:
        """Whether the lane's items are held back because a fuller batch is in sight."""


class WhenIdle:
    """One batch at a time, which waits at most `lane.delay` to become fuller."""

    __slots__ = ("_batch_size",)

    def __init__(self, batch_size: int) -> None:
        self._batch_size = batch_size

    def room(self, worker: WorkerLoad) -> int:
        """A whole batch, but only when nothing is in flight."""
        return 0 if worker.in_flight else self._batch_size

    def choose(self, free: Mapping[str, WorkerLoad]) -> WorkerLoad:
        """The one that has been idle longest."""
        return next(iter(free.values()))

    def waits(self, lane: Lane[Any], now: float) -> bool:
        """While the batch is not full, someone could still join, and the oldest has not waited long enough."""
        size = len(lane.items)
        if size >= self._batch_size or size >= lane.members:
            return False
        if lane.has_timer:  # its time is not over: what was due by now has none any more
            return True
        due = lane.due(now)
        return due is not None and due > now


class WhileBelow:
    """Jobs join a worker's running ones at once while these are fewer than n."""

    __slots__ = ("_n",)

    def __init__(self, n: int) -> None:
        self._n = n

    def room(self, worker: WorkerLoad) -> int:
        """What is missing to n."""
        return self._n - len(worker.in_flight)

    def choose(self, free: Mapping[str, WorkerLoad]) -> WorkerLoad:
        """The one that runs the fewest jobs."""
        return min(free.values(), key=lambda worker: len(worker.in_flight))

    def waits(self, lane: Lane[Any], now: float) -> bool:
        """Never."""
        return False
