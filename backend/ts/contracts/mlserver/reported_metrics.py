"""Metrics that a model reports with ``mlserver.log`` and ``mlserver.register``, on their way to the server.

MLServer keeps them as histograms of `prometheus_client` in the process of the model. Each observed value is recorded
here as well; the runtime sends the records to the server, whose metrics page has the histograms of all workers.
"""

from collections import deque
from typing import Any, Final

from mlserver.metrics import context
from mlserver.metrics.context import Histogram  # type: ignore[attr-defined] # of `prometheus_client`

#: Values that wait for the next answer; of a model that reports without ever answering only the newest are kept.
_records: Final[deque[list[Any]]] = deque(maxlen=10_000)


class ReportedHistogram(Histogram):
    """A histogram that records each value it observes."""

    def __init__(self, name: str, documentation: str, *args: Any, **options: Any) -> None:
        self.metric_name = name
        self.dimensions: list[list[str]] = []
        super().__init__(name, documentation, *args, **options)

    def labels(self, *values: Any, **named: Any) -> Any:
        child = super().labels(*values, **named)
        names = (context.SELDON_MODEL_NAME_LABEL, context.SELDON_MODEL_VERSION_LABEL)
        labels = dict(zip(names, values, strict=True)) if values else named
        child.dimensions = [[name, str(value)] for name, value in labels.items()]
        return child

    def observe(self, amount: float, exemplar: dict[str, str] | None = None) -> None:
        super().observe(amount, exemplar)
        _records.append([self.metric_name, "Count", "histogram", float(amount), self.dimensions, ""])


def forward() -> None:
    """Have MLServer make its histograms of `ReportedHistogram`."""
    vars(context)["Histogram"] = ReportedHistogram


def take_records() -> list[list[Any]]:
    """Return the values since the last call, as records of `ts.protocol.messages.METRICS`."""
    if not _records:
        return []
    taken = list(_records)
    _records.clear()
    return taken
