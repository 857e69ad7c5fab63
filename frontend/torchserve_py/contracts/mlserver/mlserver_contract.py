"""What an MLServer model's `model-settings.json`, and `settings.json`, say about how it is to be served.

MLServer reads one `settings.json`, in the folder that it serves. Here that of the model store holds for all models, and
one beside a `model-settings.json` for its model; where both have a key the model's counts.

All values that the server or the worker acts on are checked here, all of them at once. What MLServer itself does, and
unknown keys, have no effect; a warning says so. `docs/mlserver.md` has every key.
"""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field

from torchserve_py.apis.open_inference.declared_tensors import DATATYPE
from torchserve_py.base.settings.schemas.schema import Schema, read
from torchserve_py.base.settings.schemas.values import AnyText, Expected, Listed, Nested, json_object
from torchserve_py.contracts.mlserver.mlserver_kind import MLSERVER
from torchserve_py.core.plans.config import InvalidModelConfig, ModelConfig
from torchserve_py.core.plans.contracts import Configured
from ts.protocol.regular_files import read_regular_text

SERVER_SETTINGS: Final = "settings.json"
_SHARED_SETTINGS: Final = f"{SERVER_SETTINGS} of the model store"
_PREFIX: Final = "MLSERVER_"
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
    kafka_enabled: AnyFlag = None
    logging_settings: Annotated[str | dict[str, Any] | None, Expected("a path or an object")] = None
    parallel_workers: Count = None
    server_name: AnyText = None
    use_structured_logging: AnyFlag = None


#: What a worker reads; it gets those of the model store as variables of its environment.
_WORKERS_KEYS: Final = (
    *("cache_enabled", "cache_size", "debug"),
    *("logging_settings", "server_name", "use_structured_logging"),
)
_KAFKA: Final = "kafka_enabled"

_LISTENERS: Final = "it is about MLServer's own listeners; config.properties configures those here"
_REPOSITORY: Final = "models come from the model store and from --models"
_NO_KAFKA: Final = "Kafka is not supported"
_SERVERS_OWN: Final = "it is this server's own"
_SERVER_WITHOUT_EFFECT: Final[Mapping[str, str]] = {
    **dict.fromkeys(("host", "http_port", "root_path", "grpc_port", "grpc_max_message_length"), _LISTENERS),
    **dict.fromkeys(("cors_settings", "metrics_endpoint", "metrics_port"), _LISTENERS),
    **dict.fromkeys(("model_repository_implementation", "model_repository_implementation_args"), _REPOSITORY),
    **dict.fromkeys(("model_repository_root", "load_models_at_startup"), _REPOSITORY),
    **dict.fromkeys(("kafka_servers", "kafka_topic_input", "kafka_topic_output"), _NO_KAFKA),
    **dict.fromkeys(("server_version", "extensions", "metrics_rest_server_prefix", "metrics_dir"), _SERVERS_OWN),
    "environments_dir": _OWN_ENVIRONMENT,
    "gzip_enabled": "response_compression_min_size in config.properties says which responses are compressed",
    "parallel_workers_timeout": "drain_timeout in config.properties says how long a stop takes at most",
    "tracing_server": "traces in config.properties, and OTEL_EXPORTER_OTLP_ENDPOINT, say where traces go",
}

_MODEL_WITHOUT_EFFECT: Final[Mapping[str, str]] = {
    "parallel_workers": f"{SERVER_SETTINGS} and model-config.yaml (minWorkers) say how many workers there are",
    "warm_workers": "workers are always started before the first request",
}
_PARAMETERS_WITHOUT_EFFECT: Final[Mapping[str, str]] = {
    "environment_path": _OWN_ENVIRONMENT,
    "environment_tarball": _OWN_ENVIRONMENT,
    "inference_pool_gid": "every model has workers of its own",
    "autogenerate_inference_pool_gid": "every model has workers of its own",
}


def configure(model_dir: Path, yaml: ModelConfig, store: Path | None = None) -> Configured:
    """Complete a model's configuration by what its settings files and the environment say.

    Args:
        store: The model store, whose `settings.json` holds for all models.

    Raises:
        InvalidModelConfig: A value is none that can be acted on.
    """
    given = _read(model_dir / MLSERVER.file)
    settings, wrong = read(ModelSettings, given)
    problems = list(wrong.values())
    if not (given.get("implementation") or os.environ.get(f"{_MODEL_PREFIX}IMPLEMENTATION")):
        problems.append('implementation is missing, it must be a module and a class in it, such as "model.MyModel"')
    if problems:
        raise InvalidModelConfig(MLSERVER.file, problems)
    own, warnings_of_own = _server_settings(model_dir, SERVER_SETTINGS)
    shared, shared_warnings = ServerSettings(), list[str]()
    if store is not None and store.resolve() != model_dir.resolve():
        shared, shared_warnings = _server_settings(store, _SHARED_SETTINGS)
    _refuse_kafka(own, shared)
    parameters = given.get("parameters") or {}
    where = f"{MLSERVER.file}, parameters"
    warnings = [
        *_warnings(MLSERVER.file, _MODEL_WITHOUT_EFFECT, given, settings),
        *_warnings(where, _PARAMETERS_WITHOUT_EFFECT, parameters, settings.parameters, closed=False),
        *warnings_of_own,
        *_batching_warnings(settings),
    ]
    return Configured(
        _completed(yaml, own, shared, warnings),
        name=settings.name or os.environ.get(f"{_MODEL_PREFIX}NAME") or None,
        version=settings.parameters.version or os.environ.get(f"{_MODEL_PREFIX}VERSION") or None,
        environment={} if store is None else _environment(shared, store),
        shared_warnings=shared_warnings,
    )


def _server_settings(folder: Path, source: str) -> tuple[ServerSettings, list[str]]:
    """Return the settings in a folder's file, if there is one, and warnings about it."""
    if not (folder / SERVER_SETTINGS).is_file():
        return ServerSettings(), []
    given = _read(folder / SERVER_SETTINGS)
    server, wrong = read(ServerSettings, given)
    if wrong:
        raise InvalidModelConfig(source, list(wrong.values()))
    return server, list(_warnings(source, _SERVER_WITHOUT_EFFECT, given, server))


def _refuse_kafka(own: ServerSettings, shared: ServerSettings) -> None:
    """Refuse a model that is to get its requests from Kafka: it would never get one."""
    variable = f"{_PREFIX}{_KAFKA.upper()}"
    by_variable, _ = read(ServerSettings, {_KAFKA: os.environ.get(variable)})
    for source, each in ((SERVER_SETTINGS, own), (_SHARED_SETTINGS, shared), (variable, by_variable)):
        if each.kafka_enabled is None:
            continue
        if each.kafka_enabled:
            advice = "it must be false, and a consumer of your own can send requests"
            raise InvalidModelConfig(
                source, [f"{_KAFKA} is true, but {_NO_KAFKA}: the model would get no message; {advice}"]
            )
        return


def _environment(shared: ServerSettings, store: Path) -> dict[str, str]:
    """Return what the workers are to read of the model store's settings, as variables of their environment."""
    values = {name: value for name in _WORKERS_KEYS if (value := getattr(shared, name)) is not None}
    if isinstance(path := values.get("logging_settings"), str) and (store / path).is_file():
        values["logging_settings"] = str((store / path).resolve())
    return {
        f"{_PREFIX}{name.upper()}": value if isinstance(value, str) else json.dumps(value)
        for name, value in values.items()
    }


def _read(path: Path) -> dict[str, Any]:
    try:
        text = read_regular_text(path, _MAX_BYTES)
        if text.count(",") >= _MAX_VALUES:
            raise ValueError(f"it has more than {_MAX_VALUES} values")
        return json_object(text)
    except (OSError, ValueError) as error:
        raise InvalidModelConfig(path.name, [f"the file cannot be used: {error}"]) from error


def _warnings(
    source: str, without_effect: Mapping[str, str], given: Mapping[str, Any], values: Schema, *, closed: bool = True
) -> Iterator[str]:
    """What the keys of a file do not do; a model may have keys of its own where the file is not ``closed``."""
    known = type(values).model_fields
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
            f"{MLSERVER.file}: max_batch_size is {size} and max_batch_time is {seconds:g}; requests are batched"
            " only where the one is above 1 and the other above 0"
        )


def _completed(yaml: ModelConfig, own: ServerSettings, shared: ServerSettings, warnings: list[str]) -> ModelConfig:
    """The configuration with as many workers as the settings say; MLServer's default is one."""
    workers = yaml.min_workers
    if workers is None and yaml.max_workers is None:
        # 0 means MLServer's own process, and there is no such thing here.
        workers = max(_parallel_workers(own, shared), 1)
    return yaml.completed(warnings, min_workers=workers)


def _parallel_workers(*files: ServerSettings) -> int:
    """Return what the first of the files says, else the environment."""
    for each in files:
        if each.parallel_workers is not None:
            return each.parallel_workers
    variable = os.environ.get(_WORKERS_VARIABLE, "1")
    if not variable.isascii() or not variable.isdigit():
        raise InvalidModelConfig(_WORKERS_VARIABLE, [f"the variable is {variable!r}, it must be an integer from 0"])
    return int(variable)
