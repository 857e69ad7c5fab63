"""MLServer's API as the model's code imports it: the real one where it is installed, else ours.

Everything here uses it through this module, so that the model and its runtime have the same classes.
"""

from __future__ import annotations

import importlib
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from ts.mlserver import stand_in
from ts.runtimes.mlserver.real_codecs import take_blocks, unread_data_of

#: Whether it is `ts.mlserver`.
IS_OURS: Final = stand_in.provide()

if TYPE_CHECKING:
    from ts.mlserver import MLModel, ModelSettings, Settings, types
    from ts.mlserver.context import model_context
    from ts.mlserver.errors import MLServerError
    from ts.mlserver.handlers import get_custom_handlers
    from ts.mlserver.logging import configure_logger
    from ts.mlserver.settings import ModelParameters
    from ts.mlserver.types import TensorData as UnreadData
else:
    from mlserver import MLModel, ModelSettings, Settings, types
    from mlserver.context import model_context
    from mlserver.errors import MLServerError
    from mlserver.handlers import get_custom_handlers
    from mlserver.logging import configure_logger
    from mlserver.settings import ModelParameters

    #: The class of data that need not be read: the API's own, or a subclass of it.
    UnreadData = types.TensorData if IS_OURS else unread_data_of(types.TensorData)

__all__ = [
    "IS_OURS",
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
    "take_records",
    "types",
]


_records: deque[list[Any]] = deque(maxlen=10_000)


def adapt() -> None:
    """Let `take_records` have what the model reports with the real ``mlserver.log``, and the real codec take data that
    are not read; to be called before the model's code is imported."""
    if IS_OURS:
        return
    take_blocks(UnreadData)
    mlserver, metrics, context = map(importlib.import_module, ("mlserver", "mlserver.metrics", "mlserver.context"))

    def log(**values: float) -> None:
        name, version = context.model_name_var.get(""), context.model_version_var.get("")
        dimensions = [["model_name", name], ["model_version", version]]
        _records.extend([metric, "Count", "histogram", float(each), dimensions, ""] for metric, each in values.items())

    for module in (mlserver, metrics):
        module.__dict__["log"] = log


def _take_forwarded() -> list[list[Any]]:
    taken = list(_records)
    _records.clear()
    return taken


#: Returns the metrics that the model has reported since the last call.
take_records: Final[Callable[[], list[list[Any]]]] = (
    importlib.import_module("ts.mlserver.metrics.context").take_records if IS_OURS else _take_forwarded
)
