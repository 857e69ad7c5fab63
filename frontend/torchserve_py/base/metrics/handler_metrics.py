"""Custom metrics of handlers, as far as the server needs them: here none is kept; `ops.metrics` shows them."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from torchserve_py.base.metrics.families import Family
from torchserve_py.base.metrics.instruments import Updatable
from torchserve_py.base.metrics.model_metrics import RecordPrediction


class ShownMetric(NamedTuple):
    """A number of a handler, as a person sees it."""

    name: str
    dimensions: Mapping[str, str]
    value: float


class HandlerMetrics:
    """What handlers report, in the families that it yields."""

    def __iter__(self) -> Iterator[Family[Updatable]]:
        return iter(())

    def register(self, model_name: str) -> RecordPrediction:
        """Makes the series that every model has, as far as they are listed; returns what records PredictionTime."""
        return lambda milliseconds, job_ids, at: None

    def record(self, model_name: str, entries: Iterable[Any]) -> None:
        """Takes `[name, unit, type, value, [[dimension, value], ..], request ids]` entries of a worker of the model.

        Metrics of a model that was unregistered meanwhile are dropped.
        """

    def shown(self, model_name: str) -> Iterable[ShownMetric]:
        """The numbers of a model's workers as they are now, without histograms."""
        return ()

    def forget(self, model_name: str) -> None:
        """Takes away the series that no other model has a part in."""
