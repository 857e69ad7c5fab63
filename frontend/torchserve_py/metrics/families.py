"""Named families of instruments, and Prometheus' text format 0.0.4 for them.

The format is written here and not by prometheus_client, which appends `_total` to the names of counters: TorchServe's
are called `Requests2XX` and `ts_inference_latency_microseconds` and nothing else.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

from torchserve_py.metrics.instruments import Instrument, number

I_co = TypeVar("I_co", bound=Instrument, covariant=True)

_NOT_IN_METRIC_NAMES = re.compile(r"[^a-zA-Z0-9_:]")
_NOT_IN_LABEL_NAMES = re.compile(r"[^a-zA-Z0-9_]")


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
            shown = labels
            if self._label_names is not None:
                shown = dict(zip(self._label_names, labels.values(), strict=True))
            self._children[key] = Series(shown, _label_text(shown), self._make())
        return self._children[key].instrument

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


def expose(families: Iterable[Family[Instrument]], names: set[str] | None = None) -> bytes:
    """The text that a scrape gets; with `names` only the samples that are called so."""
    return "".join(line for family in families for line in family.lines(names)).encode()


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
    return text.replace("\\", r"\\").replace("\n", r"\n")


def _escape_label(text: str) -> str:
    return _escape(text).replace('"', r"\"")
