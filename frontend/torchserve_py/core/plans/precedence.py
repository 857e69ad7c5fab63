"""Which place settles each setting of a model version.

It is the first place that gives it: the registration call, `model-config.yaml`, the `models` JSON of
config.properties, the server's default. (In TorchServe a YAML file hides the other places for the timeouts, even those
that it does not contain, and for the number of workers; its documentation says otherwise.)
"""

import importlib
from dataclasses import dataclass
from typing import Any

from torchserve_py.base.settings.schemas.values import MAX_INT
from torchserve_py.base.settings.schemas.versions import VersionSettings
from torchserve_py.base.settings.table import Settings
from torchserve_py.core.archive.contract import TORCHSERVE
from torchserve_py.core.archive.contracts import known_contracts
from torchserve_py.core.plans.config import InvalidModelConfig, ModelConfig
from torchserve_py.core.plans.effective_config import DEFAULT_REMEMBERED, EffectiveConfig
from torchserve_py.core.plans.sequence_states import SequenceStates
from torchserve_py.core.scheduling.policy import DEADLINE_SAFETY
from torchserve_py.core.serving.errors import BadParameter, NotEnoughDevices
from torchserve_py.core.serving.serving import RegisterRequest
from torchserve_py.core.workers.worker_launcher import NodeShare
from torchserve_py.plugins import launchers

#: Default of concurrent requests per asynchronous worker; TorchServe has neither such a bound nor a queue before it.
MAX_ASYNC_JOBS = 1024
#: Most workers of one model version. Each is a process: a mistyped number must not exhaust the machine.
MAX_WORKERS = 1000
#: Interpreters that run a worker: the server's own, or `python3` from PATH. The C++ backend `LSP` is not run.
RUNTIMES = ("python", "python3")


@dataclass(frozen=True, slots=True)
class Hardware:
    """The host's resources for workers: GPUs that the server may use, and processors."""

    gpus: int
    cpus: int


def resolve(
    request: RegisterRequest,
    yaml: ModelConfig,
    models_json: VersionSettings,
    settings: Settings,
    states: SequenceStates,
    *,
    model_name: str,
    hardware: Hardware,
    at_startup: bool,
    manifest_runtime: str | None = None,
    contract: str = TORCHSERVE,
) -> EffectiveConfig:
    """Return the effective configuration of one model version.

    Args:
        models_json: The entry of this name and version in the `models` JSON (without values if it has no entry).
        states: How the states of its sequences are kept, if it has sequences.
        at_startup: Whether the server loads the model at its start; then it gets workers even if no place says so.

    Raises BadParameter: A setting of the registration is invalid.
        InvalidModelConfig: `yaml` is invalid on this hardware.
        NotEnoughDevices: One worker needs more devices than there are.
    """
    check_numbers(request)

    def first(name: str, in_yaml: int | None, default: int) -> int:
        places = (getattr(request, name), in_yaml, getattr(models_json, name), default)
        return next(value for value in places if value is not None)

    batch_size = first("batch_size", yaml.batch_size, 1)
    asynchronous = bool(yaml.async_communication) or not known_contracts()[contract].batches
    _check_runtime(yaml, settings)
    if asynchronous:
        _check_no_batches(yaml, contract, batch_size)
    node = _node(yaml, settings)
    if node is not None:
        hardware = Hardware(gpus=0, cpus=1)
    workers = _workers(request, yaml, models_json, settings, hardware, at_startup=at_startup)
    return EffectiveConfig(
        batch_size=batch_size,
        max_batch_delay_ms=first("max_batch_delay", yaml.max_batch_delay_ms, 100),
        response_timeout=first("response_timeout", yaml.response_timeout, settings.default_response_timeout),
        startup_timeout=first("startup_timeout", yaml.startup_timeout, settings.default_startup_timeout),
        max_retry_timeout=300 if yaml.max_retry_timeout is None else yaml.max_retry_timeout,
        client_timeout_ms=yaml.client_timeout_ms or 0,
        job_queue_size=yaml.job_queue_size or settings.job_queue_size,
        use_job_ticket=bool(yaml.use_job_ticket) and not yaml.sequence_batching,
        continuous=bool(yaml.continuous_batching),
        async_communication=asynchronous,
        concurrency_target=yaml.concurrency_target or MAX_ASYNC_JOBS,
        threads=yaml.threads,
        node=node,
        plugin_keys=yaml.plugin_keys,
        use_venv=bool(yaml.use_venv),
        follows_load=_follows_load(yaml, settings),
        runtime=_runtime(request, models_json, manifest_runtime),
        **_sequences(yaml, states),
        **_places(workers, yaml, settings, hardware, model_name),
    )


def _follows_load(yaml: ModelConfig, settings: Settings) -> bool:
    """Return whether the number of workers follows the load. That of those started by hand (``debug``) does not."""
    if not yaml.asks_for_scaling or settings.debug:
        return False
    if settings.cpu_launcher_enable:
        problem = "scaling is set but cpu_launcher_enable is true: each change would replace all workers; keep one"
        raise InvalidModelConfig(yaml.source, [problem])
    return True


def _check_runtime(yaml: ModelConfig, settings: Settings) -> None:
    if yaml.threads and settings.cpu_launcher_enable:
        problem = f"threads is {yaml.threads} but cpu_launcher_enable is true, which sets a worker's threads; keep one"
        raise InvalidModelConfig(yaml.source, [problem])


def _check_no_batches(yaml: ModelConfig, contract: str, batch_size: int) -> None:
    if batch_size > 1:
        why = "asyncCommunication is true" if yaml.async_communication else f"the model's contract is {contract}"
        problem = f"{why} but the batch size is {batch_size}; each request is a call of its own, so it must be 1"
        raise InvalidModelConfig(yaml.source, [problem])


def _node(yaml: ModelConfig, settings: Settings) -> NodeShare | None:
    """Return what a worker has of the other machine that it runs on; None if it runs on this one.

    Raises InvalidModelConfig: A setting means this machine, but the workers run on others, or the other way round.
    """
    chosen = settings.worker_launcher
    problems = [
        f"{offer.key} is set but worker_launcher is {chosen}; take {offer.key} out, or set worker_launcher={name}"
        for name, offer in launchers().items()
        if name != chosen and yaml.raw.get(offer.key) is not None
    ]
    offer = launchers().get(chosen)
    launcher = None if offer is None else importlib.import_module(offer.module)
    if launcher is not None:
        problems += launcher.problems(yaml)
    if problems:
        raise InvalidModelConfig(yaml.source, problems)
    share: NodeShare | None = None if launcher is None else launcher.share(yaml.plugin_keys)
    return share


def _sequences(yaml: ModelConfig, states: SequenceStates) -> dict[str, Any]:
    if not yaml.sequence_batching:
        return {}
    idle = yaml.sequence_max_idle_ms or 0
    expires = None if states.expires_after is None else max(1000 * states.expires_after, idle)
    return {
        "stateful": True,
        "sequence_max_idle_ms": idle if expires is None else expires,
        "sequence_rest_ms": 0 if expires is None else idle,
        "sequence_timeout_ms": yaml.sequence_timeout_ms or 0,
        "max_num_sequence": yaml.max_num_sequence or 1,
        "max_sequence_job_queue_size": yaml.max_sequence_job_queue_size or 1,
        "deadline_safety": DEADLINE_SAFETY if yaml.deadline_safety is None else yaml.deadline_safety / 100,
        "restart_expired_sequences": yaml.on_expired_sequence == "restart",
        "require_start": bool(yaml.require_start),
        "remember_ended": float(yaml.remember_ended or DEFAULT_REMEMBERED),
        "states": states,
    }


def check_worker_count(count: int) -> None:
    """Check the number of workers of one model version; each is a process, and all are started at once.

    Raises BadParameter: it is larger than `MAX_WORKERS`.
    """
    if count > MAX_WORKERS:
        raise BadParameter(f"A model version may have {MAX_WORKERS} workers, {count} are asked for.")


def _places(
    workers: tuple[int, int, int], yaml: ModelConfig, settings: Settings, hardware: Hardware, model_name: str
) -> dict[str, Any]:
    """Return the devices, and the number of workers that fits on them."""
    device_type = "gpu" if hardware.gpus and yaml.device_type != "cpu" else "cpu"
    device_ids = yaml.device_ids if device_type == "gpu" else None
    missing = [number for number in device_ids or () if number >= hardware.gpus]
    if missing:
        last = hardware.gpus - 1
        problem = f"deviceIds names {missing}, but the GPUs that this server may use are numbered 0 to {last}"
        raise InvalidModelConfig(yaml.source, [problem])
    level = _parallel_level(yaml)
    if level and device_type == "gpu":
        groups = (len(device_ids) if device_ids else hardware.gpus) // level
        if not groups:
            raise NotEnoughDevices(model_name, level)
        workers = (min(workers[0], groups), min(workers[1], groups), min(workers[2], groups))
    least, most, initial = workers
    check_worker_count(initial if not yaml.asks_for_scaling else most)
    return {
        "min_workers": least,
        "max_workers": most,
        "initial_workers": initial,
        "device_type": device_type,
        "device_ids": device_ids,
        "parallel_type": yaml.parallel_type or "",
        "parallel_level": level,
        "asks_for_ranks": yaml.ranks_asked_for is not None,
    }


def check_numbers(request: RegisterRequest) -> None:
    """Check the numbers of a registration. Raises BadParameter: one of them is too small or too large."""
    for name, minimum in (
        ("batch_size", 1),
        ("max_batch_delay", 0),
        ("initial_workers", 0),
        ("response_timeout", 1),
        ("startup_timeout", 1),
    ):
        value = getattr(request, name)
        if value is not None and not minimum <= value <= MAX_INT:
            raise BadParameter(f"Parameter {name} is {value}, it must be an integer from {minimum} to {MAX_INT}.")


def _parallel_level(yaml: ModelConfig) -> int:
    """Return the GPUs (without GPUs: processes) per worker; 0 = the worker is one process on at most one GPU."""
    if not yaml.parallel_type:
        return 0
    return yaml.parallel_level or yaml.ranks_asked_for or 0


def _workers(
    request: RegisterRequest,
    yaml: ModelConfig,
    models_json: VersionSettings,
    settings: Settings,
    hardware: Hardware,
    *,
    at_startup: bool,
) -> tuple[int, int, int]:
    """Return the minimum and the maximum of workers, and how many there are to begin with.

    A place that gives only the minimum sets both; one that gives only the maximum limits the next place's numbers.
    Where workers follow the load, a registration says only how many there are to begin with, and a snapshot the limits.
    """
    initial = request.initial_workers
    if initial is not None and (not yaml.asks_for_scaling or request.max_workers is not None):
        return initial, max(initial, request.max_workers or 0), initial
    least, most = _limits_of_workers(yaml, models_json, settings, hardware, at_startup=at_startup)
    if initial is None:
        return least, most, least
    return least, max(most, initial), max(least, initial)


def _limits_of_workers(
    yaml: ModelConfig, models_json: VersionSettings, settings: Settings, hardware: Hardware, *, at_startup: bool
) -> tuple[int, int]:
    bound = MAX_INT
    places: tuple[ModelConfig | VersionSettings, ...] = (yaml, models_json)
    for place in places:
        low, high = place.min_workers, place.max_workers
        bound = min(bound, high or MAX_INT)
        if low or (low == 0 and yaml.asks_for_scaling and not settings.debug):
            return min(low, bound), min(high or low or 1, bound)
    count = settings.default_workers_per_model
    if at_startup and not count:
        count = 1 if settings.debug else hardware.gpus or hardware.cpus
    return min(count, bound), min(count, bound)


def _runtime(request: RegisterRequest, models_json: VersionSettings, manifest_runtime: str | None) -> str:
    runtime = request.runtime or models_json.runtime or manifest_runtime or "python"
    if runtime not in RUNTIMES:
        why = "the C++ backend is not run here, " if runtime == "LSP" else ""
        raise BadParameter(f"Invalid RuntimeType value: {runtime}: {why}it must be {' or '.join(RUNTIMES)}")
    return runtime
