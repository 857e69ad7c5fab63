"""The plan of a model version, made from a registration, the model's files and the settings; it starts nothing.

Registering a model and `--check-config` share this code, so that the check predicts what a registration does.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from torchserve_py.base.settings.schemas.versions import VersionSettings
from torchserve_py.base.settings.table import Settings
from torchserve_py.core.archive.contracts import known_contracts
from torchserve_py.core.archive.model_files import ModelFiles
from torchserve_py.core.plans.config import InvalidModelConfig
from torchserve_py.core.plans.contracts import Configured
from torchserve_py.core.plans.effective_config import EffectiveConfig
from torchserve_py.core.plans.precedence import Hardware, resolve
from torchserve_py.core.plans.sequence_states import SequenceStates
from torchserve_py.core.serving.errors import InvalidModel
from torchserve_py.core.serving.serving import RegisterRequest
from torchserve_py.core.workers.devices import (
    DeviceAssignment,
    Devices,
    ModelDevices,
    UnsuitableDevices,
    available_processors,
)

#: Bytes of a name or a version in UTF-8: file names, which may have 255 bytes, contain a name and more.
MAX_NAME_BYTES: Final = 200
#: Reserved in the paths of the Open Inference Protocol.
_RESERVED_NAME: Final = "stats"
_SHOWN_CHARACTERS: Final = 60


@dataclass(frozen=True)
class Plan:
    """All decisions about how a model version is served; nothing of it runs yet."""

    name: str
    version: str
    url: str
    files: ModelFiles
    handler: str
    config: EffectiveConfig
    devices: ModelDevices
    at_startup: bool
    in_workflow: bool
    is_function: bool
    weight: int
    weight_until: int | None
    environment: Mapping[str, str]
    requirements: Sequence[str]
    requirements_file: str | None


def plan_of(
    request: RegisterRequest,
    files: ModelFiles,
    configured: Configured,
    settings: Settings,
    devices: Devices,
    states: SequenceStates,
    *,
    at_startup: bool,
) -> Plan:
    """Return the plan of a model version; ``states`` is how those of its sequences are kept, if it has sequences.

    Raises BadParameter: the registration asks for something impossible; InvalidModel: the model cannot be served as it
    is; NotEnoughDevices: one worker needs more devices than there are.
    """
    manifest = files.manifest
    name = request.model_name or configured.name or files.name
    version = configured.version or manifest.model_version
    check_names(name, version)
    entry = settings.models.get(name, {}).get(version, VersionSettings())
    try:
        config = resolve(
            request,
            configured.config,
            entry,
            settings,
            states,
            model_name=name,
            hardware=Hardware(devices.count, available_processors()),
            at_startup=at_startup,
            manifest_runtime=manifest.runtime,
            contract=files.contract,
        )
        _check_fit(config, configured, files)
        if config.node is None:
            model_devices = devices.for_model(config.device_type, config.device_ids, config.parallel_level)
        else:  # its launcher chooses the GPUs
            model_devices = ModelDevices([DeviceAssignment(0 if config.node.has_gpu else None)])
    except (InvalidModelConfig, UnsuitableDevices) as error:
        raise InvalidModel(str(error)) from error
    return Plan(
        name,
        version,
        request.url,
        files,
        _handler_of(request, files, name, settings),
        config,
        model_devices,
        at_startup,
        request.in_workflow,
        request.is_function,
        request.weight or 0,
        request.weight_until,
        configured.environment,
        configured.requirements,
        configured.requirements_file or manifest.requirements_file,
    )


def _handler_of(request: RegisterRequest, files: ModelFiles, name: str, settings: Settings) -> str:
    """Return the handler of a model, empty for code of another contract. Raises InvalidModel: none is known."""
    handler = request.handler or files.manifest.handler
    if not handler and known_contracts()[files.contract].handlers:
        handler = settings.default_service_handler
        if not handler:
            others = "".join(f", or {each.file} ({each.name})" for each in known_contracts().values() if each.file)
            raise InvalidModel(
                f"No handler is known for model {name}: name one in the manifest, in the registration, or as"
                f" default_service_handler in config.properties. A folder has handler.py{others}."
            )
    return handler or ""


def _check_fit(config: EffectiveConfig, configured: Configured, files: ModelFiles) -> None:
    """Raise InvalidModelConfig if keys of plugins do not fit the model."""
    unfit = [each for keys in config.plugin_keys.values for each in keys.unfit(config.batch_size, files.model_dir)]
    if unfit:
        raise InvalidModelConfig(configured.config.source, unfit)


def check_names(name: str, version: str, of: str = "model") -> None:
    """Check that a name and a version are unambiguous in URLs, file names, log lines and metrics; ``of`` says of what.

    Raises InvalidModel: one of them is not; the message says why.
    """
    for what, text in (("name", name), ("version", version)):
        if not text.isprintable():
            shown = text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
            raise InvalidModel(
                f"The {of} {what} {shown!r} cannot be part of a URL: it must not hold a control character."
            )
        if (size := len(text.encode())) > MAX_NAME_BYTES:
            raise InvalidModel(
                f"The {of} {what} {text[:_SHOWN_CHARACTERS]!r}… has {size} bytes, it may have {MAX_NAME_BYTES}."
            )
    if name in (".", ".."):
        raise InvalidModel(f"The {of} name {name!r} cannot be part of a URL: it means a folder there.")
    if "/" in name:
        raise InvalidModel(f"The {of} name {name!r} cannot be part of a URL: it must not hold a slash.")
    if name == _RESERVED_NAME and of == "model":
        raise InvalidModel(f"The model name {name!r} is taken: /v2/models/{name} has the statistics of all models.")
