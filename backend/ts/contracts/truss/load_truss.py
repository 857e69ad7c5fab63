"""Loads the model of a Truss: imports, constructs and inspects its class, applies the environment, and calls `load`."""

import asyncio
import inspect
import logging
import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from ts.connection.frontend_connection import FrontendConnection
from ts.connection.heartbeat import Heartbeat
from ts.contracts.async_calls import event_loop
from ts.contracts.truss.class_file import CLASS_ARGUMENTS, add_to_path, import_class
from ts.contracts.truss.deployment import Environment, Secrets
from ts.contracts.truss.truss_config import read_config, read_options
from ts.jobs.errors import LoadError
from ts.protocol.messages import Load
from ts.utils.optional_packages import missing_package

try:
    import pydantic  # noqa: F401
    import starlette  # noqa: F401
except ModuleNotFoundError as error:
    raise missing_package(error, "Truss models", "truss") from None

from ts.contracts.truss.model_methods import Description, describe
from ts.contracts.truss.request_logs import log_request_ids
from ts.contracts.truss.request_spans import tracing_of
from ts.contracts.truss.served_model import HotReload, ServedTruss
from ts.contracts.truss.signatures import Method, takes
from ts.contracts.truss.truss_runtime import TrussRuntime

logger = logging.getLogger(__name__)

_PAUSE_BETWEEN_ATTEMPTS: Final = 1.0
#: The argument of Truss's extension for TensorRT-LLM.
_ENGINE: Final = "trt_llm"


class LazyDataResolver:
    """Replaces Truss's class of that name: the weights are in the Truss's folder, so a model need not wait."""

    def block_until_download_complete(self, log_stats: bool = True, issue_collect: bool = True) -> str:
        """Return the empty summary of a download."""
        return ""


def load(load: Load, connection: FrontendConnection, heartbeat: Heartbeat) -> event_loop.Loading:
    """Load a model for the event loop that serves it, see `ts.process.worker.load_model`."""
    return event_loop.load(load, connection, load_runtime)


def load_runtime(load: Load, connection: FrontendConnection, runner: asyncio.Runner) -> TrussRuntime:
    """Load a Truss. Raises LoadError: it is invalid, or its code ended the process; Exception: its code raised it."""
    model_dir = Path(load["model_dir"])
    config, options = read_config(model_dir), read_options(model_dir)
    log_request_ids()
    if config["runtime"]["enable_debug_logs"]:
        logging.getLogger().setLevel(logging.DEBUG)
    try:
        instance, description = _load_model(model_dir, config, runner)
    except (SystemExit, KeyboardInterrupt, asyncio.CancelledError) as error:
        raise LoadError(f"The model ended with {type(error).__name__} while it was loaded: {error}") from error
    tracing = tracing_of(config, Secrets(config["secrets"]))
    hot_reload = HotReload(instance, model_dir, config) if options.get("hotReload") else None
    return TrussRuntime(ServedTruss(load, description, config, options, tracing, hot_reload), connection)


def _load_model(model_dir: Path, config: Mapping[str, Any], runner: asyncio.Runner) -> tuple[Any, Description]:
    loop = runner.get_loop()
    data_dir = Path(config["data_dir"])
    try:
        (model_dir / data_dir).mkdir(exist_ok=True)  # as Truss does; the model may not need it
    except OSError as error:
        logger.warning("The data folder of the model cannot be made: %s", error)
    add_to_path(model_dir, config)
    started = time.perf_counter()
    model_class = import_class(model_dir, config)
    environment = Environment()
    secrets = Secrets(config["secrets"])
    values = (config, data_dir, secrets, environment.read(), LazyDataResolver())
    given: dict[str, Any] = dict(zip(CLASS_ARGUMENTS, values, strict=True))
    try:
        model = model_class(**{name: value for name, value in given.items() if takes(model_class, name)})
    except KeyError as error:
        if error.args != (_ENGINE,):
            raise
        names = ", ".join(CLASS_ARGUMENTS)
        text = "and needs it: no engine of TensorRT-LLM is built here"
        raise LoadError(f"The class gets no argument {_ENGINE}, {text}. It gets {names}.") from error
    description = describe(model)
    setup = description.setup_environment
    if setup is not None:
        if given["environment"] is not None:
            _wait_for(loop, setup.function(given["environment"]))
        loop.create_task(environment.watch(partial(_apply_environment, setup)))
    if hasattr(model, "load"):
        _load_with_retries(loop, model.load)
    logger.info("The model is loaded; it took %d ms.", (time.perf_counter() - started) * 1000)
    return model, description


def _load_with_retries(loop: asyncio.AbstractEventLoop, load_model: Callable[[], Any]) -> None:
    retries = int(os.environ.get("NUM_LOAD_RETRIES_TRUSS", "1"))
    for attempt in range(retries + 1):
        try:
            _wait_for(loop, load_model())
        except Exception as error:
            if attempt == retries:
                raise
            logger.warning("load() has failed (%s: %s), trying again.", type(error).__name__, error, exc_info=True)
            time.sleep(_PAUSE_BETWEEN_ATTEMPTS)
        else:
            return


def _wait_for(loop: asyncio.AbstractEventLoop, outcome: Any) -> None:
    """Run a method's result to its end, if it is a coroutine."""
    if inspect.iscoroutine(outcome):
        loop.run_until_complete(outcome)


async def _apply_environment(setup: Method, environment: dict[str, Any] | None) -> None:
    logger.info("Applying the environment %r.", environment)
    if setup.is_function:
        await asyncio.to_thread(setup.function, environment)
    else:
        await setup.function(environment)
