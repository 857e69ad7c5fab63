"""What the metrics API raises; TorchServe's names."""

from __future__ import annotations


class MetricsCacheError(Exception):
    """Any error of the metrics API."""


class MetricsCacheTypeError(MetricsCacheError):
    """An argument has the wrong type."""


class MetricsCacheKeyError(MetricsCacheError):
    """There is no such metric."""


class MetricsCacheValueError(MetricsCacheError):
    """An argument has a value that is not allowed."""
