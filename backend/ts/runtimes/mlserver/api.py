"""The names of MLServer's package that this runtime uses, and what `adapt` changes in it for the model's code.

MLServer's package must be installed in the worker's environment: `ts.runtimes.mlserver.load_mlserver` says so where it
is not.
"""

from mlserver import MLModel, ModelSettings, Settings, types
from mlserver.context import model_context
from mlserver.errors import MLServerError
from mlserver.handlers import get_custom_handlers
from mlserver.logging import configure_logger
from mlserver.settings import ModelParameters

from ts.runtimes.mlserver import reported_metrics, unread_data

__all__ = [
    "MLModel",
    "MLServerError",
    "ModelParameters",
    "ModelSettings",
    "Settings",
    "adapt",
    "configure_logger",
    "get_custom_handlers",
    "model_context",
    "types",
]


def adapt() -> None:
    """Let metrics that the model reports reach the server, and MLServer's numpy codec take memory instead of lists.

    Call this before the model's code is imported.
    """
    reported_metrics.forward()
    unread_data.let_numpy_codec_take_memory()
