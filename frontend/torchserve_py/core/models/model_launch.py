"""How the workers of a model are launched, and what they are told to load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torchserve_py.base.settings.schemas.model_config import ASYNCHRONOUS, CONTINUOUS
from torchserve_py.base.settings.state_folders import StateFolders
from torchserve_py.base.settings.table import Settings
from torchserve_py.core.archive.file_function import FileFunction
from torchserve_py.core.jobs.job_observer import JobObserver
from torchserve_py.core.models.worker_modules import ADAPTERS, FORMS, ROW_READERS, RUNTIMES, STEPS
from torchserve_py.core.plans.effective_config import EffectiveConfig
from torchserve_py.core.plans.plan import Plan
from torchserve_py.core.torchrun.torchrun import torchrun_of
from torchserve_py.core.workers.devices import DeviceAssignment, available_processors
from torchserve_py.core.workers.launch_command import CpuLauncher, Launch, RankGroup
from torchserve_py.core.workers.pool import PoolPlace
from torchserve_py.core.workers.worker_launcher import NodeShare
from torchserve_py.plugins import contracts
from torchserve_py.version import __version__
from ts.protocol.log_records import FORMAT_VARIABLE
from ts.protocol.messages import Load


def launch_of(
    general: Launch,
    plan: Plan,
    device: DeviceAssignment,
    place: PoolPlace,
    settings: Settings,
) -> Launch:
    """Return how the workers in a place of a model's pool are launched.

    Args:
        general: What holds for the workers of all models.
    """
    config = plan.config
    environment = {**plan.environment, **_variables(settings), **device.environment}
    group = None
    if config.ranks:
        launcher = torchrun_of(config.plugin_keys)
        group = RankGroup(
            config.ranks,
            every_rank=config.parallel_type != "pp",
            name=f"{plan.name}_{place.worker_id}",
            log_dir=settings.log_location,
            launcher=launcher,
        )
        environment |= launcher.environment
    cpu_launcher = None
    if settings.cpu_launcher_enable:
        cpu_launcher = CpuLauncher(tuple((settings.cpu_launcher_args or "").split()), place.index, place.count)
    return replace(
        general,
        working_dir=plan.files.model_dir,
        runtime=config.runtime,
        environment=environment,
        gpu_index=device.devices[0].gpu_index if device.devices else None,
        venv_python=plan.files.venv_python,
        packages_dir=plan.files.packages_dir,
        ranks=group,
        cpu_launcher=cpu_launcher,
        ahead=sends_ahead(config, settings),
        plugin_keys=config.plugin_keys,
        handler=plan.handler,
    )


def _variables(settings: Settings) -> dict[str, str]:
    """Return the variables that the workers of all models have."""
    # TorchServe's workers read most of these names; a handler may as well.
    variables = {
        "TS_REQUEST_SEQUENCE_ID": settings.ts_header_key_sequence_id,
        "TS_REQUEST_SEQUENCE_START": settings.ts_header_key_sequence_start,
        "TS_REQUEST_SEQUENCE_END": settings.ts_header_key_sequence_end,
        "TS_DECODE_INPUT_REQUEST": str(settings.decode_input_request).lower(),
        "TS_IPEX_ENABLE": str(settings.ipex_enable).lower(),
        "TS_IPEX_GPU_ENABLE": str(settings.ipex_gpu_enable).lower(),
    }
    if not settings.debug:  # else a person reads what workers write
        variables[FORMAT_VARIABLE] = settings.log_format
    return variables


def sends_ahead(config: EffectiveConfig, settings: Settings) -> bool:
    """Whether workers are sent batches ahead: they run batches, each in one process that the server itself starts."""
    batches = not (config.continuous or config.async_communication)
    one_process = not (config.ranks or settings.cpu_launcher_enable or settings.debug)
    return batches and one_process and config.node is None


def caller_in(plan: Plan) -> FileFunction | None:
    """Return the function that may call the others of its file: it can await them, in a worker of one process."""
    return plan.files.function if plan.config.async_communication and not plan.config.ranks else None


def _share(place: PoolPlace, node: NodeShare | None) -> int:
    """Return a worker's share of the processors."""
    return max(1, available_processors() // place.count) if node is None else node.processors


def _runtime(contract: str, config: EffectiveConfig) -> str:
    """Return the module that runs a model's code; empty for handlers with batches."""
    offer = contracts().get(contract)
    if offer is not None:
        return offer.runtime
    if config.async_communication:
        return RUNTIMES[ASYNCHRONOUS]
    return RUNTIMES[CONTINUOUS] if config.continuous else ""


def load_message(
    plan: Plan,
    device: DeviceAssignment,
    place: PoolPlace,
    settings: Settings,
    metrics: list[list[Any]],
    observers: Sequence[JobObserver],
) -> Load:
    """Return what a worker in this place is told to load."""
    config, node = plan.config, plan.config.node
    return Load(
        contract=plan.files.contract,
        runtime=_runtime(plan.files.contract, config),
        adapters=list(ADAPTERS),
        forms=FORMS,
        protocols=dict(ROW_READERS),
        observers=dict(each.in_workers for each in observers if each.in_workers is not None),
        model_name=plan.name,
        model_version=plan.version,
        model_dir=str(plan.files.model_dir) if node is None else "",
        manifest=_plain(plan.files.manifest.raw),
        handler=plan.handler,
        gpu_id=device.gpu_id,
        gpu_room=None,
        processors=config.threads or _share(place, node),
        batch_size=config.batch_size,
        continuous=config.continuous,
        asynchronous=config.async_communication,
        sequences=config.stateful,
        steps=STEPS,
        envelope=settings.service_envelope,
        decode_input_request=settings.decode_input_request,
        limit_max_image_pixels=settings.limit_max_image_pixels,
        server_version=__version__,
        max_response_size=settings.max_response_size,
        max_call_size=min(settings.max_request_size, settings.max_response_size) if caller_in(plan) else 0,
        metrics=metrics,
        header_keys=[
            settings.ts_header_key_sequence_id,
            settings.ts_header_key_sequence_start,
            settings.ts_header_key_sequence_end,
        ],
        preparations={
            keys.prepares: argument
            for keys in config.plugin_keys.values
            if keys.prepares and (argument := keys.for_worker(config.batch_size)) is not None
        },
        cache=config.states.message(config, plan.name, StateFolders.of(settings)) if config.stateful else None,
    )


def _plain(value: Any) -> Any:
    """Return a mapping as plain dictionaries, which msgpack can encode."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return value
