"""Lanes, the workers that take their batches from them, and what a scheduler and its sources share.

Under `Fifo` every worker takes from one shared lane of jobs. Under `Sequences` each worker has a lane of its own, which
holds its ready sequences. Where clients have given priorities, a `Ranking` is the order in which items are taken.
"""

import math
from abc import ABC, abstractmethod
from bisect import bisect_left, insort
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
    """Items that a worker may take, in their order, each with the moment at which it became takeable.

    The oldest goes first, unless `overload` has said that the newest do. The first one's moment is the earliest of all.
    """

    __slots__ = ("ahead", "busy", "delay", "free", "items", "jobs_ahead", "newest_first_until", "since", "timer")

    def __init__(self, delay: float) -> None:
        # Items also leave from the middle (a cancelled job) and enter at the front (a sequence that joins its stream).
        self.items: OrderedDict[Item, float] = OrderedDict()
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
    def take(self, room: int) -> list[Job]:
        """Remove and return the next jobs for one worker, `room` at most; they are in flight from now on."""

    def is_newest_first(self, now: float) -> bool:
        """Whether a new item would go before those that wait."""
        return now < self.newest_first_until and bool(self.items)

    def put(self, item: Item, now: float) -> bool:
        """Add an item that has become takeable; return whether it goes before those that wait."""
        items = self.items
        if not items:
            self.since, self.newest_first_until = now, 0.0
        elif now < self.newest_first_until:
            self.put_first(item, now)
            return True
        items[item] = now
        return False

    def put_first(self, item: Item, takeable_at: float) -> None:
        """Add an item that goes before all others."""
        for earliest in self.items.values():
            takeable_at = min(takeable_at, earliest)
            break
        self.items[item] = takeable_at
        self.items.move_to_end(item, last=False)

    def due(self, now: float) -> float | None:
        """When the oldest item will have waited long enough for a fuller batch; None if there is none."""
        for takeable_at in self.items.values():
            return takeable_at + self.delay
        return None

    def wait_no_longer(self, now: float) -> None:
        """Let the items go without a fuller batch."""
        self.items[next(iter(self.items))] = now - self.delay

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


#: While some items have a priority, the oldest is taken once in this many times, so that no item waits for ever.
OLDEST_EVERY = 8


class Ranking(list[tuple[bool, int, int, Item]]):
    """Waiting items by priority, in ascending order: the last one goes first, the oldest among equals unless told else.

    Empty, and of no cost, until an item with a priority comes; from then on it has every waiting item, until none waits
    any more. An item comes once. Every `OLDEST_EVERY`th that is taken is the oldest, whatever its priority.
    """

    def __init__(self) -> None:
        super().__init__()
        self._order = count()
        self._taken = 0

    def add(self, item: Item, priority: int, waiting: Collection[Item], *, newest_first: bool) -> None:
        """Add an item, the first or the last of its equals; it is one of those `waiting`, which are in their order."""
        if not self:
            self[:] = [(False, UNSET, -next(self._order), other) for other in waiting if other is not item]
            self.reverse()
        order = next(self._order)
        insort(self, (*_urgency(priority), order if newest_first else -order, item))

    def before(self, priority: int, *, newest_first: bool) -> int:
        """Return how many items go before a new one of this priority; some that were withdrawn may count."""
        return len(self) - bisect_left(self, (*_urgency(priority), math.inf if newest_first else -math.inf))

    def take(self, waiting: Collection[Item]) -> Item:
        """Remove and return the next of the items `waiting`."""
        self._taken += 1
        if self._taken % OLDEST_EVERY:
            while (item := self.pop()[3]) not in waiting:
                pass
        else:  # its entry is skipped later
            item = next(iter(waiting))
        if len(waiting) == 1:
            self.clear()
        return item

    def last(self, waiting: Collection[Item]) -> Item:
        """Return the last of the items `waiting`."""
        while (item := self[0][3]) not in waiting:
            del self[0]
        return item

    def withdraw(self, waiting: Collection[Item]) -> None:
        """An item was withdrawn; these are still `waiting`."""
        if len(self) > 2 * len(waiting):
            self[:] = [entry for entry in self if entry[3] in waiting]


def is_more_urgent(priority: int, other: int) -> bool:
    """Whether an item of the one priority goes before an older one of the other."""
    return _urgency(priority) > _urgency(other)


def _urgency(priority: int) -> tuple[bool, int]:
    """Return what is the greater, the more urgent a priority is."""
    return priority != UNSET, -priority


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
