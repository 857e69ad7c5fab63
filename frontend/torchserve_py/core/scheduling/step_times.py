"""How long batches of each size take: measured, and what follows for sizes that were not measured."""

from collections import deque
from collections.abc import Mapping

#: How many of the latest batches of a size count.
_REMEMBERED = 64
#: By how many mean deviations a batch may take longer than the mean. As TCP has it (RFC 6298).
_DEVIATIONS = 4
#: From how many batches of a size, and up to how many times that size, larger batches are taken to go on as before, and
#: by how much faster than that their time may grow.
_TRUSTED = 8
_FURTHER = 2
_STEEPER = 1.25
#: What is known is looked at again after so many batches, and earlier while there were fewer than 16 times as many.
_MOST_NEW = 16


class StepTimes:
    """The times of a model version's batches, each from when it was sent until its last answer.

    Larger batches are taken to last at least as long as smaller ones, and no longer than several smaller ones in turn.
    """

    __slots__ = ("_by_size", "_most", "_new", "_old", "_quickest", "_table")

    def __init__(self, most: int) -> None:
        """Begin without measurements; ``most`` is the size of a full batch."""
        self._most = most
        self._by_size: dict[int, deque[float]] = {}
        self._new = self._old = 0  # how many batches were measured since the table was computed, and before that
        self._table: tuple[float, ...] | None = None
        self._quickest = 0.0

    def note(self, size: int, seconds: float) -> None:
        """Note that a batch of this size has taken so long."""
        times = self._by_size.get(size)
        if times is None:
            times = self._by_size[size] = deque(maxlen=_REMEMBERED)
        times.append(seconds)
        self._new += 1

    @property
    def count(self) -> int:
        """How many batches were measured."""
        return self._old + self._new

    @property
    def quickest(self) -> float:
        """How many seconds a step takes at the least, by the latest batches; 0 without measurements."""
        self._refresh()
        return self._quickest

    @property
    def table(self) -> tuple[float, ...] | None:
        """How many seconds a batch takes at the most, by its size from 0 to that of a full one; None if unknown."""
        self._refresh()
        return self._table

    def _refresh(self) -> None:
        if self._new > min(_MOST_NEW, self._old / _MOST_NEW):
            self._old, self._new = self._old + self._new, 0
            self._table = _table(self._by_size, self._most)
            self._quickest = min(map(min, self._by_size.values()))


def _table(by_size: Mapping[int, deque[float]], size: int) -> tuple[float, ...]:
    """Return how long batches take at the most, by their size from 0 to ``size``."""
    known = {number: _at_most(times) for number, times in by_size.items()}
    table, least = [0.0] * (size + 1), float("inf")
    for number in range(size, 0, -1):
        least = min(least, known.get(number, least))
        table[number] = least
    largest = max(known)
    slope, trusted = _slope(by_size)
    for number in range(largest + 1, size + 1):
        table[number] = number // largest * table[largest] + table[number % largest]
        if number <= _FURTHER * trusted:
            table[number] = min(table[number], table[trusted] + (number - trusted) * slope)
    return tuple(table)


def _slope(by_size: Mapping[int, deque[float]]) -> tuple[float, int]:
    """Return how many seconds one more step takes in batches of the sizes that are well known, and the largest."""
    means = {size: sum(times) / len(times) for size, times in by_size.items() if len(times) >= _TRUSTED}
    if len(means) < 2:
        return 0.0, 0
    least, most = min(means), max(means)
    return _STEEPER * max(0.0, means[most] - means[least]) / (most - least), most


def _at_most(times: deque[float]) -> float:
    """Return how long the next batch takes at the most; fewer times are trusted less.

    The longest counts where steps of different kinds take different times, the deviation where one took far too long.
    """
    mean = sum(times) / len(times)
    deviation = sum(abs(each - mean) for each in times) / len(times)
    return min(max(times), mean + _DEVIATIONS * deviation) * (1 + 2 / len(times))
