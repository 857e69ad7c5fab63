"""Named families of instruments, and Prometheus' text format 0.0.4 for them.

The format is written here and not by prometheus_client, which appends `_total` to the names of counters: TorchServe's
are called `Requests2XX` and `ts_inference_latency_microseconds` and nothing else.
"""

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, Generic, NamedTuple, TypeVar, cast
from weakref import WeakValueDictionary

from torchserve_py.base.logs.unfit_characters import fit
from torchserve_py.base.metrics.catalog import COUNTER, CUSTOM_BOUNDS, GAUGE, HISTOGRAM, SERVER_METRICS, Declaration
from torchserve_py.base.metrics.instruments import Counter, Gauge, Histogram, Instrument, Updatable, number

I_co = TypeVar("I_co", bound=Instrument, covariant=True)
U = TypeVar("U", Counter, Gauge, Histogram)

#: The media type of the format.
METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_NOT_IN_METRIC_NAMES = re.compile(r"[^a-zA-Z0-9_:]")
_NOT_IN_LABEL_NAMES = re.compile(r"[^a-zA-Z0-9_]")
#: The labels of all instruments, each once.
_keys: Final = WeakValueDictionary[frozenset[tuple[str, str]], frozenset[tuple[str, str]]]()


class Series(NamedTuple, Generic[I_co]):
    """One instrument of a family and the labels that it is shown with: names and values, and as text."""

    labels: Mapping[str, str]
    text: str
    instrument: I_co


class Family(Generic[I_co]):
    """All instruments that share a name; each has labels of its own, whose order does not matter.

    `make` makes an instrument. `description` is the HELP text, None for TorchServe's. `label_names` are shown in place
    of the names that `child` gets, in the same order.
    """

    def __init__(
        self,
        name: str,
        make: Callable[[], I_co],
        unit: str,
        description: str | None = None,
        label_names: Sequence[str] | None = None,
    ) -> None:
        self.name = name
        self.unit = unit
        probe = make()
        self.kind = probe.kind
        self._sample_names = frozenset(name + suffix for suffix in probe.suffixes)
        self._make = make
        self._description = description or f"Torchserve prometheus {self.kind} metric with unit: {unit}"
        self._label_names = label_names
        self._children: dict[frozenset[tuple[str, str]], Series[I_co]] = {}

    def child(self, labels: Mapping[str, str]) -> I_co:
        """The instrument with these labels, at zero when it is asked for the first time. Keep it: this is slow."""
        key = frozenset(labels.items())
        if key not in self._children:
            self.show(labels, self._make())
        return self._children[key].instrument

    def unshown(self) -> I_co:
        """An instrument at zero, for `show`."""
        return self._make()

    def show(self, labels: Mapping[str, str], instrument: I_co) -> None:  # type: ignore[misc]  # it is one of `unshown`
        """Shows an instrument that `unshown` has made with these labels."""
        key, shown = frozenset(labels.items()), labels
        if self._label_names is not None and list(labels) != list(self._label_names):
            shown = dict(zip(self._label_names, labels.values(), strict=True))
        # Many families have the same labels: a model's take a tenth of the memory if they share what names them.
        self._children[_keys.setdefault(key, key)] = Series(shown, sys.intern(_label_text(shown)), instrument)

    def remove(self, labels: Mapping[str, str]) -> None:
        """Forgets the instrument with these labels, if there is one."""
        self._children.pop(frozenset(labels.items()), None)

    @property
    def taken_names(self) -> frozenset[str]:
        """The names that no other family may have: its own and those of its samples."""
        return self._sample_names | {self.name}

    @property
    def series(self) -> Iterable[Series[I_co]]:
        """All instruments with their labels, as of now: another thread may add one meanwhile."""
        return list(self._children.values())

    @property
    def is_empty(self) -> bool:
        """Whether there is no instrument."""
        return not self._children

    def lines(self, names: set[str] | None) -> Iterator[str]:
        """The family as text; with `names` only the samples that are called so."""
        if names is not None and names.isdisjoint(self._sample_names):
            return
        yield f"# HELP {self.name} {_escape(self._description)}\n"
        yield f"# TYPE {self.name} {self.kind}\n"
        for _, labels, child in self.series:
            for suffix, label, value in child.samples():
                name = self.name + suffix
                if names is None or name in names:
                    yield f"{name}{{{labels}{label}}} {number(value)}\n"


def instrument_maker(kind: str, bounds: Sequence[float] = CUSTOM_BOUNDS) -> Callable[[], Updatable]:
    """What makes an instrument of a type, a histogram with these bounds."""
    makers: dict[str, Callable[[], Updatable]] = {COUNTER: Counter, GAUGE: Gauge, HISTOGRAM: partial(Histogram, bounds)}
    return makers[kind]


class ServerFamilies:
    """A family for each metric that the server measures, and for those that only a script of the operator has.

    Iterates over those that are listed, which are shown.
    """

    def __init__(self, listed: Mapping[str, Declaration]) -> None:
        self.declared: Final = listed
        self._families = {name: self._family(name) for name in {**SERVER_METRICS, **self.declared}}

    def __iter__(self) -> Iterator[Family[Updatable]]:
        return iter([family for name, family in self._families.items() if name in self.declared])

    def shown(self, name: str) -> Family[Updatable] | None:
        """The family of a metric that is listed; None for any other."""
        return self._families[name] if name in self.declared else None

    def child(self, kind: type[U], name: str, labels: Mapping[str, str]) -> U:
        """The instrument of a metric with these labels; see `Family.child`."""
        return cast("Family[U]", self._families[name]).child(labels)

    def unshown(self, kind: type[U], name: str) -> U:
        """An instrument of a metric that is not shown yet; see `Family.show`."""
        return cast("Family[U]", self._families[name]).unshown()

    def show(self, name: str, labels: Mapping[str, str], instrument: Updatable) -> None:
        """Shows an instrument that `unshown` has made; see `Family.show`."""
        self._families[name].show(labels, instrument)

    def remove(self, labels: Mapping[str, str]) -> None:
        """Forgets the instruments with these labels."""
        for family in self._families.values():
            family.remove(labels)

    def _family(self, name: str) -> Family[Updatable]:
        declared = self.declared.get(name) or SERVER_METRICS[name]
        own = SERVER_METRICS.get(name, declared)
        make = instrument_maker(declared.kind, own.bounds)
        label_names = [label_name(each) for each in declared.dimensions]
        return Family(metric_name(name), make, declared.unit, own.description, label_names)


def expose(families: Iterable[Family[Instrument]], names: set[str] | None = None) -> Iterator[str]:
    """The text that a scrape gets, line by line; with `names` only the samples that are called so."""
    return (line for family in families for line in family.lines(names))


def metric_name(text: str) -> str:
    """`text` with what Prometheus does not allow in a metric's name replaced. Empty where it is empty."""
    fitting = _NOT_IN_METRIC_NAMES.sub("_", text)
    return f"_{fitting}" if fitting[:1].isdigit() else fitting


def label_name(text: str) -> str:
    """`text` with what Prometheus does not allow in a label's name replaced."""
    fitting = _NOT_IN_LABEL_NAMES.sub("_", text)
    return f"_{fitting}" if not fitting or fitting[0].isdigit() else fitting


def _label_text(labels: Mapping[str, str]) -> str:
    """`a="1",b="2",`: TorchServe's client library writes a comma after the last label too, which the format allows."""
    return "".join(f'{name}="{_escape_label(value)}",' for name, value in labels.items())


def _escape(text: str) -> str:
    """`text` as the format wants it; what could deceive who reads it, or has no bytes in UTF-8, is spelled out."""
    return r"\n".join([fit(line).replace("\\", r"\\") for line in text.split("\n")])


def _escape_label(text: str) -> str:
    return _escape(text).replace('"', r"\"")
