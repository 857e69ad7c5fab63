"""What a Truss's `config.yaml` says about how the model is to be served.

The keys that the server or the worker acts on are checked here, all of them at once. Those of Truss's build and of its
platform are left alone, and so are unknown ones: the model gets the whole file. `docs/truss.md` has them all.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, Final

from torchserve_py.archive.contract import TRUSS_CONFIG
from torchserve_py.models.config import InvalidModelConfig, ModelConfig
from torchserve_py.models.contracts import Configured
from torchserve_py.models.yaml_mapping import UnreadableYaml, YamlMapping, read_yaml_mapping

_RESERVED_VARIABLES: Final = ("PORT", "HOSTNAME")
_SHOWN_LENGTH: Final = 80
_STARTUP_THRESHOLD: Final = "runtime.health_checks.startup_threshold_seconds"
#: Seconds for loading, where that key does not say how many: in Truss the platform decides, and weights are large.
_STARTUP_TIMEOUT: Final = 1800
#: In seconds. Truss has no limit, and requests that wait for a slot of predict are silent too; this one is its limit on
#: what still runs when it shuts down.
_RESPONSE_TIMEOUT: Final = 3600


@dataclass(frozen=True, slots=True)
class _Rule:
    """What a key's value must be; null is a key that is not there."""

    expected: str
    allows: Callable[[Any], bool]


def _is_inside(value: Any) -> bool:
    return isinstance(value, str) and value != "" and not {"..", "/"} & set(PurePosixPath(value).parts)


def _are_variables(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and not set(_RESERVED_VARIABLES) & set(value)
        and all(isinstance(name, str) and name and "=" not in name for name in value)
        and not any(isinstance(each, dict | list) for each in value.values())
    )


def _are_secrets(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(name, str) and isinstance(default, str | None) for name, default in value.items()
    )


def _gpus(accelerator: Any) -> int | None:
    """How many GPUs ``TYPE`` or ``TYPE:n`` asks for, None where it is neither."""
    if not isinstance(accelerator, str):
        return None
    kind, colon, count = accelerator.partition(":")
    if not colon:
        return 1 if kind else 0
    return int(count) if kind and count.isascii() and count.isdigit() and int(count) >= 1 else None


_TEXT = _Rule("a text", lambda value: isinstance(value, str) and value != "")
_FLAG = _Rule("true or false", lambda value: isinstance(value, bool))
_COUNT = _Rule("an integer from 1", lambda value: type(value) is int and value >= 1)
_SECONDS = _Rule("a number of seconds above 0", lambda value: type(value) in (int, float) and value > 0)
_TEXTS = _Rule("a list of texts", lambda value: isinstance(value, list) and all(isinstance(it, str) for it in value))
_MAP = _Rule("a map", lambda value: isinstance(value, dict))
_INSIDE = _Rule("a path inside of the Truss's folder", _is_inside)

_RULES: Final[Mapping[str, _Rule]] = {
    "model_module_dir": _INSIDE,
    "model_class_filename": _INSIDE,
    "model_class_name": _TEXT,
    "bundled_packages_dir": _INSIDE,
    "external_package_dirs": _TEXTS,
    "apply_library_patches": _FLAG,
    "secrets": _Rule("a map from names to a text or null", _are_secrets),
    "requirements": _TEXTS,
    "requirements_file": _INSIDE,
    "environment_variables": _Rule(
        f"a map from names to texts or numbers, without {' and '.join(_RESERVED_VARIABLES)}", _are_variables
    ),
    "resources": _MAP,
    "resources.accelerator": _Rule(
        "the kind of a GPU, such as A10G, or with a number: A10G:2", lambda it: _gpus(it) is not None
    ),
    "runtime": _MAP,
    "runtime.predict_concurrency": _COUNT,
    "runtime.streaming_read_timeout": _COUNT,
    "runtime.enable_tracing_data": _FLAG,
    "runtime.enable_debug_logs": _FLAG,
    "runtime.num_workers": _Rule("1 (minWorkers in model-config.yaml gives a model more workers)", lambda it: it == 1),
    "runtime.transport": _MAP,
    "runtime.transport.kind": _Rule("http or websocket", lambda it: it in ("http", "websocket")),
    "runtime.transport.ping_interval_seconds": _SECONDS,
    "runtime.transport.ping_timeout_seconds": _SECONDS,
    "runtime.health_checks": _MAP,
    _STARTUP_THRESHOLD: _COUNT,
    "docker_server": _Rule(
        "left out: a server in a container of its own has no model class to serve", lambda it: not it
    ),
}

#: What Truss's build does for a model and this server does not, and what its owner can do about it.
_NOT_DONE: Final[Mapping[str, str]] = {
    "external_data": "nothing is fetched: put the files into the Truss's data folder",
    "weights": "nothing is fetched: load() must find them or fetch them itself",
    "model_cache": "nothing is fetched: load() must find the weights or fetch them itself",
    "trt_llm": "no engine is built, and the class gets no argument trt_llm",
    "system_packages": "they are not installed: the server's host must have them",
    "build_commands": "they are not run: the server's host must be as they would leave it",
}


def configure(model_dir: Path, yaml: ModelConfig) -> Configured:
    """Complete a model's configuration by what its `config.yaml` says.

    Raises:
        InvalidModelConfig: A value is none that can be acted on, or a file that is named is missing.
    """
    mapping = _read(model_dir / TRUSS_CONFIG)
    problems = list(_problems(mapping))
    if not problems:
        problems = list(_missing(mapping, model_dir))
    if problems:
        raise InvalidModelConfig(TRUSS_CONFIG, problems)
    values = mapping.values
    variables = _value(values, "environment_variables") or {}
    return Configured(
        _completed(yaml, values, mapping.repeated),
        environment={name: _as_text(value) for name, value in variables.items() if value is not None},
        requirements=tuple(_requirements(values, model_dir)),
        requirements_file=_requirements_file(values),
    )


def _read(path: Path) -> YamlMapping:
    try:
        return read_yaml_mapping(path, last_wins=True)
    except UnreadableYaml as error:
        raise InvalidModelConfig(path.name, [str(error)]) from error
    except OSError as error:
        raise InvalidModelConfig(path.name, [f"the file cannot be read: {error.strerror or error}"]) from error


def _value(values: Mapping[Any, Any], name: str) -> Any:
    """The value of a dotted name, None where it is not given."""
    value: Any = values
    for key in name.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _problems(mapping: YamlMapping) -> Iterator[str]:
    for name, rule in _RULES.items():
        value = _value(mapping.values, name)
        if value is not None and not rule.allows(value):
            line = mapping.lines.get(name.partition(".")[0])
            shown = repr(value)
            shown = shown if len(shown) <= _SHOWN_LENGTH else f"{shown[: _SHOWN_LENGTH - 3]}..."
            place = f"line {line}: " if line else ""
            yield f"{place}{name} is {shown} ({type(value).__name__}), it must be {rule.expected}"
    if _value(mapping.values, "requirements") and _value(mapping.values, "requirements_file"):
        yield "requirements and requirements_file are both given; keep one of them"


def _missing(mapping: YamlMapping, model_dir: Path) -> Iterator[str]:
    """What the file names but the folder does not hold."""
    values = mapping.values
    folder = _value(values, "model_module_dir") or "model"
    class_file = _value(values, "model_class_filename") or "model.py"
    if not (model_dir / folder / class_file).is_file():
        yield (
            f"there is no file {folder}/{class_file} with the model class"
            " (model_module_dir and model_class_filename say where it is)"
        )
    listed = _value(values, "requirements_file")
    if listed and not (model_dir / listed).is_file():
        yield f"requirements_file is {listed!r}, but there is no such file"
    elif listed and PurePosixPath(listed).name == "uv.lock":
        yield f"requirements_file is {listed!r}: a lock file of uv is not read, export it: uv export > requirements.txt"


def _completed(yaml: ModelConfig, values: Mapping[Any, Any], repeated: tuple[str, ...]) -> ModelConfig:
    """The configuration with what the file says, and what holds for every Truss, where it says nothing itself."""
    defaults: dict[str, Any] = {
        "min_workers": None if yaml.max_workers else 1,  # in Truss a replica is one process with one copy of the model
        "startup_timeout": _value(values, _STARTUP_THRESHOLD) or _STARTUP_TIMEOUT,
        "response_timeout": _RESPONSE_TIMEOUT,
    }
    if not (yaml.device_type or yaml.device_ids or yaml.parallel_type):
        defaults |= _devices(_gpus(_value(values, "resources.accelerator") or "") or 0)
    given = {name: value for name, value in defaults.items() if getattr(yaml, name) is None}
    warnings = [*yaml.warnings, *repeated]
    slots = _value(values, "runtime.predict_concurrency") or 1
    if yaml.concurrency_target and yaml.concurrency_target < slots:
        warnings.append(
            f"concurrencyTarget is {yaml.concurrency_target}, so that no more than that many of the {slots} slots of"
            " runtime.predict_concurrency are ever in use"
        )
    warnings += [f"{key} has no effect: {advice}" for key, advice in _NOT_DONE.items() if _value(values, key)]
    return replace(yaml, **given, warnings=tuple(warnings))


def _devices(gpus: int) -> dict[str, Any]:
    """A Truss takes the first GPU that it sees, so its worker is shown its own ones only."""
    if not gpus:
        return {"device_type": "cpu"}
    return {"device_type": "gpu", "parallel_type": "custom", "parallel_level": gpus}


def _requirements(values: Mapping[Any, Any], model_dir: Path) -> list[str]:
    """What pip is to install, but for a file that it reads itself."""
    listed = _value(values, "requirements_file")
    if not listed or PurePosixPath(listed).suffix != ".toml":
        return list(_value(values, "requirements") or ())
    try:
        project = tomllib.loads((model_dir / listed).read_text(encoding="utf-8")).get("project", {})
        return [str(each) for each in project.get("dependencies", [])]
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise InvalidModelConfig(listed, [f"the dependencies of its project cannot be read: {error}"]) from error


def _requirements_file(values: Mapping[Any, Any]) -> str | None:
    listed = _value(values, "requirements_file")
    return listed if listed and PurePosixPath(listed).suffix != ".toml" else None


def _as_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
