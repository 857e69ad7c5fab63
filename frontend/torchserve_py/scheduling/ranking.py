"""The order in which waiting items are taken where clients have given priorities."""

import heapq
from collections.abc import Collection
from itertools import count
from typing import Generic, TypeVar

Item = TypeVar("Item")

UNSET = 0
"""The priority of a job without a priority, which comes after all others. 1 comes first, then 2 …"""


class Ranking(Generic[Item]):
    """Waiting items by priority, the oldest first among equals.

    Empty, and of no cost, until an item with a priority comes; from then on it has every waiting item, until none waits
    any more. An item comes once.
    """

    __slots__ = ("_heap", "_order")

    def __init__(self) -> None:
        self._heap: list[tuple[bool, int, int, Item]] = []
        self._order = count()

    def __bool__(self) -> bool:
        return bool(self._heap)

    def add(self, item: Item, priority: int, waiting: Collection[Item]) -> None:
        """Add an item to those that are `waiting`, which are in the order in which they came."""
        if not self._heap:
            self._heap = [(True, UNSET, next(self._order), other) for other in waiting]  # sorted, and so a heap
        heapq.heappush(self._heap, (priority == UNSET, priority, next(self._order), item))

    def pop(self, waiting: Collection[Item]) -> Item:
        """Remove and return the next of the items `waiting`."""
        while (item := heapq.heappop(self._heap)[3]) not in waiting:
            pass
        if len(waiting) == 1:
            self._heap.clear()
        return item

    def withdraw(self, waiting: Collection[Item]) -> None:
        """An item was withdrawn; these are still `waiting`."""
        if len(self._heap) > 2 * len(waiting):
            self._heap = [entry for entry in self._heap if entry[3] in waiting]
            heapq.heapify(self._heap)
