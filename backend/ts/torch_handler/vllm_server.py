"""Creates vLLM's engine and the application of its OpenAI server in this process, from a model's configuration.

This module calls only functions that vLLM's own ``main`` uses, under their names since 0.6; if a version has moved a
name or changed parameters, it tries both. Only `open_application` imports vLLM.
"""

import importlib
import inspect
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ts.handler_utils.asgi import Application
from ts.torch_handler.vllm_continuation import let_continue

logger = logging.getLogger(__name__)

_SERVER = ("vllm.entrypoints.openai.api_server", "vllm.entrypoints.launchers.app")
_STATE = ("vllm.entrypoints.openai.api_server", "vllm.entrypoints.launchers.api_server.app_state")
_ARGUMENTS = (
    "vllm.entrypoints.openai.cli_args",
    "vllm.entrypoints.launchers.cli_args",
    "vllm.entrypoints.common.cli_args",
)
_PARSER = ("vllm.utils", "vllm.utils.argparse_utils")


async def open_application(
    handler_config: Mapping[str, Any], model_dir: Path, model_name: str
) -> tuple[Any, Application]:
    """Load the model that the ``handler`` map of a model-config.yaml names; return the engine and the application.

    The application answers to the model's name on this server as well.

    Raises ModuleNotFoundError: vLLM is not installed; ImportError: this version of vLLM lacks a needed function;
    ValueError: the configuration names no model, or names an adapter that is not there.
    """
    try:
        import vllm
    except ModuleNotFoundError as error:
        if error.name != "vllm":
            raise
        text = "The handler vllm_handler needs the package vllm, which is not installed: pip install vllm"
        raise ModuleNotFoundError(text, name="vllm") from None
    # Workers of vLLM are started, not forked: this process has used the GPU and has threads by then.
    os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    arguments = server_arguments(handler_config, model_dir, model_name)
    engine = vllm.AsyncLLMEngine.from_engine_args(vllm.AsyncEngineArgs.from_cli_args(arguments))
    let_continue(engine)
    values = {"engine_client": engine, "args": arguments, **await _facts(engine)}
    application = _call(_find("build_app", _SERVER), values)
    initialized = _call(_find("init_app_state", _STATE), {**values, "state": application.state})
    if inspect.isawaitable(initialized):
        await initialized
    application.state.server = _Worker()
    return engine, application


class _Worker:
    """What vLLM's application stops when its engine has died: this process, which the server then replaces."""

    @property
    def should_exit(self) -> bool:
        return False

    @should_exit.setter
    def should_exit(self, value: bool) -> None:
        if value:
            logger.critical("The engine of vLLM has died, so this worker exits.")
            os._exit(1)


def server_arguments(handler_config: Mapping[str, Any], model_dir: Path, model_name: str) -> Any:
    """Return the arguments of vLLM's server. Raises ValueError: no model is named, or an adapter has no path."""
    engine_config = dict(handler_config.get("vllm_engine_config") or {})
    name = engine_config.pop("model", None)
    model = name or _file_or_name(handler_config.get("model_path") or "", model_dir)
    if not model:
        raise ValueError("handler of model-config.yaml names no model: set model_path, or vllm_engine_config's model")
    line = ["--model", model]
    if template := handler_config.get("chat_template"):
        line += ["--chat-template", _file_or_name(template, model_dir)]
    if adapters := handler_config.get("adapters"):
        line += ["--lora-modules", *_adapters(adapters, model_dir)]
    parser = _find("make_arg_parser", _ARGUMENTS)(_find("FlexibleArgumentParser", _PARSER)())
    arguments = parser.parse_args(line)
    arguments.served_model_name = [name or handler_config["model_path"]]
    if hasattr(arguments, "disable_log_requests"):  # older versions write every prompt into the log by default
        arguments.disable_log_requests = True
    for key, value in engine_config.items():
        if not hasattr(arguments, key):
            logger.warning("vllm_engine_config: this version of vLLM has no %s; it is ignored.", key)
        elif key == "served_model_name":
            arguments.served_model_name = [value] if isinstance(value, str) else value or arguments.served_model_name
        else:
            setattr(arguments, key, value)
    arguments.served_model_name = list(dict.fromkeys([*arguments.served_model_name, model_name]))
    return arguments


def _file_or_name(text: str, model_dir: Path) -> str:
    """The path of a file or folder among the model's, else the text itself: a name or an absolute path."""
    path = model_dir / text
    return str(path) if text and path.exists() else text


def _adapters(adapters: Mapping[str, str], model_dir: Path) -> list[str]:
    for name, path in adapters.items():
        if not path:
            raise ValueError(f"handler.adapters of model-config.yaml: {name} has no path")
    return [f"{name}={_file_or_name(path, model_dir)}" for name, path in adapters.items()]


async def _facts(engine: Any) -> dict[str, Any]:
    """What functions of some versions want to know of the engine, under the names of their parameters."""
    facts = {"vllm_config": getattr(engine, "vllm_config", None)}
    if facts["vllm_config"] is None and hasattr(engine, "get_vllm_config"):  # the engine before vLLM's present one
        facts["vllm_config"] = await engine.get_vllm_config()
    if hasattr(engine, "get_model_config"):
        facts["model_config"] = await engine.get_model_config()
    else:
        facts["model_config"] = getattr(engine, "model_config", None)
    if hasattr(engine, "get_supported_tasks"):
        facts["supported_tasks"] = await engine.get_supported_tasks()
    return facts


def _find(name: str, modules: Sequence[str]) -> Any:
    for module in modules:
        try:
            return getattr(importlib.import_module(module), name)
        except (ModuleNotFoundError, AttributeError) as error:
            if isinstance(error, ModuleNotFoundError) and not f"{module}.".startswith(f"{error.name}."):
                raise
    version = importlib.import_module("vllm").__version__
    raise ImportError(f"vLLM {version} has no {name} in {' or '.join(modules)}; the handler vllm_handler needs it")


def _call(function: Callable[..., Any], values: Mapping[str, Any]) -> Any:
    """Call a function with those values that it has parameters for."""
    parameters = inspect.signature(function).parameters
    return function(**{name: value for name, value in values.items() if name in parameters})
