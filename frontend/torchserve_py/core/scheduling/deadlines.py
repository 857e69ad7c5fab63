"""One heap of deadlines for everything that waits for a moment: jobs, sequences, lanes."""

import heapq
from itertools import count
from typing import Protocol

SMALLEST_CLEANING = 1_000


class HasDeadline(Protocol):
    """Something with a deadline that may move later, or disappear, without notice."""

    timer: int

    def due(self, now: float) -> float | None:
        """When it is due; None if never.

        If that is not known yet: a moment after `now` before which it is certainly not due. It is asked again then.
        """


class Deadlines:
    """A heap of entries: at most one valid entry for a thing, no later than due; `thing.timer` is its number or 0.

    An entry names its thing by that number: the collector does not look at tuples that hold nothing but numbers.
    A deadline that moves later leaves its entry where it is: when the entry comes to the top, the thing is asked again.
    So an idle deadline that moves with every step costs nothing per step. Obsolete entries are dropped when they come
    to the top, or all together whenever the heap has doubled, which keeps memory in proportion.
    """

    __slots__ = ("_cleaning_size", "_order", "_things", "heap")

    def __init__(self) -> None:
        #: The entries, each with its moment first.
        self.heap: list[tuple[float, int]] = []
        self._things: dict[int, HasDeadline] = {}
        self._order = count(1)
        self._cleaning_size = SMALLEST_CLEANING

    def __len__(self) -> int:
        return len(self.heap)

    def next(self) -> float | None:
        """Return the first moment at which something may be due."""
        return self.heap[0][0] if self.heap else None

    def start_timer(self, thing: HasDeadline, now: float) -> None:
        """Have `pop` return the thing once it is due, unless it has a timer already. That ends its timer."""
        if thing.timer or (due := thing.due(now)) is None:
            return
        thing.timer = next(self._order)
        self._things[thing.timer] = thing
        heapq.heappush(self.heap, (due, thing.timer))
        if len(self.heap) > self._cleaning_size:
            self._drop_ended(now)

    def bring_forward(self, thing: HasDeadline, now: float) -> None:
        """Let a timer, if there is one, start again: the thing is due earlier now."""
        if thing.timer:
            self.end_timer(thing)
            if (due := thing.due(now)) is not None and due > now:
                self.start_timer(thing, now)

    def pop(self, now: float) -> HasDeadline | None:
        """Return a thing that is due by now, or None."""
        heap = self.heap
        while heap and heap[0][0] <= now:
            number = heap[0][1]
            thing = self._things.get(number)
            due = None if thing is None else thing.due(now)
            if due is not None and due > now:
                heapq.heapreplace(heap, (due, number))
                continue
            heapq.heappop(heap)
            if thing is not None:
                self.end_timer(thing)
                if due is not None:
                    return thing
        return None

    def end_timer(self, thing: HasDeadline) -> None:
        """Forget a thing with a timer, and with it all that it holds; its entry counts no more."""
        del self._things[thing.timer]
        thing.timer = 0

    def _drop_ended(self, now: float) -> None:
        for thing in list(self._things.values()):
            if thing.due(now) is None:
                self.end_timer(thing)
        self.heap = [entry for entry in self.heap if entry[1] in self._things]
        heapq.heapify(self.heap)
        self._cleaning_size = max(SMALLEST_CLEANING, 2 * len(self.heap))
