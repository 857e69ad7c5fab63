"""Values that a model reports, kept until the runtime sends them to the frontend, where they become histograms."""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from ts.mlserver.context import model_name_var, model_version_var
from ts.mlserver.metrics.errors import InvalidModelContext

SELDON_MODEL_NAME_LABEL: Final = "model_name"
SELDON_MODEL_VERSION_LABEL: Final = "model_version"

#: Values that wait for the next answer; of a model that reports without ever answering only the newest are kept.
_records: deque[list[Any]] = deque(maxlen=10_000)


class Histogram:
    """A metric by its name; a handle, the values are kept elsewhere.

    Args:
        name: What the metric is called in the metrics endpoint.
        description: What it means, for readers of the code.
    """

    def __init__(self, name: str, description: str) -> None:
        self.name = name
        self.description = description

    def observe(self, value: float) -> None:
        """Report one value."""
        log(**{self.name: value})


def register(name: str, description: str) -> Histogram:
    """Return the histogram ``name``. It need not be registered before `log` is called."""
    return Histogram(name, description)


def log(**metrics: float) -> None:
    """Report values: each keyword is a metric. They become histograms labelled with the model's name and version.

    Raises:
        InvalidModelContext: No model runs this code.
    """
    try:
        dimensions = [
            [SELDON_MODEL_NAME_LABEL, model_name_var.get()],
            [SELDON_MODEL_VERSION_LABEL, model_version_var.get()],
        ]
    except LookupError:
        raise InvalidModelContext from None
    for name, value in metrics.items():
        _records.append([name, "Count", "histogram", float(value), dimensions, ""])


def take_records() -> list[list[Any]]:
    """Return what was reported since the last call, as records of `ts.protocol.messages.METRICS`."""
    if not _records:
        return []
    taken = list(_records)
    _records.clear()
    return taken
