"""Settings of `model-config.yaml` that contradict each other, or that the contract of the model does not support.

Without these checks such a setting would have no effect, or half of one: sequences without stored state, or batches
that are never formed. `torchserve_py.archive.contract.Contract` says what each contract supports.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, TypeAlias
from urllib.parse import urlsplit

from torchserve_py.archive.contract import CONTRACTS, Contract
from torchserve_py.settings.schemas.cache import STORES, CacheConfig
from ts.protocol.sentinel_url import is_sentinel_url, split_sentinel_url

if TYPE_CHECKING:
    from torchserve_py.core.config import ModelConfig

#: Keys that only the code of a contract reads, never the server.
CODE_KEYS: Final = frozenset(name for each in CONTRACTS.values() for name in each.own_keys)
_PARALLEL: Final = "the code of the model runs in one process; parallelType: custom gives it several GPUs"
_OPENAI: Final = "a Truss answers OpenAI's paths by methods of their names, and other code not at all"
_NO_STEPS: Final = "its code has no steps between which requests could join"
_NO_CACHE: Final = "its code has no SequenceCache that could be stored"
_DECLARED_BY_CODE: Final = "the model's own files and code declare its inputs and outputs"

_PLACE = "handler.cache."
#: Of the URLs of Redis databases.
_FORMS = (
    "redis://host:port/number, rediss://… for TLS, unix:///path/of/the/socket, or"
    " redis+sentinel://host:port,host:port/service/number"
)

#: The keys that contradict each other, and what to tell.
_Contradiction: TypeAlias = tuple[tuple[str, ...], str]


def contradictions(config: ModelConfig, contract: Contract) -> Iterator[_Contradiction]:
    """Yield the keys and the message for settings that contradict each other or that do not fit the contract."""
    for name, value, why in _asked_in_vain(config, contract):
        yield (name,), f"{name} is {value} but the model's contract is {contract.name}: {why}; leave {name} out"
    yield from _worker_contradictions(config)
    yield from _parallel_contradictions(config)
    yield from _batching_contradictions(config)
    yield from _computing_contradictions(config)


def _computing_contradictions(config: ModelConfig) -> Iterator[_Contradiction]:
    """Yield the settings of `BaseHandler` and of the warm-up that cannot be obeyed."""
    if config.autocast and config.compiled_ahead:
        problem = "the model was compiled ahead of time and computes in the types that it was compiled with"
        yield ("autocast",), f"autocast is {config.autocast} but pt2.export.aot_compile is true: {problem}"
    for name, enabled, why in (
        ("continuousBatching", config.continuous_batching, "a request runs over many steps"),
        ("sequenceBatching", config.sequence_batching, "a request belongs to a sequence"),
        ("parallelType: pp", config.parallel_type == "pp", "only rank 0 gets requests"),
    ):
        if config.warmup and enabled:
            problem = f"warmup is set but so is {name}, where {why}; warm the model up in the handler's initialize"
            yield ("warmup", name.partition(":")[0]), problem
    for number, each in enumerate(config.warmup or ()):
        place = f"warmup[{number}]"
        if (each.file is None) == (each.inputs is None):
            yield ("warmup",), f"{place} must have file or inputs, and not both"
        elif each.content_type is not None and each.file is None:
            yield ("warmup",), f"{place}.contentType has no meaning for inputs; leave it out"


def _worker_contradictions(config: ModelConfig) -> Iterator[_Contradiction]:
    low, high = config.min_workers, config.max_workers
    if low == 0 and config.scaling is None:
        yield (
            ("minWorkers", "scaling"),
            "minWorkers is 0 but scaling is not set; without it minWorkers must be at least 1",
        )
    elif low == 0 and not high:
        yield ("minWorkers", "maxWorkers"), "minWorkers is 0 but maxWorkers is not set; it must be at least 1"
    if config.scaling is not None and config.use_job_ticket:
        yield (
            ("scaling", "useJobTicket"),
            "scaling is set but useJobTicket is true; then no request waits, and nothing tells how many workers are "
            "needed, so keep one of the two",
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
    for name, enabled, why in (
        ("openpi", config.openpi is not None, "openpi is set but sequenceBatching is not true; an episode"),
        ("realtime", config.realtime, "realtime is true but sequenceBatching is not; the audio of a session"),
    ):
        if enabled and not config.sequence_batching:
            yield (name, "sequenceBatching"), f"{why} is a sequence, so set both"
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
    yield from _cache_contradictions(config.handler.cache, stateful=bool(config.sequence_batching), parallel=together)


def _asked_in_vain(config: ModelConfig, contract: Contract) -> Iterator[tuple[str, object, str]]:
    """Yield each unsupported key that is set, with its value and the reason."""
    call = "each request is a call of its own"
    state = "its code keeps no state between the requests of a sequence"
    unsupported = (
        ("batchSize", (config.batch_size or 1) > 1 and config.batch_size, call),
        ("asyncCommunication", config.async_communication is False and "false", call),
        ("continuousBatching", config.continuous_batching and "true", _NO_STEPS),
        ("sequenceBatching", config.sequence_batching and "true", state),
        ("realtime", config.realtime and "true", state),
        ("openpi", config.openpi is not None and "set", state),
        ("handler.cache", config.handler.cache is not None and "set", _NO_CACHE),
        ("parallelType", config.parallel_type != "custom" and config.parallel_type, _PARALLEL),
        ("torchrun", config.torchrun is not None and "set", _PARALLEL),
        ("inputs", config.inputs and "set", _DECLARED_BY_CODE),
        ("outputs", config.outputs and "set", _DECLARED_BY_CODE),
        ("decoupled", config.decoupled and "set", _DECLARED_BY_CODE),
        ("warmup", config.warmup and "set", "its code warms itself up when it loads"),
        ("autocast", config.autocast, "only BaseHandler reads it"),
        ("channelsLast", config.channels_last and "true", "only BaseHandler reads it"),
        ("openai", config.openai and "true", _OPENAI),
    )
    if not contract.handlers:
        yield from (each for each in unsupported if each[1])
    cache = {"handler"} if config.handler.cache is not None else set()  # said above
    for name in sorted(CODE_KEYS - contract.own_keys - cache):
        if name in config.raw:
            owner = next(each.name for each in CONTRACTS.values() if name in each.own_keys)
            yield name, "set", f"only code of the contract {owner} reads it"


def _store_problems(cache: CacheConfig) -> Iterator[_Contradiction]:
    """Yield the keys and the message for each setting that the store does not use, or that it lacks."""
    allowed = {"store", "capacity", *STORES[cache.store]}
    for key in CacheConfig.key_names():
        if key not in allowed and key in cache.model_fields_set:
            problem = f"{_PLACE}{key} has no meaning for store: {cache.store}; leave it out or choose another store"
            yield (f"{_PLACE}{key}",), problem
    if "url" in allowed and cache.url is None:
        meaning = "where Redis is, for example redis://localhost:6379/0"
        yield (f"{_PLACE}url",), f"{_PLACE}store is {cache.store} but {_PLACE}url is not set; it must be {meaning}"
    elif "url" in allowed and cache.url and (problem := _redis_url_problem(cache.url)):
        yield (f"{_PLACE}url",), f"{_PLACE}url {problem}"


def _cache_contradictions(cache: CacheConfig | None, *, stateful: bool, parallel: bool) -> Iterator[_Contradiction]:
    """Yield the keys and the message for each setting that contradicts a durable cache."""
    if cache is None:
        return
    yield from _store_problems(cache)
    if not cache.durable:
        return
    if not stateful:
        yield (
            ("handler.cache.store", "sequenceBatching"),
            f"handler.cache.store is {cache.store} but sequenceBatching is not true; without it there are no sequences",
        )
    if parallel:
        yield (
            ("handler.cache.store", "parallelType", "torchrun"),
            f"handler.cache.store is {cache.store} but the worker is several processes, each with a part of the state; "
            "use store: memory",
        )


def _redis_url_problem(url: str) -> str:
    """Return what is wrong with the URL of a Redis database, without the passwords in it; "" if nothing is."""
    shown = repr(re.sub(r"\?.*", "?…", re.sub(r"^([\w+]*:?//)?.*@", r"\1…@", url)))
    if is_sentinel_url(url):
        return _sentinel_problem(url, shown)
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:  # which may quote the password: one with a slash ends the host early
        return f"is {shown}, which has no usable port; /, ?, #, [ and ] in a password must be percent-encoded"
    if parts.scheme not in {"redis", "rediss", "unix"}:
        return f"is {shown}, it must be {_FORMS}"
    if parts.scheme == "unix" and not parts.path.strip("/"):
        return f"is {shown}, it must name the socket: unix:///path/of/the/socket"
    number = parts.path.strip("/")
    if parts.scheme != "unix" and number and not number.isdecimal():
        return f"is {shown}, but Redis' databases have numbers, such as redis://host:port/0"
    return ""


def _sentinel_problem(url: str, shown: str) -> str:
    form = "redis+sentinel://host:26379,host:26379/service/0"
    try:
        named = split_sentinel_url(url)
    except ValueError as error:
        return f"is {shown}, but {error}: {form}; /, ? and , in a password must be percent-encoded"
    number = urlsplit(named.redis_url).path.strip("/")
    if not named.service or "@" in named.service:  # a password with a slash
        return f"is {shown}, it must name the service that the Sentinels watch: {form}"
    if number and not number.isdecimal():
        return f"is {shown}, but Redis' databases have numbers: {form}"
    return ""
