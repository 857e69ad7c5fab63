"""A metrics cache that is filled from a metrics.yaml, for handlers' unit tests written for TorchServe.

A worker does not read the file: the server reads it and sends the declared metrics to the worker.
"""

from ts.metrics.metric_cache_errors import (
    MetricsCacheIOError,
    MetricsCacheKeyError,
    MetricsCachePyYamlError,
    MetricsCacheTypeError,
    MetricsCacheValueError,
)
from ts.metrics.metric_type_enum import MetricTypes
from ts.metrics.metrics_cache import MetricsCache
from ts.protocol.yaml_files import get_yaml_config


class MetricsCacheYamlImpl(MetricsCache):
    """The cache of the metrics under ``model_metrics``, once `initialize_cache` was called.

    Raises MetricsCacheTypeError: no file is named; MetricsCacheIOError: it cannot be read; MetricsCachePyYamlError: it
    is not YAML.
    """

    def __init__(self, config_file_path: str) -> None:
        super().__init__()
        if not config_file_path:
            raise MetricsCacheTypeError("no metrics configuration file is named")
        try:
            self._parsed_file = get_yaml_config(config_file_path)
        except OSError as error:
            raise MetricsCacheIOError(f"{config_file_path} cannot be read: {error}") from error
        except ValueError as error:
            raise MetricsCachePyYamlError(str(error)) from error

    def initialize_cache(self) -> None:
        """Make the metrics that the file declares. Raises MetricsCacheKeyError, MetricsCacheValueError: it is wrong."""
        section = self._parsed_file.get("model_metrics")
        if section is None:
            raise MetricsCacheKeyError("the metrics configuration has no section 'model_metrics'")
        if not section:
            raise MetricsCacheValueError("the section 'model_metrics' of the metrics configuration is empty")
        for name, entries in section.items():
            try:
                metric_type = MetricTypes(name)
            except ValueError:
                raise MetricsCacheKeyError(f"{name!r} is no type of metrics") from None
            for entry in entries:
                try:
                    self.add_metric_to_cache(entry["name"], entry["unit"], entry["dimensions"], metric_type)
                except KeyError as error:
                    raise MetricsCacheKeyError(f"a {name} of the metrics configuration has no {error}") from None
