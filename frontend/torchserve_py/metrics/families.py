"""Named families of instruments, and Prometheus' text format 0.0.4 for them.

The format is written here and not by prometheus_client, which appends `_total` to the names of counters: TorchServe's
are called `Requests2XX` and `ts_inference_latency_microseconds` and nothing else.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Generic, TypeVar

from torchserve_py.metrics.instruments import Instrument, number

I_co = TypeVar("I_co", bound=Instrument, covariant=True)


class Family(Generic[I_co]):
    """All instruments that share a name; each has labels of its own, whose order does not matter."""

    def __init__(self, name: str, make: Callable[[], I_co], description: str) -> None:
        self.name = name
        probe = make()
        self.kind = probe.kind
        self._sample_names = frozenset(name + suffix for suffix in probe.suffixes)
        self._make = make
        self._description = description
        self._children: dict[frozenset[tuple[str, str]], tuple[str, I_co]] = {}

    def child(self, labels: Mapping[str, str]) -> I_co:
        """The instrument with these labels, at zero when it is asked for the first time. Keep it: this is slow."""
        key = frozenset(labels.items())
        if key not in self._children:
            self._children[key] = (_label_text(labels), self._make())
        return self._children[key][1]

    def remove(self, labels: Mapping[str, str]) -> None:
        """Forgets the instrument with these labels, if there is one."""
        self._children.pop(frozenset(labels.items()), None)

    @property
    def taken_names(self) -> frozenset[str]:
        """The names that no other family may have: its own and those of its samples."""
        return self._sample_names | {self.name}

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
        for labels, child in self._children.values():
            for suffix, label, value in child.samples():
                name = self.name + suffix
                if names is None or name in names:
                    yield f"{name}{{{labels}{label}}} {number(value)}\n"


def expose(families: Iterable[Family[Instrument]], names: set[str] | None = None) -> bytes:
    """The text that a scrape gets; with `names` only the samples that are called so."""
    return "".join(line for family in families for line in family.lines(names)).encode()


def torchserve_description(kind: str, unit: str) -> str:
    """TorchServe's HELP text."""
    return f"Torchserve prometheus {kind} metric with unit: {unit}"


def _label_text(labels: Mapping[str, str]) -> str:
    """`a="1",b="2",`: TorchServe's client library writes a comma after the last label too, which the format allows."""
    return "".join(f'{name}="{_escape_label(value)}",' for name, value in labels.items())


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


def _escape_label(text: str) -> str:
    return _escape(text).replace('"', r"\"")
