"""Which metrics there are, and where they go."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torchserve_py.base.metrics.catalog import MODEL_METRICS, SERVER_METRICS, Declaration


class MetricsConfigError(ValueError):
    """What lists the metrics is wrong; the message says where and how."""


@dataclass(frozen=True)
class MetricsPlan:
    """Which metrics there are and where they go; unless they are listed all are shown, and handlers may add metrics."""

    #: The metrics of the server that are shown, by name.
    server: Mapping[str, Declaration] = field(default_factory=lambda: SERVER_METRICS)
    #: The metrics that handlers find in their cache, by name.
    model: Mapping[str, Declaration] = field(default_factory=lambda: MODEL_METRICS)
    accepts_unlisted: bool = True  # whether handlers may add metrics
    mode: str = "prometheus"  # `prometheus`, or `log` or `legacy`, which write metrics to log files
    summary: bool = False  # whether these files have no lines for single requests
