"""A metric with its value, as older handlers build and print it."""

import socket
import time
from collections.abc import Iterable
from typing import Any

from ts.metrics.dimension import Dimension
from ts.metrics.unit import unit_name


class Metric:
    """One value of one metric; ``update`` adds to it if ``metric_method`` is "counter" and replaces it otherwise.

    ``unit`` is one of `ts.metrics.unit.UNITS` or any other text.
    """

    def __init__(
        self,
        name: str,
        value: Any,
        unit: str | None,
        dimensions: Iterable[Dimension],
        request_id: str | None = None,
        metric_method: str | None = None,
    ) -> None:
        self.name = name
        self.value = value
        self.unit = unit_name(unit)
        self.dimensions = list(dimensions)
        self.request_id = request_id
        self.metric_method = metric_method

    def update(self, value: Any) -> None:
        """Add ``value`` to a counter, or make it the value of any other metric."""
        self.value = self.value + value if self.metric_method == "counter" else value

    def __str__(self) -> str:
        dimensions = ",".join(map(str, self.dimensions))
        suffix = f",{self.request_id}" if self.request_id else ""
        return (
            f"{self.name}.{self.unit}:{self.value}|#{dimensions}|"
            f"#hostname:{socket.gethostname()},{int(time.time())}{suffix}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the metric as a dict with TorchServe's keys."""
        return {
            "MetricName": self.name,
            "Value": self.value,
            "Unit": self.unit,
            "Dimensions": [dimension.to_dict() for dimension in self.dimensions],
            "Timestamp": int(time.time()),
            "HostName": socket.gethostname(),
            "RequestId": self.request_id,
        }
