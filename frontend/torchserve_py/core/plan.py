"""The plan of a model version, made from a registration, the model's files and the settings; it starts nothing.

Registering a model and `--check-config` share this code, so that the check predicts what a registration does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torchserve_py.archive.contract import CONTRACTS
from torchserve_py.archive.manifest import Manifest
from torchserve_py.archive.model_files import ModelFiles
from torchserve_py.core.config import InvalidModelConfig, ModelConfig
from torchserve_py.core.contracts import Configured
from torchserve_py.core.effective import EffectiveConfig, Hardware, RegistrationOverrides, resolve
from torchserve_py.core.errors import InvalidModel
from torchserve_py.core.names import check_names
from torchserve_py.core.serving import RegisterRequest
from torchserve_py.settings.schemas.versions import VersionSettings
from torchserve_py.settings.table import Settings
from torchserve_py.workers.devices import Devices, ModelDevices, UnsuitableDevices
from torchserve_py.workers.processors import available_processors


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
    environment: Mapping[str, str]
    requirements: Sequence[str]
    requirements_file: str | None


def _settle(
    request: RegisterRequest,
    name: str,
    version: str,
    manifest: Manifest,
    yaml: ModelConfig,
    settings: Settings,
    devices: Devices,
    *,
    at_startup: bool,
    contract: str,
) -> tuple[EffectiveConfig, ModelDevices]:
    """Return the effective configuration of a model version, and its devices.

    Raises:
        BadParameter: The registration call asks for something impossible.
        InvalidModelConfig: The model's configuration asks for something impossible on this hardware.
        NotEnoughDevices: One worker needs more devices than there are.
        UnsuitableDevices: The devices do not meet the model's requirements.
    """
    config = resolve(
        RegistrationOverrides(
            batch_size=request.batch_size,
            max_batch_delay=request.max_batch_delay,
            initial_workers=request.initial_workers,
            max_workers=request.max_workers,
            response_timeout=request.response_timeout,
            startup_timeout=request.startup_timeout,
            runtime=request.runtime,
        ),
        yaml,
        settings.models.get(name, {}).get(version, VersionSettings()),
        settings,
        model_name=name,
        hardware=Hardware(gpus=devices.count, cpus=available_processors()),
        at_startup=at_startup,
        manifest_runtime=manifest.runtime,
        contract=contract,
    )
    return config, devices.for_model(config.device_type, config.device_ids, config.parallel_level)


def plan_of(
    request: RegisterRequest,
    files: ModelFiles,
    configured: Configured,
    settings: Settings,
    devices: Devices,
    *,
    at_startup: bool,
) -> Plan:
    """Return the plan of a model version.

    Args:
        request: The registration.
        files: The model's files.
        configured: The configuration in these files, as read by `contracts.configuration_of`.
        settings: The server's settings.
        devices: The host's devices.
        at_startup: Whether the server loads the model when it starts.

    Raises:
        BadParameter: The registration asks for something impossible.
        InvalidModel: The model cannot be served as it is.
        NotEnoughDevices: One worker needs more devices than there are.
    """
    manifest = files.manifest
    name = request.model_name or configured.name or files.name
    version = configured.version or manifest.model_version
    check_names(name, version)
    try:
        config, model_devices = _settle(
            request,
            name,
            version,
            manifest,
            configured.config,
            settings,
            devices,
            at_startup=at_startup,
            contract=files.contract,
        )
    except (InvalidModelConfig, UnsuitableDevices) as error:
        raise InvalidModel(str(error)) from error
    handler = request.handler or manifest.handler
    if not handler and CONTRACTS[files.contract].handlers:
        handler = settings.default_service_handler
        if not handler:
            raise InvalidModel(
                f"No handler is known for model {name}: name one in the manifest, in the registration, or as"
                " default_service_handler in config.properties."
            )
    return Plan(
        name,
        version,
        request.url,
        files,
        handler or "",
        config,
        model_devices,
        at_startup,
        request.in_workflow,
        configured.environment,
        configured.requirements,
        configured.requirements_file or manifest.requirements_file,
    )
