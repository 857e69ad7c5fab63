"""The order in which waiting items are taken where clients have given priorities."""

import heapq
from collections.abc import Collection
from itertools import count
from typing import TypeVar

Item = TypeVar("Item")

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
