"""Windows: which entries of a sequence an `Arena` keeps if its fields have a window, and which units hold them.

A sequence's entries have positions 0, 1, 2 …; unit ``k`` of a sequence holds ``entries`` of them from ``k * entries``
on. A state has the units that hold pinned entries, then those that hold the window; the units between are forgotten.
So a window that moves on takes a unit at its end and drops one at its beginning, and nothing is ever moved or
overwritten.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeVar

import torch

_Unit = TypeVar("_Unit")


class Window(NamedTuple):
    """The entries that are kept of a sequence: the first ``pinned`` ones and the last ``size``."""

    size: int
    pinned: int

    @property
    def width(self) -> int:
        """The most entries that are kept."""
        return self.pinned + self.size

    def kept(self, start: int, length: int) -> tuple[range, range]:
        """Return the positions from ``start`` on that are kept of a sequence that has had ``length`` entries."""
        pinned_end = min(length, max(start, self.pinned))
        return range(start, pinned_end), range(max(pinned_end, length - self.size), length)

    def positions(self, lengths: torch.Tensor) -> torch.Tensor:
        """Return the positions of the kept entries in order, [rows, width], with -1 before those of a short row.

        Args:
            lengths: How many entries each row has had, integers [rows].
        """
        missing = (self.width - lengths).clamp(min=0)[:, None]
        order = torch.arange(self.width, device=lengths.device) - missing
        forgotten = (lengths - self.width).clamp(min=0)[:, None]
        return torch.where(order < self.pinned, order, order + forgotten).clamp(min=-1)


class Units(NamedTuple):
    """The units of a state.

    Attributes:
        entries: The entries of one unit.
        window: The entries that are kept; None keeps all.
    """

    entries: int
    window: Window | None = None

    @property
    def pinned(self) -> int:
        """The units that hold pinned entries."""
        return 0 if self.window is None else -(-self.window.pinned // self.entries)

    @property
    def most(self) -> int | None:
        """The most units that a state has; None without a window."""
        return None if self.window is None else self.pinned + (self.window.size + self.entries - 2) // self.entries + 1

    def forgotten(self, length: int) -> int:
        """Return how many units between the pinned ones and the window are forgotten after ``length`` entries."""
        if self.window is None:
            return 0
        return max(0, (length - self.window.size) // self.entries - self.pinned)

    def count(self, length: int) -> int:
        """Return how many units a state has after ``length`` entries."""
        count = -(-length // self.entries)
        return count if self.window is None else count - self.forgotten(length)

    def kept(self, units: tuple[_Unit, ...], before: int, after: int) -> tuple[_Unit, ...]:
        """Return which units of a state of ``before`` entries one of ``after`` entries has as well: its first ones."""
        if self.window is None:
            return units
        dropped = self.forgotten(after) - self.forgotten(before)
        return units[: self.pinned] + units[self.pinned + dropped :] if dropped else units

    def written(self, start: int, length: int) -> Iterator[tuple[range, int]]:
        """Yield the positions from ``start`` on that a state of ``length`` entries keeps, unit by unit.

        With them comes the place of their unit among those of the state, -1 for the last one.
        """
        if length == start + 1:  # as in most steps
            yield range(start, length), -1
            return
        pinned, forgotten = self.pinned, self.forgotten(length)
        for kept in (range(start, length),) if self.window is None else self.window.kept(start, length):
            first = kept.start
            while first < kept.stop:
                unit = first // self.entries
                end = min(kept.stop, (unit + 1) * self.entries)
                yield range(first, end), unit if unit < pinned else unit - forgotten
                first = end

    def places(self, positions: torch.Tensor, lengths: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        """Return where in the arena's memory entries are, counted in entries, [rows, n]; 0 for positions below 0.

        Args:
            positions: Of the entries, [rows, n].
            lengths: How many entries each row has had, [rows].
            table: The numbers of each row's units in the memory, [rows, most units].
        """
        units = positions.clamp(min=0) // self.entries
        if self.window is not None:
            forgotten = ((lengths - self.window.size).clamp(min=0) // self.entries - self.pinned).clamp(min=0)
            units = torch.where(units < self.pinned, units, units - forgotten[:, None])
        return torch.where(positions >= 0, table.gather(1, units) * self.entries + positions % self.entries, 0)
