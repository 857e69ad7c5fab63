"""Lanes, the workers that take their batches from them, and what a scheduler and its sources share.

Under `Fifo` every worker takes from one shared lane of jobs. Under `Sequences` each worker has a lane of its own, which
holds its ready sequences. Where not the first is taken first, an `Order` says which.

Every job enters and leaves here, whatever happens to it (`SharedState`; its states are `JOB_TRANSITIONS`):

    accept ──▶ jobs ── Lane.put ──▶ lane ── Lane.take ──▶ in flight ── answered ──▶ leave(job, None)
                │                     │                       │
                │                     │ refused by limits, deadline, cancelled, worker lost
                │                     └───────────────────────┴────────────────▶ leave(job, cause): one `Finish`
                └── waits, and another version gets it ────────────────────────▶ give_away(job): no `Finish`

A job whose worker is lost can also go back to its lane (`Lane.put_first`, see `lost_jobs`).
"""

from abc import ABC, abstractmethod
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from torchserve_py.base.causes import Cause
from torchserve_py.core.scheduling.deadlines import Deadlines
from torchserve_py.core.scheduling.effects import Effect, Finish
from torchserve_py.core.scheduling.job import CANCELLED, JOB_TRANSITIONS, Job
from torchserve_py.core.scheduling.order import Order

Item = TypeVar("Item")


class Lane(ABC, Generic[Item]):
    """Items that a worker may take, in their order, each with the moment at which it became takeable.

    The oldest goes first, unless `overload` has said that the newest do, or an `Order` says more. The first one's
    moment is the earliest of all.
    """

    __slots__ = (
        *("ahead", "busy", "delay", "free", "items", "jobs_ahead", "newest_first_until", "order", "since", "timer"),
    )

    def __init__(self, delay: float, order: Order[Item] | None) -> None:
        # Items also leave from the middle (a cancelled job) and enter at the front (a sequence that joins its stream).
        self.items: OrderedDict[Item, float] = OrderedDict()
        self.order = order
        self.since = 0.0  # since when it has had items all the time, if it has any
        self.newest_first_until = 0.0
        self.delay = delay  # how long an item may wait for a fuller batch
        self.free: dict[str, WorkerLoad] = {}  # the workers of this lane that have room, the longest free first
        self.busy: dict[str, WorkerLoad] = {}  # those that may be sent more ahead, the longest busy first
        self.ahead: dict[str, WorkerLoad] = {}  # those that were sent a batch ahead, the earliest batch first
        self.jobs_ahead = 0
        self.timer = 0

    @property
    @abstractmethod
    def members(self) -> int:
        """How many items the lane could hold at once: when it does, waiting for more is of no use."""

    @abstractmethod
    def may_go_ahead(self, room: int, now: float) -> bool:
        """Whether a batch for this room would be no fuller if it were formed when its worker is idle."""

    @abstractmethod
    def take(self, room: int, only: Item | None = None) -> list[Job]:
        """Remove and return the next jobs for one worker, `room` at most; they are in flight from now on.

        `only` is an item of the lane that goes alone, whosever turn it is.
        """

    def batch_answered(self, size: int, seconds: float, now: float) -> None:
        """Note that the lane's worker has answered a whole batch of this size, which took so many seconds.

        Nothing follows from it for jobs without a sequence: none of them leads to another one.
        """

    def is_newest_first(self, now: float) -> bool:
        """Whether a new item would go before those that wait."""
        return now < self.newest_first_until and bool(self.items)

    def put(self, item: Item, now: float) -> bool:
        """Add an item that has become takeable; return whether it goes before those that wait."""
        newest_first = self.is_newest_first(now)
        if newest_first:
            self._to_front(item, now)
        else:
            if not self.items:
                self.since, self.newest_first_until = now, 0.0
            self.items[item] = now
        if self.order is not None:
            self.order.add(item, self.items, newest_first=newest_first)
        return newest_first

    def put_first(self, item: Item, takeable_at: float) -> None:
        """Add an item that goes before all others."""
        self._to_front(item, takeable_at)
        if self.order is not None:
            self.order.put_back(item, self.items)

    def _to_front(self, item: Item, takeable_at: float) -> None:
        for earliest in self.items.values():
            takeable_at = min(takeable_at, earliest)
            break
        self.items[item] = takeable_at
        self.items.move_to_end(item, last=False)

    def first(self) -> Item:
        """Return the item that is to be taken next, one of those that the lane has."""
        if self.order is not None and self.order.decides:
            return self.order.first(self.items)
        return next(iter(self.items))

    def pop(self, item: Item) -> float:
        """Take the `first` item out, or one that goes before its turn; return since when it could be taken."""
        if self.order is not None:
            self.order.took(item)
        return self.items.pop(item)

    def take_first(self) -> Item:
        """Take the item out that is to be taken next, and return it."""
        order, items = self.order, self.items
        if order is None:
            return items.popitem(last=False)[0]
        item = order.first(items) if order.decides else next(iter(items))
        order.took(item)
        del items[item]
        return item

    def withdraw(self, item: Item) -> None:
        """Remove an item that is not to be taken; do nothing if the lane does not have it."""
        if self.items.pop(item, None) is not None and self.order is not None:
            self.order.withdraw(item)

    def before(self, job: Job, now: float) -> int:
        """Return how many items go before a new one with this job."""
        newest_first = self.is_newest_first(now)
        if self.order is not None:
            return self.order.before(job, self.items, newest_first=newest_first)
        return 0 if newest_first else len(self.items)

    def due(self, now: float) -> float | None:
        """When the oldest item will have waited long enough for a fuller batch; None if there is none."""
        for takeable_at in self.items.values():
            return takeable_at + self.delay
        return None

    def wait_no_longer(self, now: float) -> None:
        """Let the items go without a fuller batch."""
        oldest = next(iter(self.items))
        self.items[oldest] = min(self.items[oldest], now - self.delay)

    def waits(self, now: float) -> bool:
        """Whether the oldest item has not waited long enough for a fuller batch."""
        due = self.due(now)
        return due is not None and due > now


class AheadBatch(NamedTuple):
    """Jobs that were sent ahead; their number tells which batch was sent ahead earlier."""

    number: int
    jobs: list[Job]


@dataclass(slots=True, eq=False, repr=False)
class WorkerLoad:
    """What the scheduler knows of a worker: the lane that it takes jobs from, and its jobs in flight and ahead."""

    id: str
    lane: Lane[Any]
    in_flight: dict[str, Job] = field(default_factory=dict)
    ahead: list[AheadBatch] = field(default_factory=list)
    batch: int = 0  # how many jobs it was sent last, or has begun
    answered: list[Any] = field(default_factory=list)  # the sequences of those it has answered, kept by `Punctuality`
    retiring: bool = False
    rests: bool = False
    alone: Job | None = None  # the job that it has for itself, or beside those that it had before
    alone_until: float = 0.0  # for how long at most
    timer: int = 0  # kept by `Deadlines`
    vacated: int = 0  # how many callers of `Scheduler.vacate` have not reopened it
    gives: bool = False  # whether its sequences can move to other workers
    is_shut: bool = False  # whether it is given nothing, since it rests or has a job for itself

    def due(self, now: float) -> float | None:
        """When it no longer has a job for itself."""
        return None if self.alone is None else self.alone_until

    def __repr__(self) -> str:
        return f"WorkerLoad({self.id!r}, in_flight={list(self.in_flight)}{', retiring' if self.retiring else ''})"


class SharedState:
    """`jobs` are those accepted and not yet over, `accepted` is the number of all so far.

    `alone` are those that wait and share no batch: unbatched ones, and suspects (see `lost_jobs`).

    `effects` are those of the present event so far, `lanes_to_serve` the lanes in which it has made something sendable
    to a worker that may take it; both are empty between events.
    """

    __slots__ = ("accepted", "alone", "deadlines", "effects", "jobs", "lanes_to_serve")

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self.alone: dict[str, Job] = {}
        self.deadlines = Deadlines()
        self.effects: list[Effect] = []
        self.lanes_to_serve: list[Lane[Any]] = []
        self.accepted = 0

    def accept(self, job: Job, now: float) -> None:
        """Add a job; it leaves once, through `leave` or `give_away`."""
        job.state = JOB_TRANSITIONS[job.state, "accept"]
        self.jobs[job.id] = job
        self.accepted += 1
        if job.expires_at is not None:
            self.deadlines.start_timer(job, now)

    def leave(self, job: Job, cause: Cause | None) -> None:
        """Remove a job that is over. `cause` is None if its worker has answered it.

        A cancelled job that was in flight has had its outcome already and gets no other.
        """
        if cause is None:
            job.state = JOB_TRANSITIONS[job.state, "answer"]
        else:
            if job.state is not CANCELLED:
                self.effects.append(Finish(job, cause))
            job.state = JOB_TRANSITIONS[job.state, "finish"]
        self.jobs.pop(job.id, None)
        if job.timer:  # its deadline may be far, and the job holds a body
            self.deadlines.end_timer(job)

    def give_away(self, job: Job) -> None:
        """Remove a waiting job that another scheduler gets."""
        job.state = JOB_TRANSITIONS[job.state, "finish"]
        del self.jobs[job.id]
        if job.timer:
            self.deadlines.end_timer(job)
