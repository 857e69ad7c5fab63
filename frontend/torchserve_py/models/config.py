"""`model-config.yaml`: what a model's author says about how the model is to be run.

The handler reads the same file, so keys that the server does not know are left to it. The keys that the server does
know (TorchServe's, and `onExpiredSequence`) are strict: a wrong type, a value out of range or two settings that
contradict each other are refused with all problems named at once, instead of being ignored until the first request
fails. `docs/model-config.md` describes every key.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from torchserve_py.archive.contract import CONTRACTS, TORCHSERVE, Contract
from torchserve_py.models.cache_config import CacheConfig, cache_contradictions, read_cache
from torchserve_py.models.contract_limits import CODE_KEYS, contract_contradictions
from torchserve_py.models.tensor_declarations import TensorDeclaration, tensors
from torchserve_py.models.yaml_keys import MAX_INT, Key, boolean, choice, integer, read_keys, text
from torchserve_py.schemas.yaml_mapping import UnreadableYaml, YamlMapping, read_yaml_mapping


class InvalidModelConfig(ValueError):
    """The file cannot be used. `problems` has one line for each thing to correct; `str()` has them all."""

    def __init__(self, source: str, problems: list[str]) -> None:
        super().__init__(f"{source}: " + "; ".join(problems))
        self.source = source
        self.problems = tuple(problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchrunConfig:
    """The `torchrun` map: how the processes of one parallel worker are launched. None = not set."""

    nnodes: int | None = None
    nproc_per_node: int | None = None
    rdzv_backend: str | None = None
    rdzv_endpoint: str | None = None
    rdzv_conf: str | None = None
    monitor_interval: int | None = None
    node_rank: int | None = None
    omp_num_threads: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """One model-config.yaml. None = the key is not in the file. Times are milliseconds (`_ms`) or seconds."""

    min_workers: int | None = None
    max_workers: int | None = None
    batch_size: int | None = None
    max_batch_delay_ms: int | None = None
    response_timeout: int | None = None
    startup_timeout: int | None = None
    device_type: Literal["cpu", "gpu", "auto"] | None = None
    device_ids: tuple[int, ...] | None = None
    parallel_type: Literal["", "pp", "tp", "pptp", "custom"] | None = None
    parallel_level: int | None = None
    torchrun: TorchrunConfig | None = None
    max_retry_timeout: int | None = None
    client_timeout_ms: int | None = None
    job_queue_size: int | None = None
    use_job_ticket: bool | None = None
    continuous_batching: bool | None = None
    sequence_batching: bool | None = None
    sequence_max_idle_ms: int | None = None
    sequence_timeout_ms: int | None = None
    max_sequence_job_queue_size: int | None = None
    max_num_sequence: int | None = None
    on_expired_sequence: Literal["refuse", "restart"] | None = None
    async_communication: bool | None = None
    concurrency_target: int | None = None
    use_venv: bool | None = None
    inputs: tuple[TensorDeclaration, ...] | None = None
    outputs: tuple[TensorDeclaration, ...] | None = None
    decoupled: bool | None = None
    cache: CacheConfig | None = None
    source: str = "model-config.yaml"
    raw: Mapping[Any, Any] = field(default_factory=lambda: MappingProxyType({}), repr=False)
    """The whole file, as the handler sees it in `context.model_yaml_config`."""
    warnings: tuple[str, ...] = ()
    """What is allowed but probably not meant, one line each."""


def _device_ids(value: object) -> tuple[int, ...]:
    """Whether the ids exist is known only where the model is run: see `effective.resolve`."""
    if (
        not isinstance(value, list)
        or not value
        or not all(type(item) is int and 0 <= item <= MAX_INT for item in value)
    ):
        raise ValueError("a list of one or more GPU numbers, each an integer from 0, for example [0, 1]")
    return tuple(value)


def _mapping(value: object) -> Mapping[Any, Any]:
    if not isinstance(value, dict):
        raise ValueError("a map of torchrun options, for example {nproc-per-node: 4}")
    return value


KEYS: tuple[Key, ...] = (
    Key("minWorkers", "min_workers", integer(1)),
    Key("maxWorkers", "max_workers", integer(1)),
    Key("batchSize", "batch_size", integer(1)),
    Key("maxBatchDelay", "max_batch_delay_ms", integer(0)),
    Key("responseTimeout", "response_timeout", integer(1)),
    Key("startupTimeout", "startup_timeout", integer(1)),
    Key("deviceType", "device_type", choice("cpu", "gpu", "auto")),
    Key("deviceIds", "device_ids", _device_ids),
    Key("parallelType", "parallel_type", choice("", "pp", "tp", "pptp", "custom")),
    Key("parallelLevel", "parallel_level", integer(0)),
    Key("torchrun", "torchrun", _mapping),
    Key("maxRetryTimeoutInSec", "max_retry_timeout", integer(0)),
    Key("clientTimeoutInMills", "client_timeout_ms", integer(0)),
    Key("jobQueueSize", "job_queue_size", integer(0)),
    Key("useJobTicket", "use_job_ticket", boolean),
    Key("continuousBatching", "continuous_batching", boolean),
    Key("sequenceBatching", "sequence_batching", boolean),
    Key("sequenceMaxIdleMSec", "sequence_max_idle_ms", integer(0)),
    Key("sequenceTimeoutMSec", "sequence_timeout_ms", integer(0)),
    Key("maxSequenceJobQueueSize", "max_sequence_job_queue_size", integer(1)),
    Key("maxNumSequence", "max_num_sequence", integer(1)),
    Key("onExpiredSequence", "on_expired_sequence", choice("refuse", "restart")),
    Key("asyncCommunication", "async_communication", boolean),
    Key("concurrencyTarget", "concurrency_target", integer(1)),
    Key("useVenv", "use_venv", boolean),
    Key("inputs", "inputs", tensors),
    Key("outputs", "outputs", tensors),
    Key("decoupled", "decoupled", boolean),
)

TORCHRUN_KEYS: tuple[Key, ...] = (
    Key("nnodes", "nnodes", integer(1)),
    Key("nproc-per-node", "nproc_per_node", integer(1)),
    Key("rdzv-backend", "rdzv_backend", text),
    Key("rdzv-endpoint", "rdzv_endpoint", text),
    Key("rdzv-conf", "rdzv_conf", text),
    Key("monitor-interval", "monitor_interval", integer(1)),
    Key("node-rank", "node_rank", integer(0)),
    Key("OMP_NUMBER_THREADS", "omp_num_threads", integer(1)),
)

_SEQUENCE_KEYS = (
    "sequenceMaxIdleMSec",
    "sequenceTimeoutMSec",
    "maxSequenceJobQueueSize",
    "maxNumSequence",
    "onExpiredSequence",
)


def read_model_config(path: Path, contract: str = TORCHSERVE) -> ModelConfig:
    """Reads and checks the config at `path` of a model of that contract.

    Raises InvalidModelConfig (also for a file that cannot be read).
    """
    try:
        mapping = read_yaml_mapping(path)
    except UnreadableYaml as error:
        raise InvalidModelConfig(path.name, [str(error)]) from error
    except OSError as error:
        raise InvalidModelConfig(path.name, [f"the file cannot be read: {error.strerror or error}"]) from error
    return parse_model_config(mapping, path.name, contract)


def parse_model_config(
    mapping: YamlMapping, source: str = "model-config.yaml", contract: str = TORCHSERVE
) -> ModelConfig:
    """Checks a mapping that was read from `source` for a model of that contract.

    Raises InvalidModelConfig with every problem found.
    """
    refused: dict[str, str] = {}
    values = read_keys(mapping.values, KEYS, "", mapping.lines, refused)
    warnings = list(_misspelt(mapping.values))
    options = values.get("torchrun")
    if isinstance(options, Mapping):
        values["torchrun"] = TorchrunConfig(**read_keys(options, TORCHRUN_KEYS, "torchrun.", mapping.lines, refused))
        warnings += _unknown_torchrun(options)
    cache = read_cache(mapping.values.get("handler"), mapping.lines.get("handler"), refused)
    config = ModelConfig(**values, cache=cache, source=source, raw=MappingProxyType(dict(mapping.values)))
    can = CONTRACTS[contract]
    problems = list(refused.values())
    problems += [text for names, text in _contradictions(config, can) if refused.keys().isdisjoint(names)]
    if problems:
        raise InvalidModelConfig(source, problems)
    return replace(config, warnings=(*warnings, *_without_effect(config, can)))


_Contradiction: TypeAlias = tuple[tuple[str, ...], str]


def _contradictions(config: ModelConfig, contract: Contract) -> Iterator[_Contradiction]:
    """The keys and the text of each pair of settings that cannot both be meant, and of each that is out of place."""
    yield from contract_contradictions(config, contract)
    yield from _worker_contradictions(config)
    yield from _parallel_contradictions(config)
    yield from _batching_contradictions(config)


def _worker_contradictions(config: ModelConfig) -> Iterator[_Contradiction]:
    low, high = config.min_workers, config.max_workers
    if low and high and low > high:
        yield (
            ("minWorkers", "maxWorkers"),
            f"minWorkers is {low} but maxWorkers is {high}; maxWorkers must be at least {low}",
        )
    if config.device_ids and config.device_type == "cpu":
        ids = list(config.device_ids)
        yield ("deviceIds", "deviceType"), f"deviceIds is {ids} but deviceType is cpu; say gpu or leave deviceIds out"


def _parallel_contradictions(config: ModelConfig) -> Iterator[_Contradiction]:
    keys = ("parallelType", "parallelLevel", "torchrun", "torchrun.nproc-per-node", "deviceIds")
    processes = config.torchrun.nproc_per_node if config.torchrun else None
    level = config.parallel_level or processes or 0
    named = f"parallelLevel is {level}" if config.parallel_level else f"torchrun.nproc-per-node is {level}"
    if processes and level != processes:
        yield (
            keys,
            f"{named} but torchrun.nproc-per-node is {processes}; they mean the same, so leave parallelLevel out",
        )
    if level > 1 and not config.parallel_type:
        yield keys, f"{named} but parallelType is not set; it must be pp, tp, pptp or custom"
    if config.parallel_type and not level:
        yield (
            keys,
            f"parallelType is {config.parallel_type} but parallelLevel is not set; "
            "it must be the number of GPUs of one worker (or torchrun.nproc-per-node must)",
        )
    if config.torchrun and (config.torchrun.nnodes or 1) > 1:
        yield (
            ("torchrun.nnodes",),
            f"torchrun.nnodes is {config.torchrun.nnodes} but all processes of a worker run on the server's machine; "
            "leave it out",
        )
    yield from _step_contradictions(config)
    ids = list(config.device_ids or ())
    if config.parallel_type and len(set(ids)) < len(ids):
        yield keys, f"deviceIds is {ids}; with parallelType each GPU may be named only once"
    elif config.parallel_type and ids and level > len(ids):
        yield keys, f"{named} but deviceIds names only {len(ids)} GPUs: {ids}; name at least {level}"


def _step_contradictions(config: ModelConfig) -> Iterator[_Contradiction]:
    """Processes that compute together need the same requests at the same steps, which only whole batches give them."""
    together = config.parallel_type in {"tp", "pptp"}
    asked_for = f"parallelType is {config.parallel_type}"
    if config.parallel_type == "custom" and config.torchrun:
        together, asked_for = not config.async_communication, f"{asked_for} with torchrun"
    for name, enabled in (
        ("continuousBatching", config.continuous_batching),
        ("asyncCommunication", config.async_communication),
    ):
        if together and enabled:
            yield (
                ("parallelType", "torchrun", name),
                f"{asked_for} but {name} is true; its processes take part in every request and would run requests in "
                f"an order of their own each, so leave {name} out (or use pp, where only rank 0 gets them)",
            )


def _batching_contradictions(config: ModelConfig) -> Iterator[_Contradiction]:
    if config.sequence_batching and not config.sequence_max_idle_ms:
        idle = "not set" if config.sequence_max_idle_ms is None else config.sequence_max_idle_ms
        yield (
            ("sequenceBatching", "sequenceMaxIdleMSec"),
            f"sequenceBatching is true but sequenceMaxIdleMSec is {idle}; it must be the milliseconds after which a "
            "sequence without requests is closed, for example 60000",
        )
    for name, enabled in (
        ("continuousBatching", config.continuous_batching),
        ("sequenceBatching", config.sequence_batching),
    ):
        if enabled and config.async_communication:
            yield (
                (name, "asyncCommunication"),
                f"{name} and asyncCommunication are both true but each decides when requests are sent; keep one",
            )
    together = bool(config.parallel_type or config.torchrun)
    yield from cache_contradictions(config.cache, stateful=bool(config.sequence_batching), parallel=together)


def _without_effect(config: ModelConfig, contract: Contract) -> Iterator[str]:
    """Settings that are allowed together although one of them then does nothing."""
    if not config.sequence_batching:
        unused = [name for name in _SEQUENCE_KEYS if config.raw.get(name)]
        if unused:
            yield f"{', '.join(unused)} has no effect because sequenceBatching is not true"
    if config.concurrency_target and contract.batches and not config.async_communication:
        yield "concurrencyTarget has no effect because asyncCommunication is not true"
    if config.max_batch_delay_ms and not contract.batches:
        yield f"maxBatchDelay has no effect because requests of the contract {contract.name} are calls of their own"
    if config.use_job_ticket and config.sequence_batching:
        yield "useJobTicket is ignored for a model with sequenceBatching"
    elif config.use_job_ticket and (config.batch_size or 1) > 1:
        yield f"batchSize {config.batch_size} has no effect: useJobTicket takes a request only while a worker is idle"
    timeout = config.client_timeout_ms
    if timeout and config.max_batch_delay_ms and config.max_batch_delay_ms >= timeout and (config.batch_size or 1) > 1:
        yield (
            f"clientTimeoutInMills is {timeout} but maxBatchDelay is {config.max_batch_delay_ms}: "
            "a request that waits for its batch to fill expires first"
        )


def _misspelt(values: Mapping[Any, Any]) -> Iterator[str]:
    """A warning for each unknown key that reads like a known one."""
    known = {_plain(key.name): key.name for key in KEYS}
    unknown = [name for name in values if isinstance(name, str) and name not in {*known.values(), *CODE_KEYS}]
    if unknown:
        from difflib import get_close_matches  # 5 ms that a right file need not pay

        for name in unknown:
            for match in get_close_matches(_plain(name), known, n=1, cutoff=0.8):
                yield f"{name} is not a key that the server reads; did you mean {known[match]}?"


def _unknown_torchrun(options: Mapping[Any, Any]) -> Iterator[str]:
    """Only the server reads the torchrun map, so every unknown key in it is worth a word."""
    known = [key.name for key in TORCHRUN_KEYS]
    for option in options:
        if option not in known:
            yield f"torchrun.{option} is not known and has no effect; known are {', '.join(known)}"


def _plain(key: str) -> str:
    return key.replace("_", "").replace("-", "").lower()
