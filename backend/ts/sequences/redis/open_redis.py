"""Opens a store in Redis, for workers and for operators."""

from ts.protocol.messages import Cache
from ts.sequences.redis.redis_maintenance import RedisMaintenance
from ts.sequences.redis.redis_store import RedisStore
from ts.sequences.steps.stores.maintenance import Maintenance
from ts.sequences.steps.stores.store import Store, StoreSettings


def open_store(settings: StoreSettings, cache: Cache) -> Store:
    """Return the store that a model's configuration names. Raises StoreError: it cannot be opened."""
    return RedisStore(settings, cache["url"], replicas=cache["replicas"])


def keeps(place: str) -> bool:
    """Return whether a store at this place is in Redis."""
    return "://" in place


def open_maintenance(place: str, *, create: bool) -> Maintenance:
    """Return the store at a URL; it needs no creation. Raises StoreError: it cannot be used."""
    return RedisMaintenance(place)
