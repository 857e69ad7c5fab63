"""Counters, gauges and histograms: plain attributes without locks, because one event loop is their only writer.

An instrument holds only its value; `families.Family` adds names and labels when the value is read.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple, Protocol, TypeAlias


class Sample(NamedTuple):
    """One number of an instrument: what follows the metric's name, one more label as text (or ""), the value."""

    suffix: str
    label: str
    value: float


class Instrument(Protocol):
    """What is shown of an instrument."""

    @property
    def kind(self) -> str: ...  # its type for Prometheus
    @property
    def suffixes(self) -> tuple[str, ...]: ...  # what follows the metric's name in its samples
    def samples(self) -> Iterator[Sample]: ...  # the numbers to show now


class Counter:
    """A number that only grows."""

    kind: Final = "counter"
    suffixes: Final = ("",)
    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0

    def inc(self, amount: float = 1) -> None:
        """Adds `amount`, which must not be negative (not checked: this is the hot path)."""
        self.value += amount

    update = inc

    def samples(self) -> Iterator[Sample]:
        yield Sample("", "", self.value)


class Gauge:
    """A number that is set, or read from its owner when it is shown."""

    kind: Final = "gauge"
    suffixes: Final = ("",)
    __slots__ = ("_source", "renewed", "value")

    def __init__(self) -> None:
        self.value: float = 0
        #: Whether it was `set`, even to the same value, since the metric log looked at it.
        self.renewed = False
        self._source: Callable[[], float] | None = None

    def set(self, value: float) -> None:
        """Replaces the value."""
        self.value = value
        self.renewed = True

    update = set

    def read_from(self, source: Callable[[], float]) -> None:
        """From now on shows what `source` returns."""
        self._source = source

    def read(self) -> float:
        """The value now."""
        return self.value if self._source is None else self._source()

    def samples(self) -> Iterator[Sample]:
        yield Sample("", "", self.read())


class Histogram:
    """How many observations were at most as large as each bound."""

    kind: Final = "histogram"
    suffixes: Final = ("_bucket", "_sum", "_count")
    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum: float = 0

    def observe(self, value: float) -> None:
        """Counts `value` in the first bucket whose bound is not below it."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    update = observe

    def observe_all(self, values: Sequence[float]) -> None:
        """Counts each of `values`."""
        counts = self.counts
        for bucket in map(partial(bisect_left, self.bounds), values):
            counts[bucket] += 1
        self.sum += sum(values)

    def samples(self) -> Iterator[Sample]:
        total = 0
        for bound, count in zip((*self.bounds, math.inf), self.counts, strict=True):
            total += count
            yield Sample("_bucket", f'le="{number(bound)}",', total)
        yield Sample("_sum", "", self.sum)
        yield Sample("_count", "", total)


#: What handlers, scripts and the server itself update; the others are computed when they are shown.
Updatable: TypeAlias = Counter | Gauge | Histogram


def number(value: float) -> str:
    """A number as the text format writes it."""
    if value == math.inf:
        return "+Inf"
    if value == -math.inf:
        return "-Inf"
    return "NaN" if math.isnan(value) else repr(float(value))
