"""Which models make room for another one, and when that will be possible. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torchserve_py.fleet.memory_budget.footprint import Sizes


@dataclass(frozen=True, slots=True)
class Occupant:
    """A loaded model that may be unloaded at some time.

    Attributes:
        model: Whatever the caller knows it by.
        priority: Those with a lower one go first.
        idle_for: For how long it has had nothing to do (seconds); None while it works: it must not go.
        stays_for: For how long it stays because it was loaded just now (seconds).
        frees: What it takes.
    """

    model: Any
    priority: int
    idle_for: float | None
    stays_for: float
    frees: Sizes

    @property
    def may_go(self) -> bool:
        """Whether it may be unloaded now."""
        return self.idle_for is not None and self.stays_for <= 0


def to_unload(occupants: Sequence[Occupant], lacking: Sizes) -> list[Occupant]:
    """Return who makes room for what is ``lacking``: the lowest priority first, then who was idle for longest.

    Nobody goes in vain: it is empty where all who may go together do not free enough.
    """
    going: list[Occupant] = []
    ranked = sorted(
        (each for each in occupants if each.may_go), key=lambda each: (each.priority, -(each.idle_for or 0))
    )
    for each in ranked:
        if _frees(going, lacking):
            break
        if any(each.frees.get(resource) for resource in _short_of(going, lacking)):
            going.append(each)
    if not _frees(going, lacking):
        return []
    for each in reversed(going[:-1]):  # a large one at the end may make some before it unnecessary
        others = [other for other in going if other is not each]
        if _frees(others, lacking):
            going = others
    return going


def room_in(occupants: Sequence[Occupant], lacking: Sizes, works_for: float) -> float:
    """Return in how many seconds there can be room for what is ``lacking``; infinity: never.

    One that works is expected to work for as long as ``works_for``, unless it stays longer.
    """
    going: list[Occupant] = []
    wait = 0.0
    moments = [
        (max(0.0, each.stays_for, works_for if each.idle_for is None else 0.0), number)
        for number, each in enumerate(occupants)
    ]
    for moment, number in sorted(moments):
        if _frees(going, lacking):
            return wait
        going.append(occupants[number])
        wait = moment
    return wait if _frees(going, lacking) else math.inf


def _short_of(going: Sequence[Occupant], lacking: Sizes) -> list[str]:
    return [resource for resource, size in lacking.items() if size > sum(each.frees.get(resource, 0) for each in going)]


def _frees(going: Sequence[Occupant], lacking: Sizes) -> bool:
    return not _short_of(going, lacking)
