"""What an MLServer model's `model-settings.json`, and a `settings.json` beside it, say about how it is to be served.

All values that the server or the worker acts on are checked here, all of them at once. What belongs to MLServer's own
listeners has no effect, and neither have unknown keys; a warning says so. `docs/mlserver.md` has every key.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field

from torchserve_py.archive.contract import MLSERVER_SETTINGS
from torchserve_py.core.config import InvalidModelConfig, ModelConfig
from torchserve_py.core.contracts import Configured
from torchserve_py.settings.schemas.model_config import DATATYPE
from torchserve_py.settings.schemas.schema import Schema, read
from torchserve_py.settings.schemas.values import AnyText, Expected, Listed, Nested, json_object, read_bounded

SERVER_SETTINGS: Final = "settings.json"
_MODEL_PREFIX: Final = "MLSERVER_MODEL_"
_WORKERS_VARIABLE: Final = "MLSERVER_PARALLEL_WORKERS"
_OWN_ENVIRONMENT: Final = "requirements.txt, and useVenv in model-config.yaml, give a model packages of its own"
_MAX_BYTES: Final = 1 << 20
_MAX_VALUES: Final = 20_000


def _is_import_path(value: Any) -> bool:
    parts = str(value).replace(":", ".").split(".")
    return len(parts) > 1 and all(part.isidentifier() for part in parts)


# MLServer reads its settings with pydantic, which takes "true" and 1 for true and "8" for 8; so do these.
AnyFlag = Annotated[bool | None, Expected("true or false")]
Count = Annotated[Annotated[int, Field(ge=0)] | None, Expected("an integer from 0")]
Texts = Annotated[tuple[str, ...] | None, Expected("a list of texts")]
ImportPath = Annotated[str | None, Expected('a module and a class in it, such as "model.MyModel"', _is_import_path)]


class TensorMetadata(Schema):
    """One of ``inputs`` and ``outputs``."""

    name: Annotated[str, Expected("a text", bool)]
    datatype: Annotated[str, DATATYPE]
    shape: Annotated[tuple[Annotated[int, Field(ge=-1)], ...], Expected("a list of integers from -1 (any size)")]


Tensors = Annotated[
    tuple[Annotated[TensorMetadata, Nested("an object with name, datatype and shape")], ...],
    Listed("a list of objects with name, datatype and shape"),
]


class ModelParameters(Schema):
    """``parameters`` of `model-settings.json`."""

    uri: AnyText = None
    version: AnyText = None
    environment_path: AnyText = None
    environment_tarball: AnyText = None
    inference_pool_gid: AnyText = None
    autogenerate_inference_pool_gid: AnyFlag = None
    format: AnyText = None
    content_type: AnyText = None
    extra: Annotated[dict[str, Any] | None, Expected("an object")] = None


class ModelSettings(Schema):
    """`model-settings.json`."""

    implementation: ImportPath = None
    name: AnyText = None
    platform: AnyText = None
    versions: Texts = None
    inputs: Tensors = ()
    outputs: Tensors = ()
    max_batch_size: Count = None
    max_batch_time: Annotated[
        Annotated[float, Field(ge=0, allow_inf_nan=False)] | None, Expected("a number of seconds from 0")
    ] = None
    cache_enabled: AnyFlag = None
    parallel_workers: Annotated[int | None, Expected("an integer")] = None
    warm_workers: AnyFlag = None
    parameters: Annotated[ModelParameters, Nested("an object")] = ModelParameters()


class ServerSettings(Schema):
    """What the server and its workers act on of `settings.json`."""

    cache_enabled: AnyFlag = None
    cache_size: Count = None
    debug: AnyFlag = None
    parallel_workers: Count = None
    server_name: AnyText = None
    use_structured_logging: AnyFlag = None


_OF_LISTENERS: Final = """
    parallel_workers_timeout environments_dir model_repository_implementation model_repository_implementation_args
    model_repository_root load_models_at_startup server_version extensions host http_port root_path grpc_port
    grpc_max_message_length cors_settings metrics_endpoint metrics_port metrics_rest_server_prefix metrics_dir
    logging_settings kafka_enabled kafka_servers kafka_topic_input kafka_topic_output tracing_server gzip_enabled
"""

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
        _OF_LISTENERS.split(),
        "it is about MLServer's own listeners; config.properties configures those here",
    ),
}


def configure(model_dir: Path, yaml: ModelConfig) -> Configured:
    """Complete a model's configuration by what its settings files and the environment say.

    Raises InvalidModelConfig: a value is none that can be acted on.
    """
    given = _read(model_dir / MLSERVER_SETTINGS)
    settings, wrong = read(ModelSettings, given)
    problems = list(wrong.values())
    if not (given.get("implementation") or os.environ.get(f"{_MODEL_PREFIX}IMPLEMENTATION")):
        problems.append('implementation is missing, it must be a module and a class in it, such as "model.MyModel"')
    if problems:
        raise InvalidModelConfig(MLSERVER_SETTINGS, problems)
    given_server = _read(model_dir / SERVER_SETTINGS) if (model_dir / SERVER_SETTINGS).is_file() else {}
    server, wrong = read(ServerSettings, given_server)
    if wrong:
        raise InvalidModelConfig(SERVER_SETTINGS, list(wrong.values()))
    warnings = [
        *_warnings(MLSERVER_SETTINGS, given, settings),
        *_warnings(
            f"{MLSERVER_SETTINGS}, parameters", given.get("parameters") or {}, settings.parameters, closed=False
        ),
        *_warnings(SERVER_SETTINGS, given_server, server),
        *_batching_warnings(settings),
    ]
    return Configured(
        _completed(yaml, server, warnings),
        name=settings.name or os.environ.get(f"{_MODEL_PREFIX}NAME") or None,
        version=settings.parameters.version or os.environ.get(f"{_MODEL_PREFIX}VERSION") or None,
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        text = read_bounded(path, _MAX_BYTES)
        if text.count(b",") >= _MAX_VALUES:
            raise ValueError(f"it has more than {_MAX_VALUES} values")
        return json_object(text)
    except (OSError, ValueError) as error:
        raise InvalidModelConfig(path.name, [f"the file cannot be used: {error}"]) from error


def _warnings(source: str, given: Mapping[str, Any], values: Schema, *, closed: bool = True) -> Iterator[str]:
    """What the keys of a file do not do; a model may have keys of its own where the file is not ``closed``."""
    without_effect, known = _WITHOUT_EFFECT[source], type(values).model_fields
    for name, raw in given.items():
        if name in without_effect:
            if getattr(values, name, raw) not in (None, False):
                yield f"{source}: {name} has no effect: {without_effect[name]}"
        elif closed and name not in known:
            yield f"{source}: {name} is unknown and has no effect"


def _batching_warnings(settings: ModelSettings) -> Iterator[str]:
    size, seconds = settings.max_batch_size or 0, settings.max_batch_time or 0
    if (size > 1) != (seconds > 0):
        yield (
            f"{MLSERVER_SETTINGS}: max_batch_size is {size} and max_batch_time is {seconds:g}; requests are batched"
            " only where the one is above 1 and the other above 0"
        )


def _completed(yaml: ModelConfig, server: ServerSettings, warnings: list[str]) -> ModelConfig:
    """The configuration with as many workers as the settings say; MLServer's default is one."""
    workers = yaml.min_workers
    if workers is None and yaml.max_workers is None:
        # 0 means MLServer's own process, and there is no such thing here.
        workers = max(_parallel_workers(server), 1)
    return yaml.completed(warnings, min_workers=workers)


def _parallel_workers(server: ServerSettings) -> int:
    if server.parallel_workers is not None:
        return server.parallel_workers
    variable = os.environ.get(_WORKERS_VARIABLE, "1")
    if not variable.isascii() or not variable.isdigit():
        raise InvalidModelConfig(_WORKERS_VARIABLE, [f"the variable is {variable!r}, it must be an integer from 0"])
    return int(variable)
