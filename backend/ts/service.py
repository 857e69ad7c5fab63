"""A loaded model: its context and the entry point that the worker calls for every batch."""

import logging
import os
from collections.abc import Callable, Iterable
from typing import Any

from ts.context import Context
from ts.jobs.errors import PredictionException
from ts.jobs.sequence_steps import Steps
from ts.protocol.yaml_files import get_yaml_config
from ts.version import __version__

__all__ = ["PREDICTION_METRIC", "EntryPoint", "PredictionException", "Service", "emit_metrics"]

#: The name of the metric with the milliseconds of one handler call.
PREDICTION_METRIC = "PredictionTime"

#: ``handle(data, context)``: a list of rows, or None while loading, to a list of results.
EntryPoint = Callable[[Any, Context], Any]

logger = logging.getLogger(__name__)


class Service:
    """A handler's entry point, hooks and context.

    Args:
        model_name: The name that the model is registered under.
        manifest: The archive's MANIFEST.json, or None; its ``configFile`` becomes ``context.model_yaml_config``.
        limit_max_image_pixels: Whether image handlers keep Pillow's limit on pixels.

    Raises:
        OSError, ValueError: The model's configuration file is missing or no YAML mapping.
    """

    def __init__(
        self,
        model_name: str,
        model_dir: str,
        manifest: dict[str, Any] | None,
        entry_point: EntryPoint,
        gpu: int | None,
        batch_size: int,
        limit_max_image_pixels: bool = True,
        metrics_cache: Any = None,
    ) -> None:
        config_file = ((manifest or {}).get("model") or {}).get("configFile")
        self.entry_point = entry_point
        self.context = Context(
            model_name,
            model_dir,
            manifest,
            batch_size,
            gpu,
            __version__,
            limit_max_image_pixels,
            metrics_cache,
            get_yaml_config(os.path.join(model_dir, config_file)) if config_file else {},  # noqa: PTH118
        )
        #: The handler's object; None if the handler is only a function.
        self.handler: Any = None
        #: The name of the request envelope around the handler, if there is one.
        self.envelope: str | None = None
        #: Counts the steps of sequences, if the model has any.
        self.steps: Steps | None = None
        #: The handler's hook for the end of a sequence: ``on_sequence_end(sequence_id, reason)``.
        self.on_sequence_end: Callable[[str, str], Any] | None = None
        #: What a function that is decorated with `ts.serve` takes and gives, under ``function`` of the declarations.
        self.declared: dict[str, Any] = {}
        #: The handler's hook for rows that leave a continuous batch before their last part: ``on_cancel(request_ids)``.
        self.on_cancel: Callable[[list[str]], Any] | None = None


def emit_metrics(metrics: Iterable[Any]) -> None:
    """Write metrics (`ts.metrics.metric.Metric`) to standard output in the form that log readers know."""
    for metric in metrics or ():
        logger.info("[METRICS]%s", metric)
