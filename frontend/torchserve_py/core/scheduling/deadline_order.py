"""The order in which requests are taken where some have deadlines: the earliest deadline first within a priority.

Steps of sessions with a guarantee go before all others. Within a priority, requests with deadlines go before those
without, which have another order. Of what has no guarantee, one of `OLDEST_EVERY` is the oldest without a
deadline, so that none waits for ever.
"""

import heapq
import math
from collections import OrderedDict
from collections.abc import Callable
from itertools import count
from typing import Final, Generic, NamedTuple, Self, TypeVar

from torchserve_py.core.scheduling.job import Job
from torchserve_py.core.scheduling.order import OLDEST_EVERY, Due, Order

Item = TypeVar("Item")

#: How many entries of the heap may be obsolete, beyond the number of those that are not.
_SPARE: Final = 64
_GUARANTEED: Final = -1.0


class _Entry(NamedTuple, Generic[Item]):
    """An item with a deadline; the least is taken first."""

    rank: float  # the priority; infinity for none
    due: float
    number: int
    item: Item


class DeadlineOrder(Generic[Item]):
    """A `scheduling.order.Order` for a lane some of whose items have deadlines.

    Args:
        turns: The order of what has no deadline, which has seen nothing yet.
        waiting: What waits in the lane.
    """

    def __init__(
        self,
        job_of: Callable[[Item], Job],
        by_priority: bool,
        turns: Order[Item],
        waiting: OrderedDict[Item, float],
    ) -> None:
        self._job_of = job_of
        self._by_priority = by_priority
        self._turns = turns
        self._numbers = count()
        self._taken = 0
        self._heap: list[_Entry[Item]] = []
        self._due: dict[Item, _Entry[Item]] = {}
        self._others: OrderedDict[Item, float] = OrderedDict()  # what has no deadline, in the order of the lane
        for item in waiting:
            self.add(item, waiting, newest_first=False)

    @property
    def decides(self) -> bool:
        """Whether an item has a deadline, or the others have an order of their own."""
        return bool(self._due) or self._turns.decides

    @property
    def is_settled(self) -> bool:
        """Whether no item has a deadline, and no later item goes before the others."""
        return not self._due and self._turns.is_settled

    def due(self, most: int) -> list[Due]:
        """See `Order.due`."""
        if not self._due:
            return []
        entries = heapq.nsmallest(most, self._due.values())
        return [Due(each.due, each.rank == _GUARANTEED, each.item) for each in entries]

    def with_deadlines(self, waiting: OrderedDict[Item, float]) -> Self:
        """Return this order."""
        return self

    def add(self, item: Item, waiting: OrderedDict[Item, float], *, newest_first: bool) -> None:
        """See `Order.add`."""
        job = self._job_of(item)
        if (timing := job.timing) is None or timing.is_late:
            self._others[item] = 0.0
            self._others.move_to_end(item, last=not newest_first)
            self._turns.add(item, self._others, newest_first=newest_first)
            return
        rank = _GUARANTEED if timing.is_guaranteed else self._rank(job)
        self._due[item] = entry = _Entry(rank, timing.due, next(self._numbers), item)
        heapq.heappush(self._heap, entry)
        if len(self._heap) > 2 * len(self._due) + _SPARE:
            self._heap = sorted(self._due.values())

    def _rank(self, job: Job) -> float:
        return job.priority if self._by_priority and job.priority else math.inf

    def put_back(self, item: Item, waiting: OrderedDict[Item, float]) -> None:
        """See `Order.put_back`; an item with a deadline keeps its place."""
        if item in self._due:
            return
        if (timing := self._job_of(item).timing) is not None and not timing.is_late:
            self.add(item, waiting, newest_first=False)
            return
        self._others[item] = 0.0
        self._others.move_to_end(item, last=False)
        self._turns.put_back(item, self._others)

    def first(self, waiting: OrderedDict[Item, float]) -> Item:
        """See `Order.first`."""
        if not self._due:
            return self._first_other()
        while self._due.get(self._heap[0].item) is not self._heap[0]:
            heapq.heappop(self._heap)
        rank, _, _, item = self._heap[0]
        if rank == _GUARANTEED or not self._others:
            return item
        if (self._taken + 1) % OLDEST_EVERY == 0:
            return next(iter(self._others))
        if self._by_priority and self._rank(self._job_of(other := self._first_other())) < rank:
            return other
        return item

    def _first_other(self) -> Item:
        return self._turns.first(self._others) if self._turns.decides else next(iter(self._others))

    def took(self, item: Item) -> None:
        """See `Order.took`."""
        entry = self._due.pop(item, None)
        if entry is None:
            self._turns.took(item)
            del self._others[item]
        if entry is None or entry.rank != _GUARANTEED:
            self._taken += 1

    def withdraw(self, item: Item) -> None:
        """See `Order.withdraw`."""
        if self._due.pop(item, None) is None:
            self._turns.withdraw(item)
            del self._others[item]

    def before(self, job: Job, waiting: OrderedDict[Item, float], *, newest_first: bool) -> int:
        """See `Order.before`."""
        return len(self._due) + self._turns.before(job, self._others, newest_first=newest_first)

    def makes_room(self, job: Job, waiting: OrderedDict[Item, float]) -> Item | None:
        """See `Order.makes_room`: nothing with a deadline is given up for another."""
        return self._turns.makes_room(job, self._others)
