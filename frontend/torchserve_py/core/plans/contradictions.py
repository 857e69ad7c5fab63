"""Settings of `model-config.yaml` that contradict each other, or that the contract of the model does not support.

Without these checks such a setting would have no effect, or half of one: sequences without stored state, or batches
that are never formed. `torchserve_py.core.archive.contract.Contract` says what each contract supports.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, TypeAlias

from torchserve_py.core.archive.contract import Contract
from torchserve_py.core.archive.contracts import known_contracts
from torchserve_py.core.torchrun.torchrun_keys import PROCESSES, TORCHRUN

if TYPE_CHECKING:
    from torchserve_py.core.plans.config import ModelConfig

_PARALLEL: Final = "the code of the model runs in one process; parallelType: custom gives it several GPUs"
_NO_STEPS: Final = "its code has no steps between which requests could join"

#: The keys that contradict each other, and what to tell.
_Contradiction: TypeAlias = tuple[tuple[str, ...], str]


def code_keys() -> frozenset[str]:
    """Return the keys that only the code of a contract reads, never the server."""
    return frozenset(name for each in known_contracts().values() for name in each.own_keys)


def contradictions(config: ModelConfig, contract: Contract) -> Iterator[_Contradiction]:
    """Yield the keys and the message for settings that contradict each other or that do not fit the contract."""
    for name, value, why in _asked_in_vain(config, contract):
        yield (name,), f"{name} is {value} but the model's contract is {contract.name}: {why}; leave {name} out"
    yield from _worker_contradictions(config)
    yield from _parallel_contradictions(config)
    yield from _batching_contradictions(config)
    for keys in config.plugin_keys.values:
        yield from keys.contradictions(config.raw)


def _worker_contradictions(config: ModelConfig) -> Iterator[_Contradiction]:
    low, high = config.min_workers, config.max_workers
    if low == 0 and not config.asks_for_scaling:
        yield (
            ("minWorkers", "scaling"),
            "minWorkers is 0 but neither scaling nor loading: on_demand is set; without them it must be at least 1",
        )
    if low and high and low > high:
        yield (
            ("minWorkers", "maxWorkers"),
            f"minWorkers is {low} but maxWorkers is {high}; maxWorkers must be at least {low}",
        )
    if config.device_ids and config.device_type == "cpu":
        ids = list(config.device_ids)
        yield ("deviceIds", "deviceType"), f"deviceIds is {ids} but deviceType is cpu; say gpu or leave deviceIds out"


def _parallel_contradictions(config: ModelConfig) -> Iterator[_Contradiction]:
    processes = config.ranks_asked_for
    keys = ("parallelType", "parallelLevel", TORCHRUN, PROCESSES, "deviceIds")
    level = config.parallel_level or processes or 0
    named = f"{'parallelLevel' if config.parallel_level else PROCESSES} is {level}"
    if processes and level != processes:
        yield (
            keys,
            f"{named} but {PROCESSES} is {processes}; they mean the same, so leave parallelLevel out",
        )
    if level > 1 and not config.parallel_type:
        yield keys, f"{named} but parallelType is not set; it must be pp, tp, pptp or custom"
    if config.parallel_type and not level:
        yield (
            keys,
            f"parallelType is {config.parallel_type} but parallelLevel is not set; "
            f"it must be the number of GPUs of one worker (or {PROCESSES} must)",
        )
    if config.threads and (processes or config.parallel_type not in (None, "", "custom")):
        problem = f"but a worker is several processes: set {TORCHRUN}.OMP_NUMBER_THREADS"
        yield ("threads", *keys), f"threads is {config.threads} {problem}"
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
    if config.parallel_type == "custom" and config.ranks_asked_for is not None:
        together, asked_for = not config.async_communication, f"{asked_for} with {TORCHRUN}"
    for name, enabled in (
        ("continuousBatching", config.continuous_batching),
        ("asyncCommunication", config.async_communication),
    ):
        if together and enabled:
            yield (
                ("parallelType", TORCHRUN, name),
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
    if config.continuous_batching and config.async_communication:
        yield (
            ("continuousBatching", "asyncCommunication"),
            "continuousBatching and asyncCommunication are both true but each decides when requests are sent; keep one",
        )


def _asked_in_vain(config: ModelConfig, contract: Contract) -> Iterator[tuple[str, object, str]]:
    """Yield each unsupported key that is set, with its value and the reason."""
    call = "each request is a call of its own"
    state = "its code keeps no state between the requests of a sequence"
    unsupported = (
        ("batchSize", (config.batch_size or 1) > 1 and config.batch_size, call),
        ("asyncCommunication", config.async_communication is False and "false", call),
        ("continuousBatching", config.continuous_batching and "true", _NO_STEPS),
        ("sequenceBatching", config.sequence_batching and "true", state),
        ("parallelType", config.parallel_type != "custom" and config.parallel_type, _PARALLEL),
    )
    said: set[str] = set()
    if not contract.handlers:
        yield from (each for each in unsupported if each[1])
        of_handlers = [each for keys in config.plugin_keys.values for each in keys.of_handlers(config.raw)]
        yield from of_handlers
        said = {name.partition(".")[0] for name, _, _ in of_handlers}
    for name in sorted(code_keys() - contract.own_keys - said):
        if name in config.raw:
            owner = next(each.name for each in known_contracts().values() if name in each.own_keys)
            yield name, "set", f"only code of the contract {owner} reads it"
