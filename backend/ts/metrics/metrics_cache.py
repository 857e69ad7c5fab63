"""``context.metrics``: the metrics a handler reports, kept by type and name and sent with the results of a batch."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ts.metrics.caching_metric import CachingMetric, MetricRecord
from ts.metrics.dimension import Dimension
from ts.metrics.metric_cache_errors import MetricsCacheKeyError, MetricsCacheTypeError, MetricsCacheValueError
from ts.metrics.metric_type_enum import MetricTypes

#: Records that wait for the next results; of a handler that reports without ever answering only the newest are kept.
_MAX_PENDING = 10_000


Dimensions = list[Dimension] | None


class MetricMethods(ABC):
    """The methods with which handlers report metrics of a kind. ``idx`` is the index of a row."""

    @abstractmethod
    def _add(
        self, name: str, value: float, unit: str, idx: int | None, dimensions: Dimensions, metric_type: MetricTypes
    ) -> None: ...

    def add_counter(self, name: str, value: float, idx: int | None = None, dimensions: Dimensions = None) -> None:
        """Add ``value`` to a counter."""
        self._add(name, value, "count", idx, dimensions, MetricTypes.COUNTER)

    def add_time(
        self,
        name: str,
        value: float,
        idx: int | None = None,
        unit: str = "ms",
        dimensions: Dimensions = None,
        metric_type: MetricTypes = MetricTypes.GAUGE,
    ) -> None:
        """Report a time in ``ms`` or ``s``."""
        _check_unit(f"time metric {name!r}", unit, "ms", "s")
        self._add(name, value, unit, idx, dimensions, metric_type)

    def add_size(
        self,
        name: str,
        value: float,
        idx: int | None = None,
        unit: str = "MB",
        dimensions: Dimensions = None,
        metric_type: MetricTypes = MetricTypes.GAUGE,
    ) -> None:
        """Report a size in ``B``, ``kB``, ``MB`` or ``GB``."""
        _check_unit(f"size metric {name!r}", unit, "MB", "kB", "GB", "B")
        self._add(name, value, unit, idx, dimensions, metric_type)

    def add_percent(
        self,
        name: str,
        value: float,
        idx: int | None = None,
        dimensions: Dimensions = None,
        metric_type: MetricTypes = MetricTypes.GAUGE,
    ) -> None:
        """Report a percentage."""
        self._add(name, value, "percent", idx, dimensions, metric_type)


class MetricsCache(MetricMethods):
    """TorchServe's metrics API for handlers.

    A metric is known by its type and name; its first use fixes its unit and the names of its dimensions. ``idx`` is a
    row's index and stands for that row's request id; without it a value belongs to all requests of the batch.

    ``declared`` has ``(type, name, unit, names of dimensions)`` of the metrics that are there from the start: those
    under ``model_metrics`` in the operator's metrics.yaml.
    """

    def __init__(self, model_name: str | None = None, declared: Iterable[Sequence[Any]] = ()) -> None:
        self.cache: dict[MetricTypes, dict[str, CachingMetric]] = {}
        self.store: list[Any] = []  # always empty; older handlers look at it
        self.model_name = model_name  # the value of the dimension ModelName
        self.request_ids: Mapping[int, str] | None = None  # of the running batch, by row
        #: What `take_records` returns next.
        self.pending: deque[MetricRecord] = deque(maxlen=_MAX_PENDING)
        for metric_type, name, unit, dimension_names in declared:
            self.add_metric_to_cache(name, unit, list(dimension_names), MetricTypes(metric_type))

    def set_request_ids(self, request_ids: Mapping[int, str]) -> None:
        """Set the requests that following values belong to."""
        self.request_ids = request_ids

    def set_model_name(self, model_name: str) -> None:
        """Set the value of the dimension ``ModelName``."""
        self.model_name = model_name

    def take_records(self) -> list[MetricRecord]:
        """Return the records since the last call, the oldest first."""
        records = list(self.pending)
        self.pending.clear()
        return records

    def add_metric(
        self,
        name: str,
        value: float,
        unit: str,
        idx: int | None = None,
        dimensions: Dimensions = None,
        metric_type: MetricTypes = MetricTypes.COUNTER,
    ) -> None:
        """Report a value; ``ModelName`` and ``Level`` are added. Raises MetricsCacheTypeError: a wrong type."""
        named = list(_checked(dimensions))
        names = {dimension.name for dimension in named}
        if "ModelName" not in names:
            named.append(Dimension("ModelName", self.model_name))
        if "Level" not in names:
            named.append(Dimension("Level", "Model"))
        self._report(name, value, unit, self._request_id(idx), named, metric_type)

    _add = add_metric

    def add_error(self, name: str, value: float, dimensions: Dimensions = None) -> None:
        """Count an error, with the dimension ``Level`` = ``Error``."""
        named = [*_checked(dimensions), Dimension("Level", "Error")]
        self._report(name, value, "", self._request_id(None), named, MetricTypes.COUNTER)

    def add_metric_to_cache(
        self,
        metric_name: str,
        unit: str,
        dimension_names: list[str] | None = None,
        metric_type: MetricTypes = MetricTypes.COUNTER,
    ) -> CachingMetric:
        """Make or replace a metric, and return it. Raises MetricsCacheTypeError: an argument has a wrong type."""
        _check_type("metric_name", metric_name, str)
        _check_type("unit", unit, str)
        _check_type("metric_type", metric_type, MetricTypes)
        if dimension_names is not None:
            _check_type("dimension_names", dimension_names, list)
        metric = CachingMetric(metric_name, unit, dimension_names, metric_type, record=self.pending.append)
        self.cache.setdefault(metric_type, {})[metric_name] = metric
        return metric

    def get_metric(self, metric_name: str, metric_type: MetricTypes = MetricTypes.COUNTER) -> CachingMetric:
        """Return a metric. Raises MetricsCacheKeyError: no metric has that type and name."""
        _check_type("metric_name", metric_name, str)
        _check_type("metric_type", metric_type, MetricTypes)
        metric = self.cache.get(metric_type, {}).get(metric_name)
        if metric is None:
            raise MetricsCacheKeyError(f"there is no {metric_type.value} named {metric_name!r}")
        return metric

    def cache_keys(self) -> list[str]:
        """Return ``type:name`` of every metric."""
        return [f"{metric_type.value}:{name}" for metric_type, metrics in self.cache.items() for name in metrics]

    def _report(
        self, name: str, value: float, unit: str, request_id: str, dimensions: list[Dimension], metric_type: MetricTypes
    ) -> None:
        metric = self.cache.get(metric_type, {}).get(name)
        if metric is None:
            metric = self.add_metric_to_cache(name, unit, [dimension.name for dimension in dimensions], metric_type)
        metric.add_or_update(value, [dimension.value for dimension in dimensions], request_id)

    def _request_id(self, idx: int | None) -> str:
        ids = self.request_ids
        if not ids:
            return ""
        if idx is not None and idx in ids:
            return ids[idx]
        return ",".join(ids.values())


def _checked(dimensions: Dimensions) -> list[Dimension]:
    if dimensions is None:
        return []
    if not isinstance(dimensions, list | tuple) or not all(isinstance(item, Dimension) for item in dimensions):
        raise MetricsCacheTypeError(f"the dimensions must be a list of Dimension objects, got {dimensions!r}")
    return dimensions


def _check_type(name: str, value: object, expected: type) -> None:
    if not isinstance(value, expected):
        raise MetricsCacheTypeError(f"{name} must be a {expected.__name__}, got {value!r}")


def _check_unit(metric: str, unit: str, *units: str) -> None:
    if unit not in units:
        raise MetricsCacheValueError(f"the unit of the {metric} is {unit!r}; it must be one of {', '.join(units)}")
