"""Custom metrics of handlers: `context.metrics.add_counter(...)` in a worker becomes a series here.

A handler may send anything, so the number of its series is limited, its names are made valid for the format, and names
of the server's own metrics are refused. A refusal is logged once per model and metric. If the operator's file declares
a metric, the file determines its type, its unit and the names of its dimensions.
"""

import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from torchserve_py.base.logs.unfit_characters import fit
from torchserve_py.base.metrics.catalog import KINDS, MODEL_METRICS, PREDICTION_TIME, Declaration
from torchserve_py.base.metrics.families import Family, instrument_maker, label_name, metric_name
from torchserve_py.base.metrics.handler_metrics import HandlerMetrics, ShownMetric
from torchserve_py.base.metrics.instruments import Counter, Gauge, Updatable
from torchserve_py.base.metrics.metric_lines import LineForm, MetricLines
from torchserve_py.base.metrics.metrics_plan import MetricsConfigError, MetricsPlan
from torchserve_py.base.metrics.model_metrics import RecordPrediction

logger = logging.getLogger(__name__)

#: Combinations of name and dimensions. A handler with more has put something without bound into a dimension.
MAX_SERIES_PER_MODEL = 1000
MAX_DIMENSIONS = 20
#: Characters of a name or of a dimension's value.
MAX_LENGTH = 500

#: Name, type and dimensions as the handler gave them.
_Key: TypeAlias = tuple[str, str, tuple[tuple[str, str], ...]]


class _Refused(ValueError):
    """The entry cannot be shown; the text says why."""


class _Series(NamedTuple):
    instrument: Updatable
    family: Family[Updatable]
    labels: dict[str, str]
    line_form: LineForm | None


class CustomMetrics(HandlerMetrics):
    """Series by type, name and dimensions, and which model each belongs to.

    Handlers cannot use the names `taken`. `lines` gets every value. Raises MetricsConfigError where
    the plan lists a metric under a name that is taken.
    """

    def __init__(self, hostname: str, taken: Iterable[str], plan: MetricsPlan, lines: MetricLines) -> None:
        self._hostname = hostname
        self._taken = frozenset(taken)
        self._plan = plan
        self._lines = lines
        self._families: dict[str, Family[Updatable]] = {}
        for each in plan.model.values():
            try:
                self._family(metric_name(each.name), each.kind, each.unit)
            except _Refused as refusal:
                raise MetricsConfigError(f"model_metrics, {each.name}: {refusal}") from None
        self._models: dict[str, dict[_Key, _Series]] = {}
        self._warned: dict[str, set[str]] = {}

    def __iter__(self) -> Iterator[Family[Updatable]]:
        return iter(list(self._families.values()))

    def register(self, model_name: str) -> RecordPrediction:
        """Makes the series that every model has, as far as they are listed; returns what records PredictionTime."""
        known = self._models.setdefault(model_name, {})
        dimensions = (("ModelName", model_name), ("Level", "Model"))
        for name in MODEL_METRICS:
            if name in self._plan.model or self._plan.accepts_unlisted:
                self._add(known, (name, "gauge", dimensions), MODEL_METRICS[name].unit)
        series = known.get((PREDICTION_TIME, "gauge", dimensions))
        if series is None:
            return lambda milliseconds, job_ids, at: None
        return partial(self._record_prediction, series)

    def record(self, model_name: str, entries: Iterable[Any]) -> None:
        """Takes the entries of a worker of the model; see `HandlerMetrics.record`."""
        known = self._models.get(model_name)
        if known is None:
            return
        for entry in entries:
            try:
                self._record(known, entry)
            except _Refused as refusal:
                self._warn(model_name, entry, refusal)

    def shown(self, model_name: str) -> Iterator[ShownMetric]:
        """The numbers of a model's workers as they are now, without histograms."""
        for (name, _, dimensions), series in self._models.get(model_name, {}).items():
            if isinstance(series.instrument, Counter | Gauge):
                yield ShownMetric(name, dict(dimensions), series.instrument.value)

    def forget(self, model_name: str) -> None:
        """Takes away the series that no other model has a part in."""
        leaving = self._models.pop(model_name, {})
        self._warned.pop(model_name, None)
        staying = {id(series.instrument) for known in self._models.values() for series in known.values()}
        for series in leaving.values():
            if id(series.instrument) not in staying:
                series.family.remove(series.labels)
        listed = {metric_name(name) for name in self._plan.model}
        for name, family in list(self._families.items()):
            if family.is_empty and name not in listed:
                del self._families[name]

    def _record_prediction(self, series: _Series, milliseconds: float, job_ids: Sequence[str], at: float) -> None:
        milliseconds = round(milliseconds, 3)
        series.instrument.update(milliseconds)
        if series.line_form is not None:
            self._lines.note_of_handler(series.line_form, (milliseconds, ",".join(job_ids)), at)

    def _record(self, known: dict[_Key, _Series], entry: Any) -> None:
        try:
            name, unit, kind, value, dimensions, request_ids = entry
            key = (name, kind, tuple([(dimension, text) for dimension, text in dimensions]))
            series = known.get(key)
        except (TypeError, ValueError):
            raise _Refused("it is not [name, unit, type, value, dimensions, request ids]") from None
        if isinstance(value, bool) or not isinstance(value, (float, int)) or not math.isfinite(value):
            raise _Refused(f"its value is {value!r:.50}, not a finite number")
        if value < 0 and self._kind(name, kind) == "counter":
            raise _Refused(f"a counter cannot grow by {value}")
        if series is None:
            series = self._add(known, key, unit)
        series.instrument.update(value)
        if series.line_form is not None:
            ids = fit(request_ids) if isinstance(request_ids, str) else ""
            self._lines.note_of_handler(series.line_form, (float(value), ids))

    def _kind(self, name: str, kind: str) -> str:
        declaration = self._plan.model.get(name)
        return kind if declaration is None else declaration.kind

    def _add(self, known: dict[_Key, _Series], key: _Key, unit: str) -> _Series:
        if len(known) >= MAX_SERIES_PER_MODEL:
            raise _Refused(f"the model has {MAX_SERIES_PER_MODEL} series already; use fewer values of dimensions")
        _check_texts(key, unit)
        name, kind, dimensions = key
        declaration = self._plan.model.get(name)
        if declaration is not None:
            kind, unit, dimensions = declaration.kind, declaration.unit, _as_declared(declaration, dimensions)
        elif not self._plan.accepts_unlisted:
            raise _Refused("metrics_config does not list it; list it there, or set model_metrics_auto_detect=true")
        labels = {**_labels(dimensions, kind), "Hostname": self._hostname}
        family = self._family(metric_name(name), kind, unit)
        form = self._lines.handlers_form(name, unit, dimensions)
        series = known[key] = _Series(family.child(labels), family, labels, form)
        return series

    def _family(self, name: str, kind: str, unit: str) -> Family[Updatable]:
        if not name:
            raise _Refused("its name is empty")
        family = self._families.get(name)
        if family is None:
            family = Family(name, instrument_maker(kind), unit)
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
    if kind not in KINDS:
        raise _Refused(f"its type is {kind!r:.50}, not one of {', '.join(KINDS)}")
    if len(dimensions) > MAX_DIMENSIONS:
        raise _Refused(f"it has {len(dimensions)} dimensions, at most {MAX_DIMENSIONS} are kept")
    for text in (name, unit, *(text for pair in dimensions for text in pair)):
        if not isinstance(text, str) or len(text) > MAX_LENGTH:
            raise _Refused(f"{text!r:.50} is not a text of at most {MAX_LENGTH} characters")


def _as_declared(declaration: Declaration, dimensions: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """The dimensions with their declared names: by name if they are the same names, else by place as in TorchServe."""
    declared, given = declaration.dimensions, dict(dimensions)
    if given.keys() == set(declared):
        return tuple([(name, given[name]) for name in declared])
    if len(dimensions) != len(declared):
        raise _Refused(
            f"it has the dimensions {', '.join(given) or 'none'}; metrics_config lists {', '.join(declared) or 'none'}"
        )
    return tuple([(name, value) for name, (_, value) in zip(declared, dimensions, strict=True)])


def _labels(dimensions: tuple[tuple[str, str], ...], kind: str) -> dict[str, str]:
    labels: dict[str, str] = {}
    for dimension, value in dimensions:
        name = label_name(dimension)
        if name.startswith("__") or (kind == "histogram" and name == "le"):
            raise _Refused(f"dimension {dimension!r} has a name that Prometheus keeps for itself")
        labels[name] = value
    return labels
