"""Lanes, the workers that take their batches from them, and what a scheduler and its sources share.

Under `Fifo` every worker takes from one shared lane of jobs. Under `Sequences` each worker has a lane of its own, which
holds its ready sequences. Where clients have given priorities, a `Ranking` is the order in which items are taken.
"""

import heapq
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Generic, NamedTuple, TypeVar

from torchserve_py.scheduling.deadlines import Deadlines
from torchserve_py.scheduling.effects import Cause, Effect, Finish
from torchserve_py.scheduling.job import CANCELLED, JOB_TRANSITIONS, Job

Item = TypeVar("Item")


class Lane(ABC, Generic[Item]):
    """Items that a worker may take, oldest first, each with the moment at which it became takeable."""

    __slots__ = ("ahead", "busy", "delay", "free", "items", "jobs_ahead", "timer")

    def __init__(self, delay: float) -> None:
        # Items also leave from the middle (a cancelled job) and enter at the front (a sequence that joins its stream).
        self.items: OrderedDict[Item, float] = OrderedDict()
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
    def take(self, room: int) -> list[Job]:
        """Remove and return the next jobs for one worker, `room` at most; they are in flight from now on."""

    def due(self, now: float) -> float | None:
        """When the oldest item will have waited long enough for a fuller batch; None if there is none."""
        for takeable_at in self.items.values():
            return takeable_at + self.delay
        return None

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
    retiring: bool = False

    def __repr__(self) -> str:
        return f"WorkerLoad({self.id!r}, in_flight={list(self.in_flight)}{', retiring' if self.retiring else ''})"


#: The priority of a job without a priority, which comes after all others. 1 comes first, then 2 …
UNSET = 0


class Ranking(list[tuple[bool, int, int, Item]]):
    """Waiting items by priority, the oldest first among equals: a heap.

    Empty, and of no cost, until an item with a priority comes; from then on it has every waiting item, until none waits
    any more. An item comes once.
    """

    def __init__(self) -> None:
        super().__init__()
        self._order = count()

    def add(self, item: Item, priority: int, waiting: Collection[Item]) -> None:
        """Add an item to those that are `waiting`, which are in the order in which they came."""
        if not self:
            self[:] = [(True, UNSET, next(self._order), other) for other in waiting]  # sorted, and so a heap
        heapq.heappush(self, (priority == UNSET, priority, next(self._order), item))

    def take(self, waiting: Collection[Item]) -> Item:
        """Remove and return the next of the items `waiting`."""
        while (item := heapq.heappop(self)[3]) not in waiting:
            pass
        if len(waiting) == 1:
            self.clear()
        return item

    def withdraw(self, waiting: Collection[Item]) -> None:
        """An item was withdrawn; these are still `waiting`."""
        if len(self) > 2 * len(waiting):
            self[:] = [entry for entry in self if entry[3] in waiting]
            heapq.heapify(self)


class SharedState:
    """`jobs` are those accepted and not yet over, `accepted` is the number of all so far.

    `effects` are those of the present event so far, `lanes_to_serve` the lanes in which it has made something sendable;
    both are empty between events.
    """

    __slots__ = ("accepted", "deadlines", "effects", "jobs", "lanes_to_serve")

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self.deadlines = Deadlines()
        self.effects: list[Effect] = []
        self.lanes_to_serve: list[Lane[Any]] = []
        self.accepted = 0

    def accept(self, job: Job, now: float) -> None:
        """Add a job; it leaves once, through `leave`."""
        job.state = JOB_TRANSITIONS[job.state, "accept"]
        self.jobs[job.id] = job
        job.number = self.accepted
        self.accepted += 1
        if job.expires_at is not None:
            self.deadlines.start_timer(job, now)

    def leave(self, job: Job, cause: Cause | None) -> None:
        """Remove a job; there is no other way out. `cause` is None if its worker has answered it.

        A cancelled job that was in flight has had its outcome already and gets no other.
        """
        if cause is None:
            job.state = JOB_TRANSITIONS[job.state, "answer"]
        else:
            if job.state is not CANCELLED:
                self.effects.append(Finish(job, cause))
            job.state = JOB_TRANSITIONS[job.state, "finish"]
        self.jobs.pop(job.id, None)
