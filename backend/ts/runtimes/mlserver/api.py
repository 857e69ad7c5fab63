"""The names of MLServer's package that this runtime uses, and what `adapt` changes in it for the model's code.

MLServer's package must be installed in the worker's environment: `ts.runtimes.mlserver.load` says so where it is not.
"""

from __future__ import annotations

from mlserver import MLModel, ModelSettings, Settings, types
from mlserver.context import model_context
from mlserver.errors import MLServerError
from mlserver.handlers import get_custom_handlers
from mlserver.logging import configure_logger
from mlserver.settings import ModelParameters

from ts.open_inference.unread import Unread
from ts.runtimes.mlserver import numpy_codec, reported_metrics

__all__ = [
    "MLModel",
    "MLServerError",
    "ModelParameters",
    "ModelSettings",
    "Settings",
    "UnreadData",
    "adapt",
    "configure_logger",
    "get_custom_handlers",
    "model_context",
    "types",
]


class UnreadData(Unread, types.TensorData):
    """A tensor's data that become a list only when the model reads them as one."""

    def __repr_name__(self) -> str:
        return types.TensorData.__name__


def adapt() -> None:
    """Let metrics that the model reports reach the server, and MLServer's numpy codec take memory instead of lists.

    To be called before the model's code is imported.
    """
    reported_metrics.forward()
    numpy_codec.take_memory(UnreadData)
