"""How long batches of each size take: measured, and what follows for sizes that were not measured."""

from collections import deque

#: How many of the latest batches of a size count.
_REMEMBERED = 32
#: By how many mean deviations a batch may take longer than the mean. As TCP has it (RFC 6298).
_DEVIATIONS = 4


class StepTimes:
    """The times of a model version's batches, each from when it was sent until its last answer.

    Larger batches are taken to last at least as long as smaller ones, and no longer than several smaller ones in turn.
    """

    __slots__ = ("_by_size", "_changed", "_most", "_quickest", "_table")

    def __init__(self, most: int) -> None:
        """Begin without measurements; ``most`` is the size of a full batch."""
        self._most = most
        self._by_size: dict[int, deque[float]] = {}
        self._changed = False
        self._table: tuple[float, ...] | None = None
        self._quickest = 0.0

    def note(self, size: int, seconds: float) -> None:
        """Note that a batch of this size has taken so long."""
        times = self._by_size.get(size)
        if times is None:
            times = self._by_size[size] = deque(maxlen=_REMEMBERED)
        times.append(seconds)
        self._changed = True

    @property
    def quickest(self) -> float:
        """How many seconds a step takes at the least, by the latest batches; 0 without measurements."""
        self._compute()
        return self._quickest

    @property
    def table(self) -> tuple[float, ...] | None:
        """How many seconds a batch takes at the most, by its size from 0 to that of a full one; None if unknown."""
        self._compute()
        return self._table

    def _compute(self) -> None:
        if not self._changed:
            return
        self._changed = False
        most = {min(size, self._most): _at_most(times) for size, times in sorted(self._by_size.items())}
        table, least = [0.0] * (self._most + 1), float("inf")
        for size in range(self._most, 0, -1):
            least = min(least, most.get(size, least))
            table[size] = least
        largest = max(most)
        for size in range(largest + 1, self._most + 1):
            table[size] = size // largest * table[largest] + table[size % largest]
        self._table = tuple(table)
        self._quickest = min(map(min, self._by_size.values()))


def _at_most(times: deque[float]) -> float:
    """Return how long the next batch takes at the most; fewer times are trusted less."""
    mean = sum(times) / len(times)
    deviation = sum(abs(each - mean) for each in times) / len(times)
    return mean + _DEVIATIONS * max(deviation, mean / (2 * len(times)))
