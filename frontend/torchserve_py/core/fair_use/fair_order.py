"""The order in which requests that wait are taken: by priority, and in turns between clients within a priority.

Turns are those of start-time fair queueing (P. Goyal, H. Vin, H. Cheng, "Start-time Fair Queueing", SIGCOMM 1996): each
waiting request has a start tag, the lowest goes first, and each request of a client puts the client's next tag off by
one over its weight. So a client with twice the weight has twice as many turns, one that asks for less than its share
waits for no more than one request of each other client, and the share of who does not ask goes to the others.

A tag belongs to a place in the queue of a client, not to a request: if a request leaves, the next of its client moves
up. Every `OLDEST_EVERY`th request that is taken while there are priorities is the oldest of all, so that none waits for
ever.
"""

import math
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final, Generic, NamedTuple, TypeVar

from torchserve_py.core.scheduling.deadline_order import DeadlineOrder
from torchserve_py.core.scheduling.job import Job
from torchserve_py.core.scheduling.order import OLDEST_EVERY, Due

Item = TypeVar("Item")

#: What has no priority comes after all that has one; 1 comes first, then 2 …
_UNSET: Final = 0
#: How many places may be spare, and clients remembered, beyond the same number as that of items.
_SPARE: Final = 64


@dataclass(slots=True, eq=False)
class _Backlog(Generic[Item]):
    """What waits of one client, of one priority."""

    client: str
    turns: "_Turns[Item]"
    weight: float = 1.0
    items: OrderedDict[Item, None] = field(default_factory=OrderedDict)
    next_tag: float = 0.0
    spare: int = 0  # its places in the queue beyond the number of items

    @property
    def length(self) -> float:
        """How long it is, by its client's share."""
        return len(self.items) / self.weight


@dataclass(slots=True, eq=False)
class _Turns(Generic[Item]):
    """The clients of one priority: whose turn it is. ``now`` is the tag of the place that was taken last."""

    urgency: float
    now: float = 0.0
    backlogs: dict[str, _Backlog[Item]] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """How many items wait."""
        return sum(len(each.items) for each in self.backlogs.values())

    def longest(self) -> _Backlog[Item]:
        """Return the backlog of who has the most waiting, by its share."""
        return max(self.backlogs.values(), key=lambda each: each.length)


class _Place(NamedTuple, Generic[Item]):
    """A place in the queue; the greatest is taken first."""

    urgency: float
    earliness: float  # the tag, negative
    number: int
    backlog: _Backlog[Item]


class FairOrder(Generic[Item]):
    """A `scheduling.order.Order`. It costs nothing while all that waits is of one client, without a priority."""

    def __init__(self, job_of: Callable[[Item], Job], by_priority: bool) -> None:
        self._job_of = job_of
        self._by_priority = by_priority
        self._numbers = count()
        self._taken = 0
        self._has_priorities = False  # whether an item has had one since none was waiting
        self._only = ""  # the client of all that waits, as long as it does not decide
        self._places: list[_Place[Item]] = []  # in ascending order
        self._turns: dict[float, _Turns[Item]] = {}
        self._backlog_of: dict[Item, _Backlog[Item]] = {}

    @property
    def decides(self) -> bool:
        """Whether several clients, or items with a priority, have been waiting since nothing did."""
        return bool(self._places)

    @property
    def is_settled(self) -> bool:
        """Whether no item has had a priority since none was waiting.

        With turns alone a later item goes before some, but not by much.
        """
        return not self._has_priorities

    def due(self, most: int) -> list[Due]:
        """Return nothing: deadlines do not count."""
        return []

    def with_deadlines(self, waiting: OrderedDict[Item, float]) -> DeadlineOrder[Item]:
        """See `Order.with_deadlines`."""
        turns = FairOrder(self._job_of, self._by_priority)
        return DeadlineOrder(self._job_of, self._by_priority, turns, waiting)

    def add(
        self, item: Item, waiting: OrderedDict[Item, float], *, newest_first: bool, tag: float | None = None
    ) -> None:
        """See `Order.add`."""
        if not self._places:
            job = self._job_of(item)
            if len(waiting) == 1:
                self._only = job.client
            if job.client == self._only and not self._has_priority(job):
                return  # as nearly always
            self._add_others(item, waiting)
        self._add(item, newest_first=newest_first, tag=tag)

    def put_back(self, item: Item, waiting: OrderedDict[Item, float]) -> None:
        """See `Order.put_back`."""
        if (backlog := self._backlog_of.get(item)) is not None:
            backlog.items.move_to_end(item, last=False)
        else:
            self.add(item, waiting, newest_first=True, tag=-math.inf)

    def _add_others(self, item: Item, waiting: OrderedDict[Item, float]) -> None:
        """Begin to decide."""
        for other in waiting:
            if other is not item:
                self._add(other)

    def _has_priority(self, job: Job) -> bool:
        return job.priority != _UNSET and self._by_priority

    def _urgency(self, job: Job) -> float:
        return -job.priority if self._has_priority(job) else -math.inf

    def _add(self, item: Item, *, newest_first: bool = False, tag: float | None = None) -> None:
        job = self._job_of(item)
        urgency = self._urgency(job)
        self._has_priorities |= urgency > -math.inf
        if (turns := self._turns.get(urgency)) is None:
            turns = self._turns[urgency] = _Turns(urgency)
        if (backlog := turns.backlogs.get(job.client)) is None:
            backlog = turns.backlogs[job.client] = _Backlog(job.client, turns)
        backlog.weight = job.weight
        backlog.items[item] = None
        self._backlog_of[item] = backlog
        if newest_first:
            backlog.items.move_to_end(item, last=False)
        if tag is None:
            if backlog.spare:
                backlog.spare -= 1
                return
            tag = max(turns.now, backlog.next_tag)
            backlog.next_tag = tag + 1 / job.weight
            number = -next(self._numbers)
        else:
            number = next(self._numbers)
        insort(self._places, _Place(urgency, -tag, number, backlog))

    def first(self, waiting: OrderedDict[Item, float]) -> Item:
        """See `Order.first`."""
        if self._has_priorities and (self._taken + 1) % OLDEST_EVERY == 0:
            return next(iter(waiting))
        while not (backlog := self._places[-1].backlog).items:
            backlog.spare -= 1
            self._places.pop()
        return next(iter(backlog.items))

    def took(self, item: Item) -> None:
        """See `Order.took`."""
        if not self._places:
            return
        self._taken += 1
        backlog = self._backlog_of[item]
        if self._places[-1].backlog is backlog:
            place = self._places.pop()
            backlog.turns.now = max(backlog.turns.now, -place.earliness)
        else:  # it was the oldest
            backlog.spare += 1
        self._forget(item)

    def withdraw(self, item: Item) -> None:
        """See `Order.withdraw`."""
        if (backlog := self._backlog_of.get(item)) is not None:
            backlog.spare += 1
            self._forget(item)

    def _forget(self, item: Item) -> None:
        backlog = self._backlog_of.pop(item)
        del backlog.items[item]
        if not self._backlog_of:
            self._places.clear()
            self._turns.clear()
            self._has_priorities = False
        elif len(self._places) > 2 * len(self._backlog_of) + _SPARE:
            self._drop_spare_places()
        if len(backlog.turns.backlogs) > 2 * len(self._backlog_of) + _SPARE:
            # Who has nothing waiting may be one turn early for it.
            backlog.turns.backlogs = {name: each for name, each in backlog.turns.backlogs.items() if each.items}

    def _drop_spare_places(self) -> None:
        kept: list[_Place[Item]] = []
        left = {backlog: len(backlog.items) for turns in self._turns.values() for backlog in turns.backlogs.values()}
        for place in reversed(self._places):
            if left.get(place.backlog, 0):
                left[place.backlog] -= 1
                kept.append(place)
                place.backlog.next_tag = max(0.0, -place.earliness) + 1 / place.backlog.weight
        for backlog in left:
            backlog.spare = 0
        self._places = kept[::-1]

    def before(self, job: Job, waiting: OrderedDict[Item, float], *, newest_first: bool) -> int:
        """See `Order.before`."""
        urgency = self._urgency(job)
        if not self._places:
            if urgency > -math.inf or (newest_first and job.client == self._only):
                return 0
            return len(waiting) if job.client == self._only else min(1, len(waiting))
        tag = 0.0
        if (turns := self._turns.get(urgency)) is not None:
            backlog = turns.backlogs.get(job.client)
            tag = turns.now if backlog is None or newest_first else max(turns.now, backlog.next_tag)
        return len(self._places) - bisect_left(self._places, (urgency, -tag, -math.inf))

    def makes_room(self, job: Job, waiting: OrderedDict[Item, float]) -> Item | None:
        """See `Order.makes_room`: first who is less urgent, then who has more waiting than the job's client would.

        Of both it is the last of the client that has the most waiting. Those who are less urgent keep one place in
        `OLDEST_EVERY`.
        """
        if not waiting:
            return None
        urgency = self._urgency(job)
        if not self._places:
            is_more = urgency > -math.inf or (job.client != self._only and len(waiting) > 1 / job.weight)
            return next(reversed(waiting)) if is_more else None
        least = min((each for each in self._turns.values() if each.size), key=lambda each: each.urgency)
        if urgency > least.urgency and least.size * OLDEST_EVERY > len(waiting):
            return next(reversed(least.longest().items))
        if (turns := self._turns.get(urgency)) is None:
            return None
        longest, own = turns.longest(), turns.backlogs.get(job.client)
        if longest is own or longest.length <= ((len(own.items) if own is not None else 0) + 1) / job.weight:
            return None
        return next(reversed(longest.items))


def new_order(job_of: Callable[[Any], Job], by_priority: bool) -> FairOrder[Any]:
    """Return the order of a lane, see `scheduling.order.NewOrder`."""
    return FairOrder(job_of, by_priority)
