"""What a Truss's `config.yaml` says about how the model is to be served.

The keys that the server or the worker acts on are checked here, all of them at once. Those of Truss's build and of its
platform are left alone, and so are unknown ones: the model gets the whole file. `docs/truss.md` has them all.
"""

import ast
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Final, Literal

from torchserve_py.base.python_source import parse
from torchserve_py.base.settings.schemas.plugin_keys import ModelConfigKeys
from torchserve_py.base.settings.schemas.schema import ClosedSchema, Schema, key, read
from torchserve_py.base.settings.schemas.values import Expected, Flag, Nested, Seconds, Text, Texts, integer, is_inside
from torchserve_py.base.settings.schemas.yaml_mapping import YamlMapping
from torchserve_py.contracts.truss.truss_kind import TRUSS
from torchserve_py.core.plans.config import InvalidModelConfig, ModelConfig, read_mapping
from torchserve_py.core.plans.contracts import Configured
from ts.contracts.truss.class_file import CLASS_ARGUMENTS
from ts.protocol.regular_files import read_regular, read_regular_text

_RESERVED_VARIABLES: Final = ("PORT", "HOSTNAME")
#: Seconds for loading without ``startup_threshold_seconds``: in Truss the platform decides, and weights are large.
_STARTUP_TIMEOUT: Final = 1800
#: In seconds. Truss has no limit, and requests that wait for a slot of predict are silent too; this one is its limit on
#: what still runs when it shuts down.
_RESPONSE_TIMEOUT: Final = 3600


#: A class file is looked at up to that many bytes.
_MAX_CLASS_FILE: Final = 1 << 20
_MAX_PROJECT_FILE: Final = 1 << 20


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


_INSIDE: Final = Expected("a path inside of the Truss's folder", is_inside)
Inside = Annotated[str | None, _INSIDE]
Count = Annotated[int | None, integer(1)]


class Resources(Schema):
    """``resources``: of the platform's, the server knows the GPUs."""

    accelerator: Annotated[
        str | None,
        Expected("the kind of a GPU, such as A10G, or with a number: A10G:2", lambda value: _gpus(value) is not None),
    ] = None


class Transport(Schema):
    """``runtime.transport``: how clients reach the model."""

    kind: Annotated[str | None, Expected("http or websocket", lambda value: value in ("http", "websocket"))] = None
    ping_interval_seconds: Seconds = None
    ping_timeout_seconds: Seconds = None


class HealthChecks(Schema):
    """``runtime.health_checks``."""

    startup_threshold_seconds: Count = None


class Runtime(Schema):
    """``runtime``: how the model's process serves requests."""

    predict_concurrency: Count = None
    streaming_read_timeout: Count = None
    enable_tracing_data: Flag = None
    enable_debug_logs: Flag = None
    num_workers: Annotated[
        int | None,
        Expected("1 (minWorkers in model-config.yaml gives a model more workers)", lambda value: value == 1),
    ] = None
    transport: Annotated[Transport, Nested()] = Transport()
    health_checks: Annotated[HealthChecks, Nested()] = HealthChecks()


class TrussConfig(Schema):
    """What the server and its workers act on of a Truss's `config.yaml`."""

    model_module_dir: Inside = None
    model_class_filename: Inside = None
    model_class_name: Text = None
    bundled_packages_dir: Inside = None
    external_package_dirs: Texts = None
    apply_library_patches: Flag = None
    secrets: Annotated[dict[str, str | None] | None, Expected("a map from names to a text or null", _are_secrets)] = (
        None
    )
    requirements: Texts = None
    requirements_file: Inside = None
    environment_variables: Annotated[
        dict[str, Any] | None,
        Expected(f"a map from names to texts or numbers, without {' and '.join(_RESERVED_VARIABLES)}", _are_variables),
    ] = None
    resources: Annotated[Resources, Nested()] = Resources()
    runtime: Annotated[Runtime, Nested()] = Runtime()
    docker_server: Annotated[
        Any, Expected("left out: a server in a container of its own has no model class to serve", lambda it: not it)
    ] = None


class TrussOptions(ClosedSchema):
    """The map ``truss`` of `model-config.yaml`: what this server offers beyond Truss."""

    cancel_on_disconnect: Flag = key("cancelOnDisconnect", "whether coroutines are cancelled when their client leaves")
    stream_errors: Annotated[
        Literal["abort", "end"] | None, Expected("abort or end", lambda value: value in ("abort", "end"))
    ] = key("streamErrors", "how a stream that fails midway ends")
    alias_concurrency: Count = key("aliasConcurrency", "alias methods that run at once in one worker")
    hot_reload: Flag = key("hotReload", "whether a client may have the code reloaded")


class OptionsKey(ModelConfigKeys):
    """`model-config.yaml`, of which this contract has one key."""

    truss: Annotated[TrussOptions | None, Nested("a map, for example {cancelOnDisconnect: true}")] = key(
        None, "what this server offers beyond [Truss](truss.md)"
    )


#: The modules of Truss's server.
_TRUSS_MODULES: Final = ("_truss_shared", "_truss_common")
TRT_LLM: Final = "trt_llm"
#: What Truss's build does for a model and this server does not, and what its owner can do about it.
_NOT_DONE: Final[Mapping[str, str]] = {
    "external_data": "nothing is fetched: put the files into the Truss's data folder",
    "weights": "nothing is fetched: load() must find them or fetch them itself",
    "model_cache": "nothing is fetched: load() must find the weights or fetch them itself",
    TRT_LLM: f"no engine is built, and the class gets no argument {TRT_LLM}",
    "system_packages": "they are not installed: the server's host must have them",
    "build_commands": "they are not run: the server's host must be as they would leave it",
}


def configure(model_dir: Path, yaml: ModelConfig, _store: Path | None = None) -> Configured:
    """Complete a model's configuration by what its `config.yaml` says.

    Raises InvalidModelConfig: a value is none that can be acted on, or a file that is named is missing.
    """
    mapping = read_mapping(model_dir / TRUSS.file, last_wins=True)
    config, wrong = read(TrussConfig, mapping.values, lines=mapping.lines)
    problems = list(wrong.values())
    requirements = tuple(each for each in config.requirements or () if each.strip() and each.lstrip()[0] != "#")
    if requirements and config.requirements_file:
        problems.append("requirements and requirements_file are both given; keep one of them")
    has_engine = bool(mapping.values.get(TRT_LLM))
    if not problems:
        problems += [*_missing(config, model_dir, has_engine=has_engine), *_not_given(config, model_dir)]
    if problems:
        raise InvalidModelConfig(TRUSS.file, problems)
    variables = {name: value for name, value in (config.environment_variables or {}).items() if value is not None}
    listed = config.requirements_file or ""
    is_project = PurePosixPath(listed).suffix == ".toml"
    return Configured(
        _completed(yaml, config, mapping),
        environment={
            name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in variables.items()
        },
        requirements=_dependencies(listed, model_dir) if is_project else requirements,
        requirements_file=None if is_project else config.requirements_file,
    )


def _missing(config: TrussConfig, model_dir: Path, *, has_engine: bool) -> Iterator[str]:
    """What the file names but the folder does not hold; an engine of TensorRT-LLM needs no class in Truss."""
    folder = config.model_module_dir or "model"
    class_file = config.model_class_filename or "model.py"
    is_there = (model_dir / folder / class_file).is_file()
    if not is_there and has_engine:
        yield (
            f"{TRT_LLM} is given and there is no model class: Truss builds an engine of TensorRT-LLM then, and nothing"
            f" here does. Serve the checkpoint with vllm_handler, or write the class ({folder}/{class_file})"
        )
    elif not is_there:
        yield (
            f"there is no file {folder}/{class_file} with the model class"
            " (model_module_dir and model_class_filename say where it is)"
        )
    listed = config.requirements_file
    if listed and not (model_dir / listed).is_file():
        yield f"requirements_file is {listed!r}, but there is no such file"
    elif listed and PurePosixPath(listed).name == "uv.lock":
        yield f"requirements_file is {listed!r}: a lock file of uv is not read, export it: uv export > requirements.txt"


def _not_given(config: TrussConfig, model_dir: Path) -> Iterator[str]:
    """What the model class needs and does not get, as far as the text of its file shows it."""
    path = Path(config.model_module_dir or "model") / (config.model_class_filename or "model.py")
    name = config.model_class_name or "Model"
    try:
        tree = parse(read_regular(model_dir / path, _MAX_CLASS_FILE))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return  # the worker says what is wrong with it
    if any(module in _TRUSS_MODULES for module in _imported(tree)):
        yield (
            f"{path} imports modules of Truss's own server ({', '.join(_TRUSS_MODULES)}), which are not here: a class"
            " gets its secrets, its environment and its data as arguments"
        )
    for argument in _needed_arguments(tree, name):
        if argument not in CLASS_ARGUMENTS:
            reason = f": {_NOT_DONE[argument]}" if argument in _NOT_DONE else ""
            yield (
                f"the class {name} of {path} needs the argument {argument}, which it does not get{reason};"
                f" a class gets {', '.join(CLASS_ARGUMENTS)}"
            )


def _imported(tree: ast.Module) -> Iterator[str]:
    """The packages of which plain statements of a file import something."""
    for each in tree.body:
        if isinstance(each, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in each.names)
        elif isinstance(each, ast.ImportFrom) and each.module and not each.level:
            yield each.module.partition(".")[0]


def _needed_arguments(tree: ast.Module, class_name: str) -> list[str]:
    """The arguments that the class's own ``__init__`` cannot do without; none where another class or code decides.

    They are its parameters without a default, and the engine where it reads that of its ``**kwargs``.
    """
    found = [each for each in tree.body if isinstance(each, ast.ClassDef) and each.name == class_name]
    if len(found) != 1 or found[0].decorator_list or found[0].keywords:
        return []
    own = [each for each in found[0].body if isinstance(each, ast.FunctionDef) and each.name == "__init__"]
    if len(own) != 1 or own[0].decorator_list:
        return []
    arguments = own[0].args
    positional = [*arguments.posonlyargs, *arguments.args]
    needed = positional[1 : len(positional) - len(arguments.defaults)]
    needed += [each for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if not default]
    named = [each.arg for each in needed]
    return [*named, TRT_LLM] if arguments.kwarg and _reads_engine(arguments.kwarg.arg, own[0].body) else named


def _reads_engine(mapping: str, body: Sequence[ast.stmt]) -> bool:
    """Whether plain statements read the engine of a mapping; what stands beneath a condition may never be run."""
    read = f"{mapping}[{TRT_LLM!r}]"
    plain = [each for each in body if isinstance(each, ast.Assign | ast.AnnAssign | ast.Expr)]
    nodes = [node for statement in plain for node in ast.walk(statement)]
    if any(isinstance(node, ast.IfExp | ast.BoolOp | ast.Lambda) for node in nodes):
        return False
    return any(isinstance(node, ast.Subscript) and ast.unparse(node) == read for node in nodes)


def _completed(yaml: ModelConfig, config: TrussConfig, mapping: YamlMapping) -> ModelConfig:
    """The configuration with what the file says, and what holds for every Truss, where it says nothing itself."""
    defaults: dict[str, Any] = {
        "min_workers": None if yaml.max_workers else 1,  # in Truss a replica is one process with one copy of the model
        "startup_timeout": config.runtime.health_checks.startup_threshold_seconds or _STARTUP_TIMEOUT,
        "response_timeout": _RESPONSE_TIMEOUT,
    }
    if not (yaml.device_type or yaml.device_ids or yaml.parallel_type):
        gpus = _gpus(config.resources.accelerator or "")
        # A Truss takes the first GPU that it sees, so its worker is shown its own ones only.
        on_gpus = {"device_type": "gpu", "parallel_type": "custom", "parallel_level": gpus}
        defaults |= on_gpus if gpus else {"device_type": "cpu"}
    given = {name: value for name, value in defaults.items() if getattr(yaml, name) is None}
    warnings = [*mapping.repeated]
    slots = config.runtime.predict_concurrency or 1
    if yaml.concurrency_target and yaml.concurrency_target < slots:
        warnings.append(
            f"concurrencyTarget is {yaml.concurrency_target}, so that no more than that many of the {slots} slots of"
            " runtime.predict_concurrency are ever in use"
        )
    warnings += [f"{key} has no effect: {advice}" for key, advice in _NOT_DONE.items() if mapping.values.get(key)]
    return yaml.completed(warnings, **given)


def _dependencies(listed: str, model_dir: Path) -> tuple[str, ...]:
    """The dependencies of a project, which a file of TOML lists."""
    try:
        project = tomllib.loads(read_regular_text(model_dir / listed, _MAX_PROJECT_FILE)).get("project", {})
        return tuple(str(each) for each in project.get("dependencies", []))
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise InvalidModelConfig(listed, [f"the dependencies of its project cannot be read: {error}"]) from error
