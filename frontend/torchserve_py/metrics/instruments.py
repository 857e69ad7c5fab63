"""Counters, gauges and histograms: plain attributes without locks, because one event loop is their only writer.

An instrument holds only its value; `families.Family` adds names and labels when the value is read.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar, NamedTuple, Protocol


class Sample(NamedTuple):
    """One number of an instrument: what follows the metric's name, one more label as text (or ""), the value."""

    suffix: str
    label: str
    value: float


class Instrument(Protocol):
    """What the exposition needs of an instrument."""

    kind: ClassVar[str]
    suffixes: ClassVar[tuple[str, ...]]

    def samples(self) -> Iterator[Sample]:
        """The numbers to show now."""
        ...


class Counter:
    """A number that only grows."""

    kind: ClassVar[str] = "counter"
    suffixes: ClassVar[tuple[str, ...]] = ("",)
    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0

    def inc(self, amount: float = 1) -> None:
        """Adds `amount`, which must not be negative (not checked: this is the hot path)."""
        self.value += amount

    def samples(self) -> Iterator[Sample]:
        """The numbers to show now."""
        yield Sample("", "", self.value)


class Gauge:
    """A number that is set, or read from its owner when it is shown."""

    kind: ClassVar[str] = "gauge"
    suffixes: ClassVar[tuple[str, ...]] = ("",)
    __slots__ = ("_source", "renewed", "value")

    def __init__(self) -> None:
        self.value: float = 0
        #: Whether it was `set` since somebody made this false, be it to the value that it had.
        self.renewed = False
        self._source: Callable[[], float] | None = None

    def set(self, value: float) -> None:
        """Replaces the value."""
        self.value = value
        self.renewed = True

    def read_from(self, source: Callable[[], float]) -> None:
        """From now on shows what `source` returns."""
        self._source = source

    def read(self) -> float:
        """The value now."""
        return self.value if self._source is None else self._source()

    def samples(self) -> Iterator[Sample]:
        """The numbers to show now."""
        yield Sample("", "", self.read())


class Histogram:
    """How many observations were at most as large as each bound."""

    kind: ClassVar[str] = "histogram"
    suffixes: ClassVar[tuple[str, ...]] = ("_bucket", "_sum", "_count")
    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum: float = 0

    def observe(self, value: float) -> None:
        """Counts `value` in the first bucket whose bound is not below it."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def samples(self) -> Iterator[Sample]:
        """The numbers to show now."""
        total = 0
        for bound, count in zip((*self.bounds, math.inf), self.counts, strict=True):
            total += count
            yield Sample("_bucket", f'le="{number(bound)}",', total)
        yield Sample("_sum", "", self.sum)
        yield Sample("_count", "", total)


def update(instrument: Instrument, value: float) -> None:
    """Adds to a counter, sets a gauge, observes with a histogram."""
    if isinstance(instrument, Gauge):
        instrument.set(value)
    elif isinstance(instrument, Histogram):
        instrument.observe(value)
    elif isinstance(instrument, Counter):
        instrument.inc(value)


def number(value: float) -> str:
    """A number as the text format writes it."""
    if value == math.inf:
        return "+Inf"
    if value == -math.inf:
        return "-Inf"
    return "NaN" if math.isnan(value) else repr(float(value))
