"""The key `handler` of `model-config.yaml`, in which the server reads one key, `cache`."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field

from torchserve_py.base.settings.schemas.plugin_keys import ModelConfigKeys
from torchserve_py.base.settings.schemas.schema import Schema, key
from torchserve_py.base.settings.schemas.values import Nested
from torchserve_py.core.torchrun.torchrun_keys import TORCHRUN
from torchserve_py.plugins import stores
from torchserve_py.sequences.steps.cache_config import CacheConfig

_PLACE: Final = "handler.cache."
#: Keys that have a meaning with every store, and with every one that outlives a worker.
_FOR_ALL: Final = ("store", "capacity", "maxMemorySize")
_FOR_DURABLE: Final = ("expireSec", "checkpointEvery", "keepCheckpoints", "rebuildBatch")


class HandlerMap(Schema):
    """`handler`; its other keys belong to the handler."""

    cache: Annotated[CacheConfig | None, Nested("a map, for example {store: file}")] = key(
        "cache", "how the states of sequences are kept"
    )


def _map_or_nothing(value: Any) -> Any:
    """A handler may use another value than a map."""
    return value if isinstance(value, dict | HandlerMap) else {}


class HandlerKeys(ModelConfigKeys):
    """`model-config.yaml`, of which this plugin has one key."""

    handler: Annotated[HandlerMap, BeforeValidator(_map_or_nothing)] = Field(
        default=HandlerMap(), description="keys of the handler's own, and `cache`"
    )

    def of_handlers(self, given: Mapping[Any, Any]) -> Iterable[tuple[str, object, str]]:
        """Yield the cache, if it is set."""
        if self.handler.cache is not None:
            yield "handler.cache", "set", "its code has no context.state that could be stored"

    def contradictions(self, given: Mapping[Any, Any]) -> Iterable[tuple[tuple[str, ...], str]]:
        """Yield what the store does not use or lacks, and what contradicts a store."""
        cache = self.handler.cache
        if cache is None:
            return
        yield from _store_problems(cache)
        if cache.durable and given.get("sequenceBatching") is not True:
            yield (
                ("handler.cache.store", "sequenceBatching"),
                f"handler.cache.store is {cache.store} but sequenceBatching is not true; without it there are no"
                " sequences",
            )
        if cache.durable and _is_several_processes(given):
            yield (
                ("handler.cache.store", "parallelType"),
                f"handler.cache.store is {cache.store} but the worker is several processes, each with a part of the"
                " state; use store: memory",
            )


def _is_several_processes(given: Mapping[Any, Any]) -> bool:
    """Whether one worker is more than one process, as `plans.effective_config.EffectiveConfig.ranks` has it."""
    parallel_type = given.get("parallelType")
    if parallel_type == "custom" and given.get("asyncCommunication") is True:
        return False
    return given.get(TORCHRUN) is not None or parallel_type not in (None, "", "custom")


def _store_problems(cache: CacheConfig) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the keys and the message for each setting that the store does not use, or that it lacks."""
    allowed = {*_FOR_ALL, *cache.keys_of_store, *(_FOR_DURABLE if cache.durable else ())}
    for name in cache.model_dump(by_alias=True, exclude_unset=True):
        if name not in allowed:
            problem = f"{_PLACE}{name} has no meaning for store: {cache.store}; leave it out or choose another store"
            yield (f"{_PLACE}{name}",), problem
    if cache.durable:
        for name, problem in stores()[cache.store].problems(cache.model_dump(by_alias=True)):
            yield (f"{_PLACE}{name}",), problem
