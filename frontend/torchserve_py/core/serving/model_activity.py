"""What operators watch of a model version, its activity and its open sequences, as plain values."""

import asyncio
import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from torchserve_py.base.metrics.deadline_metrics import DeadlineCounts
from torchserve_py.base.metrics.model_metrics import REFUSED_BY_HANDLER
from torchserve_py.core.scheduling import sequence as scheduled

#: Sequences that one turn of the event loop looks at: about a millisecond.
_LOOKED_AT_ONCE: Final = 2000


class Timing(NamedTuple):
    """Durations that were counted: how many in each bucket of `metrics.catalog.SECONDS_BOUNDS`, and their sum."""

    counts: Sequence[int]
    seconds: float


class Activity(NamedTuple):
    """The jobs of a model version: sums since its registration, then the state now."""

    succeeded: int
    succeeded_seconds: float  # from admission to the last part
    running_seconds: float  # as much of that time as the jobs spent in a worker
    failures: Mapping[str, int]  # jobs without an answer, by cause
    failed_seconds: float
    last_at: float  # monotonic seconds at which the last job ended, 0 if none has
    executions: Mapping[int, tuple[int, float]]  # by jobs that one call answered: calls and their seconds
    batches: Sequence[int]  # how many in each bucket of `metrics.catalog.BATCH_BOUNDS`
    batched: int  # jobs in these batches
    waiting: Timing  # of each job, until it went to a worker
    handler: Timing  # of each call of the handler
    first_part: Timing  # of each answer in parts, until the first one
    next_part: Timing  # of its parts, from one to the next
    queued: int  # jobs that wait
    running: int  # jobs that workers have
    workers: int  # workers that are ready
    workers_wanted: int
    sequences: int  # open sequences
    memory: int  # bytes of all workers
    deadlines: DeadlineCounts | None = None  # of jobs with deadlines, if there were any

    @property
    def failed(self) -> int:
        """Jobs without an answer, whatever the cause, but for those that the handler has refused: the clients' own."""
        return sum(self.failures.values()) - self.failures.get(REFUSED_BY_HANDLER, 0)


class SequenceStatus(NamedTuple):
    """An open sequence now; times are seconds."""

    id: str
    state: str
    age: float
    idle: float | None  # since its last job ended; None while it has a job
    worker_id: str | None  # None while no worker has room for the sequence
    waiting: int
    in_flight: int


class SequencePage(NamedTuple):
    """Some of the open sequences: those that were asked for first."""

    open: int
    found: int
    sequences: Sequence[SequenceStatus]


class SequenceOrder(StrEnum):
    """Which sequences come first."""

    oldest = "oldest"
    newest = "newest"
    idle = "idle"  # the longest idle first; sequences with a job are left out


async def page_of_sequences(
    live: Iterable[scheduled.Sequence], text: str, order: SequenceOrder, limit: int, now: Callable[[], float]
) -> SequencePage:
    """Return at most ``limit`` of the open sequences, which are ``live``, oldest first, whose ids hold ``text``.

    Other work of the event loop goes on between two thousand sequences. ``now`` is the clock of the scheduler.
    """
    every = list(live)
    found: list[scheduled.Sequence] = []
    for start in range(0, len(every), _LOOKED_AT_ONCE):
        if start:
            await asyncio.sleep(0)
        slice_ = every[start : start + _LOOKED_AT_ONCE]
        found += [each for each in slice_ if text in each.id and each.state is not scheduled.CLOSED]
    if order is SequenceOrder.idle:
        found = [each for each in found if each.state is scheduled.IDLE]
        first = heapq.nsmallest(limit, found, key=lambda each: each.idle_since)
    else:
        first = found[:limit] if order is SequenceOrder.oldest else found[: -limit - 1 : -1]
    moment = now()
    return SequencePage(len(every), len(found), [_status(each, moment) for each in first])


def _status(sequence: scheduled.Sequence, now: float) -> SequenceStatus:
    return SequenceStatus(
        id=sequence.id,
        state=sequence.state.value,
        age=now - sequence.active_since,
        idle=now - sequence.idle_since if sequence.state is scheduled.IDLE else None,
        worker_id=sequence.lane.worker_id,
        waiting=len(sequence.waiting) + len(sequence.successors),
        in_flight=len(sequence.in_flight),
    )
