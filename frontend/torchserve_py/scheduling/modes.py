"""A scheduler is a product of two choices: where the next jobs come from, and when a worker takes more.

Sources: `Fifo` (one queue), `Sequences` (a queue per sequence). A source holds the waiting jobs in lanes, and adds a
lane to `SharedState.lanes_to_serve` when something in the lane may be sent that could not be sent before.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

from torchserve_py.scheduling.fifo import Fifo
from torchserve_py.scheduling.lane import Lane, SharedState, WorkerLoad
from torchserve_py.scheduling.policy import Policy
from torchserve_py.scheduling.sequence_source import Sequences

Source: TypeAlias = Fifo | Sequences


class WhenIdle:
    """One batch at a time, which waits at most `lane.delay` to become fuller."""

    __slots__ = ("_batch_size",)

    def __init__(self, batch_size: int) -> None:
        self._batch_size = batch_size

    def room(self, worker: WorkerLoad) -> int:
        """Return how many jobs the worker may take: a whole batch, but only when nothing is in flight."""
        return 0 if worker.in_flight else self._batch_size

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

    def choose(self, free: Mapping[str, WorkerLoad]) -> WorkerLoad:
        """Return the worker that takes next: the one that runs the fewest jobs."""
        return min(free.values(), key=lambda worker: len(worker.in_flight))

    def waits(self, lane: Lane[Any], now: float) -> bool:
        """Never wait for more jobs."""
        return False


Admission: TypeAlias = WhenIdle | WhileBelow


def compose(policy: Policy, shared: SharedState) -> tuple[Source, Admission]:
    """Return the source and the admission that a policy asks for. A job ticket is for one job: a batch of one."""
    size = policy.batch_size
    if policy.sequences is not None:
        if policy.continuous:
            return Sequences(shared, policy.sequences, size, 0.0, joins=True), WhileBelow(2 * size)
        return Sequences(shared, policy.sequences, size, policy.max_batch_delay, joins=False), WhenIdle(size)
    if policy.continuous:
        return Fifo(shared, policy.queue_size, tickets=policy.job_ticket), WhileBelow(size)
    size = 1 if policy.job_ticket else size
    return Fifo(shared, policy.queue_size, policy.max_batch_delay, tickets=policy.job_ticket), WhenIdle(size)
