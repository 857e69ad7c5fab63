"""When a worker takes more jobs: once it is idle, or while it runs fewer than n."""

from collections.abc import Mapping
from typing import Any

from torchserve_py.core.scheduling.lane import Lane, WorkerLoad


class WhenIdle:
    """One batch at a time, which waits at most `lane.delay` to become fuller."""

    __slots__ = ("_batch_size",)

    def __init__(self, batch_size: int) -> None:
        self._batch_size = batch_size

    def room(self, worker: WorkerLoad) -> int:
        """Return how many jobs the worker may take: a whole batch, but only when nothing is in flight."""
        return 0 if worker.in_flight else self._batch_size

    def takes(self, worker: WorkerLoad, lane: Lane[Any], now: float) -> int:
        """Return how many jobs a worker with room takes from the lane."""
        return self._batch_size

    def choose(self, free: Mapping[str, WorkerLoad]) -> WorkerLoad:
        """Return the worker that takes next, of those in the order in which they became free: the longest idle."""
        return next(iter(free.values()))

    def waits(self, lane: Lane[Any], now: float) -> bool:
        """Whether to wait for a fuller batch: others could still join, and the oldest has not waited long enough."""
        size = len(lane.items)
        if size >= self._batch_size or size >= lane.members:
            return False
        return lane.waits(now)


class WhileBelow:
    """Jobs join a worker's running ones at once while these are fewer than n."""

    __slots__ = ("_n",)

    def __init__(self, n: int) -> None:
        self._n = n

    def room(self, worker: WorkerLoad) -> int:
        """Return how many jobs the worker may take: those missing to n."""
        return self._n - len(worker.in_flight)

    def takes(self, worker: WorkerLoad, lane: Lane[Any], now: float) -> int:
        """Return how many jobs a worker with room takes from the lane."""
        return self._n - len(worker.in_flight)

    def choose(self, free: Mapping[str, WorkerLoad]) -> WorkerLoad:
        """Return the worker that takes next: the one that runs the fewest jobs."""
        return min(free.values(), key=lambda worker: len(worker.in_flight))

    def waits(self, lane: Lane[Any], now: float) -> bool:
        """Never wait for more jobs."""
        return False
