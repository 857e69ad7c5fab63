"""A sequence: jobs that share state, in order. Its lifecycle, and the lane of the worker that holds its state.

PENDING ─ bind ▶ READY ─ send ▶ RUNNING ─ call ▶ READY (recall: back to RUNNING)
                   └──── rest ─────┴───── rest ▶ IDLE ─ call ▶ READY
                                   RUNNING ─ hold ▶ HELD ─ call ▶ READY
       READY, RUNNING, IDLE ─ leave ▶ MOVING ─ call ▶ READY (arrive: IDLE)
any of them ─ close ▶ CLOSED

PENDING  a job waits, no worker has a slot yet
READY    bound; its next job may be sent: the sequence is in its worker's lane
RUNNING  bound; it has a job in flight, and no other may be sent now
HELD     bound; another server has the sequence and was asked to let go; its next job is sent a moment later
MOVING   bound; no job is sent: once none is in flight, its state goes to another worker, or stays after all; or it
         comes from a server that has stopped
IDLE     bound; nothing waits, nothing is in flight: the idle deadline runs
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, TypeAlias

from torchserve_py.base.causes import CloseReason
from torchserve_py.core.scheduling.job import Job
from torchserve_py.core.scheduling.lane import Lane
from torchserve_py.core.scheduling.order import NewOrder
from torchserve_py.core.scheduling.policy import SequencePolicy
from torchserve_py.core.scheduling.transitions import Transitions


class SequenceState(StrEnum):
    """Where a sequence is between its first job and its end."""

    PENDING = "pending"
    READY = "ready"
    RUNNING = "running"
    HELD = "held"
    MOVING = "moving"
    IDLE = "idle"
    CLOSED = "closed"


PENDING, READY, RUNNING, HELD, MOVING, IDLE, CLOSED = SequenceState

SequenceEvent: TypeAlias = Literal["bind", "call", "send", "recall", "hold", "leave", "arrive", "rest", "close"]
SEQUENCE_TRANSITIONS = Transitions[SequenceState, SequenceEvent](
    {
        (PENDING, "bind"): READY,
        (PENDING, "close"): CLOSED,
        (READY, "send"): RUNNING,
        (READY, "recall"): RUNNING,
        (READY, "rest"): IDLE,
        (READY, "close"): CLOSED,
        (RUNNING, "call"): READY,
        (RUNNING, "rest"): IDLE,
        (RUNNING, "hold"): HELD,
        (HELD, "call"): READY,
        (HELD, "rest"): IDLE,
        (HELD, "close"): CLOSED,
        (RUNNING, "close"): CLOSED,
        (READY, "leave"): MOVING,
        (RUNNING, "leave"): MOVING,
        (IDLE, "leave"): MOVING,
        (MOVING, "rest"): MOVING,
        (MOVING, "call"): READY,
        (MOVING, "arrive"): IDLE,
        (MOVING, "close"): CLOSED,
        (IDLE, "call"): READY,
        (IDLE, "close"): CLOSED,
    }
)


@dataclass(slots=True, eq=False, repr=False)
class Sequence:
    """The jobs of one sequence id, from the first to the end of the sequence.

    The jobs are in tuples, since a sequence that rests then has no container of its own: the collector looks at all of
    those of every open sequence.
    """

    id: str
    lane: SequenceLane  # the lane of the worker that it is bound to, or that of the pending sequences
    waiting: tuple[Job, ...]  # jobs that were not sent yet
    ends_at: float  # when the sequence reaches its time limit
    idle_since: float
    active_since: float  # since when the sequence is known not to have been idle for too long
    state: SequenceState = PENDING
    #: Jobs for the next sequence of this id: they came when this one had reached its time limit and was busy.
    successors: tuple[Job, ...] = ()
    in_flight: tuple[Job, ...] = ()
    ending: CloseReason | None = None  # why the sequence closes as soon as none of its jobs is in flight, if it does
    has_state: bool = False  # whether a worker has had one of its jobs, and so state that can be lost
    has_succeeded: bool = False  # whether one of its jobs was answered without an error
    #: The tokens of its jobs that were answered: another one begins when a start marker ends what was there before.
    tokens: tuple[str, ...] = ()
    handed_over_by: object | None = None  # the version that had the job which opened it, and does not run it
    is_left: bool = False  # whether another server has left its state, which is to come to its worker
    held_until: float = 0.0  # when a held sequence may be asked for again
    step_seconds: float | None = None  # kept by `SequenceTimes`
    timer: int = 0  # kept by `Deadlines`

    def __repr__(self) -> str:
        return f"Sequence({self.id!r}, {self.state}, waiting={len(self.waiting)}, in_flight={len(self.in_flight)})"

    @property
    def queue(self) -> tuple[Job, ...]:
        """Its jobs that were not sent yet, in their order."""
        return (*self.waiting, *self.successors)

    def due(self, now: float) -> float | None:
        """When the sequence closes if nothing happens; None once it has."""
        if self.state is IDLE:
            return min(self.idle_since + self.lane.max_rest, self.ends_at)
        if self.state is CLOSED:
            return None
        if self.state is HELD:
            return self.held_until
        rested_at_the_earliest = now + self.lane.max_rest
        return min(rested_at_the_earliest, self.ends_at) if self.ends_at > now else rested_at_the_earliest

    def expiry(self) -> CloseReason:
        """Which of its deadlines an idle sequence reaches first."""
        lane = self.lane
        if self.ends_at <= self.idle_since + lane.max_rest:
            return CloseReason.timeout
        return CloseReason.suspended if lane.max_rest < lane.max_idle else CloseReason.idle


#: For how long the next batch waits for the sequences of the one before, as a share of the time that this took.
_WAITED_SHARE = 0.1
#: Timers of an event loop are no more exact than a millisecond: a shorter wait (seconds) would often be twice as long.
_SHORTEST_WAIT = 0.002


class SequenceLane(Lane[Sequence]):
    """One worker's ready sequences. `bound` are all that are bound to the worker, in the order in which they came.

    `running` of them, at most `most_running`, have a job in flight. One that rests for `max_rest` seconds leaves the
    worker, and is over after `max_idle` seconds. Pending sequences are in a lane without a worker.
    """

    __slots__ = ("_awaited", "_returns_until", "bound", "max_idle", "max_rest", "most_running", "running", "worker_id")

    def __init__(
        self, worker_id: str | None, most_running: int, delay: float, policy: SequencePolicy, order: NewOrder | None
    ) -> None:
        by_priority = worker_id is None  # steps of sequences take turns whatever their priority
        super().__init__(delay, None if order is None else order(lambda sequence: sequence.waiting[0], by_priority))
        self.bound: dict[Sequence, None] = {}
        self.worker_id = worker_id
        self.most_running = most_running
        self.max_idle = policy.max_idle
        self.max_rest = min(policy.max_rest, policy.max_idle)
        self.running = 0
        #: How many sequences are ready if those of the latest batch are again, and until when that is waited for.
        self._awaited, self._returns_until = 0, 0.0

    def batch_answered(self, size: int, seconds: float, now: float) -> None:
        """Let the next batch wait for the sequences of one that has just been answered, and took so many seconds.

        Otherwise clients that send the next step once they have an answer would form two groups for good: each waits
        while the batch of the other one runs.
        """
        wait = min(self.delay, seconds * _WAITED_SHARE)
        self._awaited = len(self.items) + size if wait >= _SHORTEST_WAIT else 0
        self._returns_until = now + wait

    def due(self, now: float) -> float | None:
        """When the next batch waits for no other sequence; None if none is ready."""
        for ready_since in self.items.values():
            due = ready_since + self.delay
            return due if len(self.items) >= self._awaited else max(due, self._returns_until)
        return None

    @property
    def members(self) -> int:
        """How many sequences are bound to the worker."""
        return len(self.bound)

    def may_go_ahead(self, room: int, now: float) -> bool:
        """Whether the batch is full (to others, next steps of what runs could be added) and nothing has a deadline."""
        return len(self.items) >= room and (self.order is None or self.order.is_settled)

    def take(self, room: int, only: Sequence | None = None) -> list[Job]:
        """Remove and return one job of each of the next sequences, as far as these may run together."""
        jobs: list[Job] = []
        items = self.items
        while items and len(jobs) < room:
            sequence = self.first() if only is None else only
            if not sequence.in_flight:
                if self.running < self.most_running:
                    self.running += 1
                elif only is not None or not (sequence := next(iter(items))).in_flight:
                    break  # else it joins one in flight: it is at the front, even if another has a deadline
            sequence.state = SEQUENCE_TRANSITIONS[sequence.state, "send"]
            ready_since = self.pop(sequence)
            job, sequence.waiting = sequence.waiting[0], sequence.waiting[1:]
            sequence.in_flight += (job,)
            job.ready_since = ready_since
            job.opens, job.active_since = not sequence.has_state, sequence.active_since
            sequence.has_state = True
            jobs.append(job)
        return jobs
