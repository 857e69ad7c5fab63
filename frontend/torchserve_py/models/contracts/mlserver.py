"""What an MLServer model's `model-settings.json`, and a `settings.json` beside it, say about how it is to be served.

All values that the server or the worker acts on are checked here, all of them at once. What belongs to MLServer's own
listeners has no effect, which is said in a warning, and so has what nobody knows. `docs/mlserver.md` has every key.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from torchserve_py.archive.contract import MLSERVER_SETTINGS
from torchserve_py.models.config import InvalidModelConfig, ModelConfig
from torchserve_py.models.contracts import Configured
from ts.open_inference.datatypes import DATATYPES

SERVER_SETTINGS: Final = "settings.json"
_MODEL_PREFIX: Final = "MLSERVER_MODEL_"
_WORKERS_VARIABLE: Final = "MLSERVER_PARALLEL_WORKERS"
_OWN_ENVIRONMENT: Final = "requirements.txt, and useVenv in model-config.yaml, give a model packages of its own"
_SHOWN_LENGTH: Final = 80
_MAX_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class _Rule:
    """What a key's value must be; null is a key that is not there."""

    expected: str
    allows: Callable[[Any], bool]


def _is_list_of_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


_TEXT = _Rule("a text", lambda value: isinstance(value, str))
_FLAG = _Rule("true or false", lambda value: isinstance(value, bool))
_COUNT = _Rule("an integer from 0", lambda value: type(value) is int and value >= 0)
_TEXTS = _Rule("a list of texts", _is_list_of_texts)
_OBJECT = _Rule("an object", lambda value: isinstance(value, dict))
_IMPORT_PATH = _Rule(
    'a module and a class in it, such as "model.MyModel"',
    lambda value: (
        isinstance(value, str)
        and all(part.isidentifier() for part in value.replace(":", ".").split("."))
        and len(value.replace(":", ".").split(".")) > 1
    ),
)
_TENSORS = _Rule("a list of objects with name, datatype and shape", lambda value: isinstance(value, list))

_MODEL_RULES: Final[Mapping[str, _Rule]] = {
    "implementation": _IMPORT_PATH,
    "name": _TEXT,
    "platform": _TEXT,
    "versions": _TEXTS,
    "inputs": _TENSORS,
    "outputs": _TENSORS,
    "max_batch_size": _COUNT,
    "max_batch_time": _Rule("a number of seconds from 0", lambda value: _is_number(value) and value >= 0),
    "cache_enabled": _FLAG,
    "parallel_workers": _Rule("an integer", lambda value: type(value) is int),
    "warm_workers": _FLAG,
    "parameters": _OBJECT,
}
_PARAMETER_RULES: Final[Mapping[str, _Rule]] = {
    "uri": _TEXT,
    "version": _TEXT,
    "environment_path": _TEXT,
    "environment_tarball": _TEXT,
    "inference_pool_gid": _TEXT,
    "autogenerate_inference_pool_gid": _FLAG,
    "format": _TEXT,
    "content_type": _TEXT,
    "extra": _OBJECT,
}
_SERVER_RULES: Final[Mapping[str, _Rule]] = {
    "cache_enabled": _FLAG,
    "cache_size": _COUNT,
    "debug": _FLAG,
    "parallel_workers": _COUNT,
    "server_name": _TEXT,
    "use_structured_logging": _FLAG,
}
_WITHOUT_EFFECT: Final[Mapping[str, Mapping[str, str]]] = {
    MLSERVER_SETTINGS: {
        "parallel_workers": f"{SERVER_SETTINGS} and model-config.yaml (minWorkers) say how many workers there are",
        "warm_workers": "workers are always started before the first request",
    },
    f"{MLSERVER_SETTINGS}, parameters": {
        "environment_path": _OWN_ENVIRONMENT,
        "environment_tarball": _OWN_ENVIRONMENT,
        "inference_pool_gid": "every model has workers of its own",
        "autogenerate_inference_pool_gid": "every model has workers of its own",
    },
    SERVER_SETTINGS: dict.fromkeys(
        [
            "parallel_workers_timeout",
            "environments_dir",
            "model_repository_implementation",
            "model_repository_implementation_args",
            "model_repository_root",
            "load_models_at_startup",
            "server_version",
            "extensions",
            "host",
            "http_port",
            "root_path",
            "grpc_port",
            "grpc_max_message_length",
            "cors_settings",
            "metrics_endpoint",
            "metrics_port",
            "metrics_rest_server_prefix",
            "metrics_dir",
            "logging_settings",
            "kafka_enabled",
            "kafka_servers",
            "kafka_topic_input",
            "kafka_topic_output",
            "tracing_server",
            "gzip_enabled",
        ],
        "it is about MLServer's own listeners; config.properties configures those here",
    ),
}


def configure(model_dir: Path, yaml: ModelConfig) -> Configured:
    """Complete a model's configuration by what its settings files and the environment say.

    Raises:
        InvalidModelConfig: A value is none that can be acted on.
    """
    settings = _read(model_dir / MLSERVER_SETTINGS)
    parameters = settings.get("parameters")
    parameters = parameters if isinstance(parameters, dict) else {}
    problems = [
        *_problems(settings, _MODEL_RULES),
        *_problems(parameters, _PARAMETER_RULES, "parameters."),
        *_tensor_problems(settings),
    ]
    if not (settings.get("implementation") or os.environ.get(f"{_MODEL_PREFIX}IMPLEMENTATION")):
        problems.append(f"implementation is missing, it must be {_IMPORT_PATH.expected}")
    if problems:
        raise InvalidModelConfig(MLSERVER_SETTINGS, problems)
    server = _read(model_dir / SERVER_SETTINGS) if (model_dir / SERVER_SETTINGS).is_file() else {}
    if problems := list(_problems(server, _SERVER_RULES)):
        raise InvalidModelConfig(SERVER_SETTINGS, problems)
    warnings = [
        *_warnings(MLSERVER_SETTINGS, settings, _MODEL_RULES),
        *_warnings(f"{MLSERVER_SETTINGS}, parameters", parameters, None),
        *_warnings(SERVER_SETTINGS, server, _SERVER_RULES),
        *_batching_warnings(settings),
    ]
    return Configured(
        _completed(yaml, server, warnings),
        name=settings.get("name") or os.environ.get(f"{_MODEL_PREFIX}NAME") or None,
        version=parameters.get("version") or os.environ.get(f"{_MODEL_PREFIX}VERSION") or None,
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_BYTES + 1)
        if len(text) > _MAX_BYTES:
            raise InvalidModelConfig(path.name, [f"the file is larger than {_MAX_BYTES} bytes, the most that is read"])
        values = json.loads(text.decode())
    except OSError as error:
        raise InvalidModelConfig(path.name, [f"the file cannot be read: {error.strerror or error}"]) from error
    except (ValueError, RecursionError) as error:
        raise InvalidModelConfig(path.name, [f"the file is no JSON: {error}"]) from error
    if not isinstance(values, dict):
        raise InvalidModelConfig(path.name, [f"the file holds a {type(values).__name__}, it must hold an object"])
    return values


def _problems(values: Mapping[str, Any], rules: Mapping[str, _Rule], prefix: str = "") -> Iterator[str]:
    for name, rule in rules.items():
        value = values.get(name)
        if value is not None and not rule.allows(value):
            yield f"{prefix}{name} is {_shown(value)} ({type(value).__name__}), it must be {rule.expected}"


def _tensor_problems(settings: Mapping[str, Any]) -> Iterator[str]:
    for key in ("inputs", "outputs"):
        tensors = settings.get(key)
        for index, tensor in enumerate(tensors if isinstance(tensors, list) else ()):
            place = f"{key}[{index}]"
            if not isinstance(tensor, dict):
                yield f"{place} is {_shown(tensor)}, it must be an object with name, datatype and shape"
                continue
            name, datatype, shape = (tensor.get(each) for each in ("name", "datatype", "shape"))
            if not isinstance(name, str) or not name:
                yield f"{place}.name is {_shown(name)}, it must be a text"
            if not isinstance(datatype, str) or datatype not in DATATYPES:
                yield f"{place}.datatype is {_shown(datatype)}, it must be one of {', '.join(sorted(DATATYPES))}"
            if not isinstance(shape, list) or not all(type(each) is int and each >= -1 for each in shape):
                yield f"{place}.shape is {_shown(shape)}, it must be a list of integers from -1 (any size)"


def _warnings(source: str, values: Mapping[str, Any], known: Mapping[str, _Rule] | None) -> Iterator[str]:
    without_effect = _WITHOUT_EFFECT[source]
    for name, value in values.items():
        if value in (None, False) and name in without_effect:
            continue
        if name in without_effect:
            yield f"{source}: {name} has no effect: {without_effect[name]}"
        elif known is not None and name not in known:
            yield f"{source}: {name} is unknown and has no effect"


def _batching_warnings(settings: Mapping[str, Any]) -> Iterator[str]:
    size, seconds = settings.get("max_batch_size") or 0, settings.get("max_batch_time") or 0
    if (size > 1) != (seconds > 0):
        yield (
            f"{MLSERVER_SETTINGS}: max_batch_size is {size} and max_batch_time is {seconds}; requests are batched only"
            " where the one is above 1 and the other above 0"
        )


def _completed(yaml: ModelConfig, server: Mapping[str, Any], warnings: list[str]) -> ModelConfig:
    """The configuration with as many workers as the settings say; MLServer's default is one."""
    workers = yaml.min_workers
    if workers is None and yaml.max_workers is None:
        # 0 means MLServer's own process, and there is no such thing here.
        workers = max(_parallel_workers(server), 1)
    return yaml.completed(warnings, min_workers=workers)


def _parallel_workers(server: Mapping[str, Any]) -> int:
    given = server.get("parallel_workers")
    if given is not None:
        return int(given)
    variable = os.environ.get(_WORKERS_VARIABLE, "1")
    if not variable.isascii() or not variable.isdigit():
        raise InvalidModelConfig(_WORKERS_VARIABLE, [f"the variable is {variable!r}, it must be an integer from 0"])
    return int(variable)


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= _SHOWN_LENGTH else f"{text[: _SHOWN_LENGTH - 3]}..."
