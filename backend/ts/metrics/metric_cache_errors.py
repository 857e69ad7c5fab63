"""The exceptions of the metrics API, under TorchServe's names."""


class MetricsCacheError(Exception):
    """Any error of the metrics API."""


class MetricsCacheTypeError(MetricsCacheError):
    """An argument has the wrong type."""


class MetricsCacheKeyError(MetricsCacheError):
    """The metric, or a key of the metrics configuration, does not exist."""


class MetricsCacheValueError(MetricsCacheError, ValueError):
    """An argument has a value that is not allowed."""


class MetricsCacheIOError(MetricsCacheError):
    """The metrics configuration cannot be read."""


class MetricsCachePyYamlError(MetricsCacheError):
    """The metrics configuration is not YAML."""
