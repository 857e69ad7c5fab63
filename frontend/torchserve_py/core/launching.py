"""How the workers of a model are launched, what they are told to load, and which imports they share with others.

A wrong guess of these imports costs time or memory, and changes nothing else: see `torchserve_py.workers.forking`.
"""

from __future__ import annotations

import importlib.util
import logging
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from torchserve_py.archive.handler_name import BUILT_IN_HANDLERS
from torchserve_py.core.dependencies import packages_dir, venv_python
from torchserve_py.core.effective import EffectiveConfig
from torchserve_py.core.plan import Plan
from torchserve_py.core.sequence_storage import cache_message, sequence_file
from torchserve_py.settings.schemas.model_config import TorchrunConfig, WarmupRequest
from torchserve_py.settings.table import Settings
from torchserve_py.version import __version__
from torchserve_py.workers.devices import Assignment, available_processors
from torchserve_py.workers.launch import CpuLauncher, Launch, Torchrun
from torchserve_py.workers.pool import Place
from ts.protocol.log_records import FORMAT_VARIABLE
from ts.protocol.messages import Load, Warmup

if TYPE_CHECKING:
    from torchserve_py.workers.ray_cluster import RayCluster, RemoteLaunch

logger = logging.getLogger(__name__)

_TORCHRUN_LOGS = "torchelastic_ts"  # TorchServe's name
#: What is imported for a model whose files import one of these.
_TORCH: Final = ("torch", "ts.torch_handler.base_handler")
_IMPORTS_TORCH: Final = re.compile(
    rb"^[ \t]*(?:import|from)[ \t].*\b(?:torch|torch_handler|torchvision|transformers)\b", re.MULTILINE
)
#: Variables that libraries read while torch is imported: a model that names one may set it before.
_NAMES_READ_EARLY: Final = re.compile(
    rb"""["'](ATEN|GOMP|KMP|MKL|NCCL|NUMEXPR|OMP|OPENBLAS|PYTORCH|TORCH)[A-Z]*_[A-Z]"""
)
#: Files of a model that are looked at, and bytes of each.
_MOST_FILES: Final = 200
_MOST_BYTES: Final = 1 << 20


def launch_of(
    general: Launch,
    plan: Plan,
    device: Assignment,
    place: Place,
    settings: Settings,
    traces: str | None,
    cluster: RayCluster | None,
) -> Launch:
    """Return how the workers in a place of a model's pool are launched.

    Args:
        general: What holds for the workers of all models.
        traces: Where spans go.
        cluster: Where Ray places workers; None: they run on this machine.
    """
    config = plan.config
    environment = {**plan.environment, **_variables(settings, traces), **device.environment}
    torchrun = None
    if config.ranks:
        options = config.torchrun or TorchrunConfig()
        chosen = {"rdzv_backend": options.rdzv_backend, "rdzv_endpoint": options.rdzv_endpoint}
        torchrun = Torchrun(
            config.ranks,
            every_rank=config.parallel_type != "pp",
            job_id=f"{plan.name}_{place.worker_id}",
            log_dir=settings.log_location / _TORCHRUN_LOGS,
            **{name: value for name, value in chosen.items() if value is not None},
        )
        environment |= {"LOGLEVEL": "INFO", "OMP_NUM_THREADS": str(options.omp_num_threads or 1)}
    cpu_launcher = None
    if settings.cpu_launcher_enable:
        cpu_launcher = CpuLauncher(tuple((settings.cpu_launcher_args or "").split()), place.index, place.count)
    installed, use_venv = plan.files.dependencies_dir, config.use_venv
    return replace(
        general,
        working_dir=plan.files.model_dir,
        runtime=config.runtime,
        environment=environment,
        gpu_index=device.devices[0].gpu_index if device.devices else None,
        venv_python=venv_python(installed) if installed and use_venv else None,
        packages_dir=packages_dir(installed) if installed and not use_venv else None,
        torchrun=torchrun,
        cpu_launcher=cpu_launcher,
        ahead=sends_ahead(config, settings),
        remote=_remote(plan, environment, torchrun, cluster),
        imports=plan.imports,
    )


def _variables(settings: Settings, traces: str | None) -> dict[str, str]:
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
    if traces is not None:
        variables["TS_TRACES"] = traces
    if settings.log_format == "json":
        variables[FORMAT_VARIABLE] = "json"
    return variables


def _remote(
    plan: Plan, environment: Mapping[str, str], torchrun: Torchrun | None, cluster: RayCluster | None
) -> RemoteLaunch | None:
    """Return how Ray starts a worker. A parallel worker is on one node, with what each of its processes needs."""
    if cluster is None:
        return None
    from torchserve_py.workers.ray_cluster import RemoteLaunch  # most servers do without
    from torchserve_py.workers.ray_demand import NodeDemand

    asked, processes = plan.config.ray, max(1, plan.config.ranks)
    demand = NodeDemand(
        asked.num_cpus * processes,
        asked.num_gpus * processes,
        {name: amount * processes for name, amount in (asked.resources or {}).items()},
        asked.label_selector or {},
    )
    return RemoteLaunch(cluster, demand, plan.files.model_dir, environment, torchrun)


def sends_ahead(config: EffectiveConfig, settings: Settings) -> bool:
    """Whether workers are sent batches ahead: they run batches, each in one process that the server itself starts."""
    batches = not (config.continuous or config.async_communication)
    one_process = not (config.ranks or settings.cpu_launcher_enable or settings.debug)
    return batches and one_process and settings.worker_launcher == "local"


def load_message(plan: Plan, device: Assignment, place: Place, settings: Settings, metrics: list[list[Any]]) -> Load:
    """Return what a worker in this place is told to load."""
    config, is_remote = plan.config, settings.worker_launcher == "ray"
    return Load(
        contract=plan.files.contract,
        model_name=plan.name,
        model_version=plan.version,
        model_dir="" if is_remote else str(plan.files.model_dir),
        manifest=_plain(plan.files.manifest.raw),
        handler=plan.handler,
        gpu_id=device.gpu_id,
        processors=max(1, int(config.ray.num_cpus) if is_remote else available_processors() // place.count),
        batch_size=config.batch_size,
        continuous=config.continuous,
        asynchronous=config.async_communication,
        sequences=config.stateful,
        envelope=settings.service_envelope,
        decode_input_request=settings.decode_input_request,
        limit_max_image_pixels=settings.limit_max_image_pixels,
        server_version=__version__,
        max_response_size=settings.max_response_size,
        metrics=metrics,
        header_keys=[
            settings.ts_header_key_sequence_id,
            settings.ts_header_key_sequence_start,
            settings.ts_header_key_sequence_end,
        ],
        warmup=[_warmup(each, config.batch_size) for each in config.warmup],
        cache=cache_message(config, sequence_file(settings.log_location, plan.name, plan.version)),
    )


def _warmup(request: WarmupRequest, batch_size: int) -> Warmup:
    inputs = [[each.name, each.datatype, list(each.shape)] for each in request.inputs or ()]
    return Warmup(
        file=request.file,
        content_type=request.content_type,
        inputs=inputs,
        rows=request.rows or batch_size,
        calls=request.calls,
    )


def _plain(value: Any) -> Any:
    """Return a mapping as plain dictionaries, which msgpack can encode."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return value


def shared_imports(model_dir: Path, handler: str) -> tuple[str, ...]:
    """Return the modules that are worth importing for a model. Blocks."""
    if importlib.util.find_spec("torch") is None:
        return ()
    uses_torch = handler.partition(":")[0] in BUILT_IN_HANDLERS
    for _, file in zip(range(_MOST_FILES), model_dir.rglob("*.py"), strict=False):
        try:
            with file.open("rb") as opened:
                source = opened.read(_MOST_BYTES)
        except OSError as error:
            logger.debug("%s is not looked at: %s", file, error)
            continue
        if _NAMES_READ_EARLY.search(source):
            return ()
        uses_torch = uses_torch or _IMPORTS_TORCH.search(source) is not None
    return _TORCH if uses_torch else ()
