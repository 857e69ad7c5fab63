"""In which order the items of a lane are taken, where that is not the order in which they have come."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from torchserve_py.core.scheduling.job import Job

Item = TypeVar("Item")


#: While some items are more urgent than others, the oldest is taken once in this many times. As large a part of a full
#: queue is left to those that are less urgent.
OLDEST_EVERY: Final = 8


class Due(NamedTuple):
    """When an item that waits is due (monotonic seconds), and whether its session has a guarantee."""

    at: float
    is_guaranteed: bool
    item: Any


class Order(Protocol[Item]):
    """The order of one lane, whose items are jobs, or sequences of which the next job counts.

    Each call gets the items ``waiting``, with the new one and without the removed one, in the order in which they would
    be taken without it.
    """

    @property
    def decides(self) -> bool:
        """Whether it has an order of its own now; else the first of those waiting is taken."""

    @property
    def is_settled(self) -> bool:
        """Whether no item that comes later goes before all that wait now."""

    def due(self, most: int) -> Sequence[Due]:
        """Return the deadlines of the first items with deadlines, ``most`` at most, in the order of the items."""

    def with_deadlines(self, waiting: OrderedDict[Item, float]) -> "Order[Item]":
        """Return the order of a lane whose items may have deadlines; it takes the place of this one."""

    def add(self, item: Item, waiting: OrderedDict[Item, float], *, newest_first: bool) -> None:
        """Note that an item was added, behind the others of its kind or, with ``newest_first``, before them."""

    def put_back(self, item: Item, waiting: OrderedDict[Item, float]) -> None:
        """Note that an item was put in front of all others, where it may have been waiting already."""

    def first(self, waiting: OrderedDict[Item, float]) -> Item:
        """Return the item to be taken next, one of those waiting; it is asked only while it `decides`."""

    def took(self, item: Item) -> None:
        """Note that an item was taken: the `first`, the first of those waiting while it did not decide, or another."""

    def withdraw(self, item: Item) -> None:
        """Note that an item was removed that will not be taken."""

    def before(self, job: Job, waiting: OrderedDict[Item, float], *, newest_first: bool) -> int:
        """Return how many items go before a new one with this job; some that were withdrawn may count."""

    def makes_room(self, job: Job, waiting: OrderedDict[Item, float]) -> Item | None:
        """Return which item of a full queue is refused in place of a new one with this job; None if that one is."""


#: Makes the order of a lane, from what returns the job of an item, and from whether priorities of jobs count.
NewOrder = Callable[[Callable[[Any], Job], bool], Order[Any]]
