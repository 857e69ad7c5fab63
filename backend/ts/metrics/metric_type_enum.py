"""The types of metrics."""

import enum


class MetricTypes(enum.Enum):
    """Counters only grow, gauges are set, histograms are observed."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
