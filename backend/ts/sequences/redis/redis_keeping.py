"""Checks when a store opens that its Redis keeps what is written: that it evicts nothing, and writes to its disk."""

import contextlib
import logging
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from ts.sequences.redis.redis_connection import RedisConnection
from ts.sequences.steps.stores.store import StoreError

logger = logging.getLogger(__name__)

#: The policy with which Redis drops nothing by itself.
KEEPS_ALL: Final = "noeviction"


def told_by(connection: RedisConnection) -> Mapping[str, Any]:
    """Return what a Redis says of its memory, its persistence and its replicas; a managed one may say less."""
    info: dict[str, Any] = {}
    for section in ("memory", "persistence", "replication"):
        with contextlib.suppress(StoreError):
            info.update(connection.call(partial(connection.client.info, section)))
    return info


def check_keeping(name: str, info: Mapping[str, Any], replicas: int) -> None:
    """Refuse a Redis that may drop sequences by itself; warn of what else may lose them.

    Raises StoreError: it drops keys when its memory is full.

    Args:
        name: What the Redis is called in messages.
        info: What `told_by` has returned; absent values are unknown.
    """
    policy = info.get("maxmemory_policy")
    if policy is None:
        logger.warning("Redis at %s does not tell its maxmemory-policy. Make sure that it is %s.", name, KEEPS_ALL)
    elif policy != KEEPS_ALL:
        raise StoreError(
            f"Redis at {name} has maxmemory-policy {policy}: it would drop sequences when its memory is full, and"
            f" acknowledged steps with them. Set maxmemory-policy {KEEPS_ALL}"
        )
    if info.get("aof_enabled") == 0:
        logger.warning("Redis at %s has appendonly no: sequences are lost when it ends. Set appendonly yes.", name)
    connected = info.get("connected_slaves", replicas)
    if connected < replicas:
        text = "Redis at %s has %d replicas now, and a step is answered only once %d have it (handler.cache.replicas)."
        logger.warning(text, name, connected, replicas)
