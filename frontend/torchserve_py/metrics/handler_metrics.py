"""Metrics that handlers make up: `context.metrics.add_counter(...)` in a worker becomes a series here.

A handler is free to send anything, so its series are bounded, its names are made to fit the format, and a name that the
server uses itself is not given away. What is refused is logged once per model and metric.
"""

import logging
import math
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeAlias

from torchserve_py.metrics.families import Family, torchserve_description
from torchserve_py.metrics.instruments import Counter, Gauge, Histogram, Instrument

logger = logging.getLogger(__name__)

MAX_SERIES_PER_MODEL = 1000
"""Combinations of name and dimensions. A handler with more has put something without bound into a dimension."""
MAX_DIMENSIONS = 20
MAX_LENGTH = 500
"""Characters of a name or of a dimension's value."""
BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
"""TorchServe's buckets for custom histograms, in whatever unit they are."""

TIMES = ("HandlerTime", "PredictionTime")
"""The gauges that every model has: milliseconds of the last BaseHandler.handle, and of the last call of any handler."""

_MAKERS: dict[str, Callable[[], Instrument]] = {
    "counter": Counter,
    "gauge": Gauge,
    "histogram": lambda: Histogram(BOUNDS),
}
_NOT_IN_METRIC_NAMES = re.compile(r"[^a-zA-Z0-9_:]")
_NOT_IN_LABEL_NAMES = re.compile(r"[^a-zA-Z0-9_]")


_Key: TypeAlias = tuple[str, str, tuple[tuple[str, str], ...]]
"""Name, type and dimensions as the handler gave them."""


class _Refused(ValueError):
    """The entry cannot be shown; the text says why."""


class _Series(NamedTuple):
    instrument: Instrument
    family: Family[Instrument]
    labels: dict[str, str]


class HandlerMetrics:
    """Series by type, name and dimensions, and which model each belongs to.

    taken: names that handlers cannot use.
    """

    def __init__(self, hostname: str, taken: Iterable[str]) -> None:
        self._hostname = hostname
        self._taken = frozenset(taken)
        self._times = [Family(name, Gauge, torchserve_description("gauge", "ms")) for name in TIMES]
        self._families: dict[str, Family[Instrument]] = {family.name: family for family in self._times}
        self._models: dict[str, dict[_Key, _Series]] = {}
        self._warned: dict[str, set[str]] = {}

    def __iter__(self) -> Iterator[Family[Instrument]]:
        return iter(list(self._families.values()))

    def register(self, model_name: str) -> Gauge:
        """Makes the two series that every model has; returns its PredictionTime."""
        known = self._models.setdefault(model_name, {})
        dimensions = {"ModelName": model_name, "Level": "Model"}
        labels = {**dimensions, "Hostname": self._hostname}
        for family in self._times:
            known[family.name, "gauge", tuple(dimensions.items())] = _Series(family.child(labels), family, labels)
        return self._times[1].child(labels)

    def record(self, model_name: str, entries: Iterable[Any]) -> None:
        """Takes `[name, unit, type, value, [[dimension, value], ..], request ids]` entries of a worker of the model.

        What comes from a worker whose model was forgotten meanwhile is dropped.
        """
        known = self._models.get(model_name)
        if known is None:
            return
        for entry in entries:
            try:
                self._record(known, entry)
            except _Refused as refusal:
                self._warn(model_name, entry, refusal)

    def forget(self, model_name: str) -> None:
        """Takes away the series that no other model has a part in."""
        leaving = self._models.pop(model_name, {})
        self._warned.pop(model_name, None)
        staying = {id(series.instrument) for known in self._models.values() for series in known.values()}
        for series in leaving.values():
            if id(series.instrument) not in staying:
                series.family.remove(series.labels)
        for name, family in list(self._families.items()):
            if family.is_empty and name not in TIMES:
                del self._families[name]

    def _record(self, known: dict[_Key, _Series], entry: Any) -> None:
        try:
            name, unit, kind, value, dimensions, _ = entry
            key = (name, kind, tuple([(dimension, text) for dimension, text in dimensions]))
            series = known.get(key)
        except (TypeError, ValueError):
            raise _Refused("it is not [name, unit, type, value, dimensions, request ids]") from None
        if isinstance(value, bool) or not isinstance(value, (float, int)) or not math.isfinite(value):
            raise _Refused(f"its value is {value!r:.50}, not a finite number")
        if kind == "counter" and value < 0:
            raise _Refused(f"a counter cannot grow by {value}")
        instrument = (series or self._add(known, key, unit)).instrument
        if isinstance(instrument, Gauge):
            instrument.set(value)
        elif isinstance(instrument, Histogram):
            instrument.observe(value)
        elif isinstance(instrument, Counter):
            instrument.inc(value)

    def _add(self, known: dict[_Key, _Series], key: _Key, unit: str) -> _Series:
        if len(known) >= MAX_SERIES_PER_MODEL:
            raise _Refused(f"the model has {MAX_SERIES_PER_MODEL} series already; use fewer values of dimensions")
        _check_texts(key, unit)
        name, kind, dimensions = key
        labels = {**_labels(dimensions, kind), "Hostname": self._hostname}
        family = self._family(_metric_name(name), kind, unit)
        series = known[key] = _Series(family.child(labels), family, labels)
        return series

    def _family(self, name: str, kind: str, unit: str) -> Family[Instrument]:
        family = self._families.get(name)
        if family is None:
            family = Family(name, _MAKERS[kind], torchserve_description(kind, unit))
            taken = self._taken.union(*(other.taken_names for other in self._families.values()))
            if not taken.isdisjoint(family.taken_names):
                raise _Refused("another metric has that name already; choose a different one")
            self._families[name] = family
        elif family.kind != kind:
            raise _Refused(f"it is a {family.kind} already and cannot also be a {kind}")
        return family

    def _warn(self, model_name: str, entry: Any, refusal: _Refused) -> None:
        warned = self._warned.setdefault(model_name, set())
        name = str(entry[0])[:MAX_LENGTH] if isinstance(entry, list | tuple) and entry else "(none)"
        if name not in warned and len(warned) < MAX_SERIES_PER_MODEL:
            warned.add(name)
            logger.warning("Metric %r of model %s is not recorded: %s", name, model_name, refusal)


def _check_texts(key: _Key, unit: str) -> None:
    name, kind, dimensions = key
    if kind not in _MAKERS:
        raise _Refused(f"its type is {kind!r:.50}, not one of {', '.join(_MAKERS)}")
    if len(dimensions) > MAX_DIMENSIONS:
        raise _Refused(f"it has {len(dimensions)} dimensions, at most {MAX_DIMENSIONS} are kept")
    for text in (name, unit, *(text for pair in dimensions for text in pair)):
        if not isinstance(text, str) or len(text) > MAX_LENGTH:
            raise _Refused(f"{text!r:.50} is not a text of at most {MAX_LENGTH} characters")


def _metric_name(name: str) -> str:
    fitting = _NOT_IN_METRIC_NAMES.sub("_", name)
    if not fitting:
        raise _Refused("its name is empty")
    return f"_{fitting}" if fitting[0].isdigit() else fitting


def _labels(dimensions: tuple[tuple[str, str], ...], kind: str) -> dict[str, str]:
    labels: dict[str, str] = {}
    for dimension, value in dimensions:
        name = _NOT_IN_LABEL_NAMES.sub("_", dimension)
        name = f"_{name}" if not name or name[0].isdigit() else name
        if name.startswith("__") or (kind == "histogram" and name == "le"):
            raise _Refused(f"dimension {dimension!r} has a name that Prometheus keeps for itself")
        labels[name] = value
    return labels
