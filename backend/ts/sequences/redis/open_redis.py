"""Opens a store in Redis, for workers and for operators."""

from typing import Final

from ts.protocol.messages import Cache
from ts.sequences.redis.redis_store import NO_PACKAGE, RedisStore
from ts.sequences.redis.sentinel_url import is_sentinel_url
from ts.sequences.steps.stores.maintenance import Maintenance
from ts.sequences.steps.stores.store import Store, StoreError, StoreSettings

_SCHEMES: Final = frozenset(("redis", "rediss", "unix"))


def open_store(settings: StoreSettings, cache: Cache) -> Store:
    """Return the store that a model's configuration names. Raises StoreError: it cannot be opened."""
    return RedisStore(settings, cache["url"], replicas=cache["replicas"])


def keeps(place: str) -> bool:
    """Return whether a place is the URL of a Redis."""
    scheme, separator, _ = place.partition("://")
    return bool(separator) and (scheme in _SCHEMES or is_sentinel_url(place))


def open_maintenance(place: str, *, create: bool) -> Maintenance:
    """Return the store at a URL; it needs no creation. Raises StoreError: it cannot be used."""
    try:
        from ts.sequences.redis.redis_maintenance import RedisMaintenance
    except ModuleNotFoundError as error:
        raise StoreError(NO_PACKAGE) from error
    return RedisMaintenance(place)
