"""`model-config.yaml`: the model author's configuration of how the model is run.

The handler reads the same file, so keys that the server does not know are left to the handler. The keys that the server
knows (TorchServe's, and `onExpiredSequence`) are checked strictly: a wrong type, a value out of range or two settings
that contradict each other are refused with all problems named at once, instead of being ignored until the first
request fails. `docs/model-config.md` describes every key.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self, TypeAlias

from pydantic import Field

from torchserve_py.archive.contract import CONTRACTS, TORCHSERVE, Contract
from torchserve_py.core.cache_config import cache_contradictions
from torchserve_py.core.contract_limits import CODE_KEYS, contract_contradictions
from torchserve_py.settings.schemas.cache import CacheConfig
from torchserve_py.settings.schemas.model_config import ModelConfigFile, TorchrunConfig
from torchserve_py.settings.schemas.schema import read
from torchserve_py.settings.schemas.yaml_mapping import UnreadableYaml, YamlMapping, read_yaml_mapping

_MAX_PROBLEMS = 20


class InvalidModelConfig(ValueError):
    """The file cannot be used.

    `problems` has one line per problem, the first `_MAX_PROBLEMS` of them; `str()` joins these lines.
    """

    def __init__(self, source: str, problems: Iterable[str]) -> None:
        listed = list(itertools.islice(problems, _MAX_PROBLEMS + 1))
        if len(listed) > _MAX_PROBLEMS:
            listed[-1] = "there are more problems"
        super().__init__(f"{source}: " + "; ".join(listed))
        self.source = source
        self.problems = tuple(listed)


class ModelConfig(ModelConfigFile):
    """One `model-config.yaml`, read and checked. None = the key is not in the file.

    Attributes:
        source: The file's name.
        raw: The whole file, as the handler gets it in `context.model_yaml_config`.
        warnings: Settings that are allowed but probably unintended, one line each.
    """

    source: str = "model-config.yaml"
    raw: Mapping[Any, Any] = Field(default_factory=dict, repr=False)
    warnings: tuple[str, ...] = ()

    @property
    def cache(self) -> CacheConfig | None:
        """The settings of `handler: cache:`, or None."""
        return self.handler.cache

    def completed(self, warnings: Iterable[str], **values: Any) -> Self:
        """Return a copy with further warnings, and with other values of some fields."""
        return self.model_copy(update={**values, "warnings": (*self.warnings, *warnings)})


_SEQUENCE_KEYS = (
    "sequenceMaxIdleMSec",
    "sequenceTimeoutMSec",
    "maxSequenceJobQueueSize",
    "maxNumSequence",
    "onExpiredSequence",
)


def read_model_config(path: Path, contract: str = TORCHSERVE) -> ModelConfig:
    """Read, check and return the configuration file at `path` of a model with that contract.

    Raises:
        InvalidModelConfig: The file cannot be read or has problems; all of them are named.
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
    """Check a mapping that was read from `source` for a model with that contract, and return it as a configuration.

    Raises:
        InvalidModelConfig: The mapping has problems; all of them are named.
    """
    values, refused = read(ModelConfigFile, mapping.values, lines=mapping.lines)
    warnings = [*_misspelt(mapping.values), *_unknown_torchrun(mapping.values.get("torchrun"))]
    config = ModelConfig.model_construct(**dict(values), source=source, raw=mapping.values)
    can = CONTRACTS[contract]
    problems = list(refused.values())
    for names, text in _contradictions(config, can):
        if refused.keys().isdisjoint(names):
            line = mapping.lines.get("handler") if names[0].startswith("handler.cache.") and len(names) == 1 else None
            problems.append(f"line {line}: {text}" if line else text)
    if problems:
        raise InvalidModelConfig(source, problems)
    return config.completed([*warnings, *_without_effect(config, can)])


_Contradiction: TypeAlias = tuple[tuple[str, ...], str]


def _contradictions(config: ModelConfig, contract: Contract) -> Iterator[_Contradiction]:
    """Yield the keys and the message for settings that contradict each other or that do not fit the contract."""
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
    """Yield the settings that break parallel processes: they need identical steps, which only whole batches provide."""
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
    """Yield a warning for each allowed combination of settings in which one has no effect."""
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
    """Yield a warning for each unknown key that resembles a known one."""
    known = {_plain(key): key for key in ModelConfigFile.key_names()}
    unknown = [name for name in values if isinstance(name, str) and name not in {*known.values(), *CODE_KEYS}]
    if unknown:
        from difflib import get_close_matches  # imported only on need: it takes 5 ms

        for name in unknown:
            for match in get_close_matches(_plain(name), known, n=1, cutoff=0.8):
                yield f"{name} is not a key that the server reads; did you mean {known[match]}?"


def _unknown_torchrun(options: object) -> Iterator[str]:
    """Yield a warning for each unknown key in the torchrun map; only the server reads this map."""
    known = TorchrunConfig.key_names()
    for option in options if isinstance(options, Mapping) else ():
        if option not in known:
            yield f"torchrun.{option} is not known and has no effect; known are {', '.join(known)}"


def _plain(key: str) -> str:
    return key.replace("_", "").replace("-", "").lower()
