"""TorchServe's older metrics store, which mocks of the context in handlers' own tests still use."""

from typing import Any

from ts.metrics.dimension import Dimension
from ts.metrics.metric import Metric
from ts.metrics.metric_type_enum import MetricTypes
from ts.metrics.metrics_cache import Dimensions, MetricMethods


class MetricsStore(MetricMethods):
    """Keeps the metrics that a handler reports in ``store``, one object per name, unit, request and dimensions.

    ``request_ids`` is a dict from row index to request id, or one id.
    """

    def __init__(self, request_ids: Any, model_name: str) -> None:
        self.store: list[Metric] = []
        self.request_ids = request_ids
        self.model_name = model_name
        self.cache: dict[tuple[str, ...], Metric] = {}

    def _add(
        self, name: str, value: float, unit: str, idx: int | None, dimensions: Dimensions, metric_type: MetricTypes
    ) -> None:
        method = "counter" if metric_type is MetricTypes.COUNTER else ""
        self._add_or_update(name, value, self._request_id(idx), unit, dimensions, method)

    def add_error(self, name: str, value: Any, dimensions: Dimensions = None) -> None:
        """Set an error's text or number, with the dimension ``Level`` = ``Error``."""
        self._add_or_update(name, value, None, "", dimensions)

    def add_metric(
        self, name: str, value: float, idx: int | None = None, unit: str | None = None, dimensions: Dimensions = None
    ) -> None:
        """Set any metric."""
        self._add_or_update(name, value, self._request_id(idx), unit, dimensions)

    def _add_or_update(
        self, name: str, value: Any, request_id: str | None, unit: str | None, dimensions: Dimensions, method: str = ""
    ) -> None:
        own = [Dimension("Level", "Error")]
        if request_id is not None:
            own = [Dimension("ModelName", self.model_name), Dimension("Level", "Model")]
        all_dimensions = [*(dimensions or []), *own]
        key = (name, str(unit), str(request_id), *map(str, all_dimensions))
        metric = self.cache.get(key)
        if metric is not None:
            metric.update(value)
            return
        metric = self.cache[key] = Metric(name, value, unit, all_dimensions, request_id, method or None)
        self.store.append(metric)

    def _request_id(self, idx: int | None) -> str:
        ids = self.request_ids
        if isinstance(ids, dict):
            return str(ids[idx]) if idx in ids else ",".join(ids.values())
        return str(ids)
