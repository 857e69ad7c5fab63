"""Loads an MLServer model: from ``model-settings.json`` to a runtime that answers requests."""

import asyncio
import importlib.util
import json
import logging
import os
import sys
from pathlib import Path
from typing import Any, Final

from ts.connection.frontend_connection import FrontendConnection
from ts.connection.heartbeat import Heartbeat
from ts.contracts.async_calls import event_loop
from ts.jobs.errors import LoadError
from ts.jobs.search_path import search_in
from ts.protocol.log_records import FORMAT_VARIABLE, JSON, write_records
from ts.protocol.messages import Load
from ts.protocol.regular_files import read_regular_text

if importlib.util.find_spec("mlserver") is None:
    raise LoadError(
        "An MLServer model needs the package mlserver, which its worker's Python does not have: "
        "pip install 'torchserve-py[mlserver]'"
    )

from mlserver import MLModel, ModelSettings, Settings, types
from mlserver.context import model_context
from mlserver.logging import configure_logger
from mlserver.settings import ModelParameters
from pydantic import ValidationError

from ts.contracts.mlserver import reported_metrics, unread_data
from ts.contracts.mlserver.conversion import parameters_of
from ts.contracts.mlserver.mlserver_runtime import MLServerRuntime

logger = logging.getLogger(__name__)

MODEL_SETTINGS_FILE: Final = "model-settings.json"
SETTINGS_FILE: Final = "settings.json"
_MOST_BYTES: Final = 1 << 20


def load(load: Load, connection: FrontendConnection, heartbeat: Heartbeat) -> event_loop.Loading:
    """Load a model for the event loop that serves it, see `ts.process.worker.load_model`."""
    return event_loop.load(load, connection, load_runtime)


def load_runtime(load: Load, connection: FrontendConnection, runner: asyncio.Runner) -> MLServerRuntime:
    """Load the model in the loop that serves it. Raises LoadError: its settings or its class are invalid."""
    # Before the model's code is imported.
    reported_metrics.forward()
    unread_data.let_numpy_codec_take_memory()
    folder = Path(load["model_dir"])
    settings = model_settings(folder, load["model_name"])
    server_settings = read_settings(folder)
    logger_of_models = configure_logger(server_settings)
    logger_of_models.propagate = False  # it writes to standard output itself, as the worker's root logger does
    has_own_form = server_settings.use_structured_logging or server_settings.logging_settings
    if not has_own_form or os.environ.get(FORMAT_VARIABLE) == JSON:
        write_records(logger_of_models)
    if str(folder) not in sys.path:
        search_in([str(folder)])
    implementation: Any = settings.implementation
    if not isinstance(implementation, type) or not issubclass(implementation, MLModel):
        raise LoadError(
            f"{MODEL_SETTINGS_FILE}: implementation is {settings.implementation_!r}, which is no subclass of MLModel."
        )
    model: MLModel = implementation(settings)
    with model_context(settings):
        model.ready = runner.get_loop().run_until_complete(model.load())
    if not model.ready:
        logger.warning("load() of %s returned %r: it is not ready", settings.name, model.ready)
    caches = server_settings.cache_enabled and settings.cache_enabled
    return MLServerRuntime(
        model,
        runner.get_loop().run_until_complete(declarations(model)),
        connection,
        server_name=server_settings.server_name,
        cache_size=server_settings.cache_size if caches else 0,
        max_response_size=load["max_response_size"],
    )


def model_settings(folder: Path, model_name: str) -> ModelSettings:
    """Read a model's settings; its name is the registered one. Raises LoadError: the file cannot be used."""
    path = folder / MODEL_SETTINGS_FILE
    settings: ModelSettings = _read(path, lambda: ModelSettings.parse_file(str(path)))
    settings.name = model_name
    if settings.parameters is None:
        settings.parameters = ModelParameters()
    if not settings.parameters.uri:
        settings.parameters.uri = str(folder)
    return settings


def read_settings(folder: Path) -> Settings:
    """Read the server's settings beside the model's, if there are any. Raises LoadError: the file cannot be used."""
    path = folder / SETTINGS_FILE
    if not path.is_file():
        return Settings()
    settings: Settings = _read(path, lambda: Settings(**json.loads(read_regular_text(path, _MOST_BYTES))))
    return settings


def _read(path: Path, read: Any) -> Any:
    try:
        return read()
    except (OSError, TypeError, ValueError) as error:
        text = str(error)
        if isinstance(error, ValidationError):
            first = error.errors()[0]
            text = f"{'.'.join(str(each) for each in first['loc'])} is {first['input']!r}: {first['msg']}"
        raise LoadError(f"{path.name}: {text}") from error


async def declarations(model: MLModel) -> dict[str, Any]:
    """Return the model's ``metadata()``, and properties that follow from its class and settings."""
    metadata = await model.metadata()
    streams = type(model).predict_stream is not MLModel.predict_stream
    declared: dict[str, Any] = {
        "platform": metadata.platform or "",
        "versions": list(metadata.versions or ()),
        "inputs": [_tensor(tensor) for tensor in metadata.inputs or ()],
        "outputs": [_tensor(tensor) for tensor in metadata.outputs or ()],
        "parameters": parameters_of(metadata),
        "decoupled": streams,
        "streams_in": streams,
        "has_health_check": True,
    }
    settings = model.settings
    # A first dimension of any size is what the protocol calls a batch.
    have_rows = all(tensor["shape"][:1] == [-1] for tensor in (*declared["inputs"], *declared["outputs"]))
    if settings.max_batch_size > 1 and settings.max_batch_time > 0 and have_rows:
        declared["max_batch_size"] = settings.max_batch_size
        declared["max_batch_time"] = settings.max_batch_time
    return declared


def _tensor(tensor: types.MetadataTensor) -> dict[str, Any]:
    datatype = str(getattr(tensor.datatype, "value", tensor.datatype))
    declared = {"name": tensor.name, "datatype": datatype, "shape": list(tensor.shape)}
    parameters = parameters_of(tensor)
    return {**declared, "parameters": parameters} if parameters else declared
