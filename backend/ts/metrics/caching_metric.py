"""A metric that handlers keep and update; each update is one record for the frontend."""

import logging
from collections.abc import Callable, Sequence
from typing import Any

from ts.metrics.dimension import Dimension
from ts.metrics.metric_type_enum import MetricTypes
from ts.metrics.unit import unit_name

logger = logging.getLogger(__name__)

#: ``[name, unit, type, value, [[dimension name, dimension value], …], request ids]`` as it crosses the socket.
MetricRecord = list[Any]


class CachingMetric:
    """A metric by name, type, unit and names of dimensions; ``record`` takes every valid update."""

    def __init__(
        self,
        metric_name: str,
        unit: str,
        dimension_names: list[str] | None = None,
        metric_type: MetricTypes = MetricTypes.COUNTER,
        *,
        record: Callable[[MetricRecord], None] | None = None,
    ) -> None:
        self.metric_name = metric_name
        self.unit = unit_name(unit)
        self.dimension_names = dimension_names or []
        self.metric_type = metric_type
        self._record = record

    def add_or_update(self, value: float, dimension_values: Sequence[Any] = (), request_id: str = "") -> None:
        """Report ``value``: the amount a counter grows by, what a gauge is set to, or what a histogram observes.

        A wrong number of dimension values and a negative amount for a counter are logged and otherwise ignored:
        a metric must not fail a prediction.
        """
        if len(dimension_values) != len(self.dimension_names):
            self._refuse(value, f"expected values for the dimensions {self.dimension_names}, got {dimension_values}")
        elif self.metric_type is MetricTypes.COUNTER and value < 0:
            self._refuse(value, "a counter cannot be updated by a negative value")
        elif self._record is not None:
            dimensions = [
                [name, str(dimension)] for name, dimension in zip(self.dimension_names, dimension_values, strict=True)
            ]
            type_ = self.metric_type.value
            self._record([self.metric_name, self.unit, type_, float(value), dimensions, str(request_id)])

    def update(self, value: float, request_id: str = "", dimensions: Sequence[Dimension] = ()) -> None:
        """Report ``value`` with other dimensions, which replace the metric's own; for older handlers."""
        self.dimension_names = [dimension.name for dimension in dimensions]
        self.add_or_update(value, [dimension.value for dimension in dimensions], request_id)

    def _refuse(self, value: float, reason: str) -> None:
        logger.error("Failed to update metric %r with value %r: %s", self.metric_name, value, reason)
