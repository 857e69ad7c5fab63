"""Whether a Redis keeps what it is given: looked at once, when a worker connects.

``INFO`` tells it, also where a managed Redis does not allow ``CONFIG GET``.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

from ts.sequence.stores.store import StoreError

logger = logging.getLogger(__name__)

_KEEPS_ALL: Final = "noeviction"


def check_keeping(name: str, info: Mapping[str, Any], replicas: int) -> None:
    """Refuse a Redis that may drop sequences by itself; warn of what else may lose them.

    Args:
        name: What the Redis is called in messages.
        info: What its sections memory, persistence and replication say; what it does not tell is not there.
        replicas: How many replicas are to have a step before its answer leaves.

    Raises:
        StoreError: It drops keys when its memory is full.
    """
    policy = info.get("maxmemory_policy")
    if policy is None:
        logger.warning("Redis at %s does not tell its maxmemory-policy. Make sure that it is %s.", name, _KEEPS_ALL)
    elif policy != _KEEPS_ALL:
        raise StoreError(
            f"Redis at {name} has maxmemory-policy {policy}: it would drop sequences when its memory is full, and"
            f" acknowledged steps with them. Set maxmemory-policy {_KEEPS_ALL}"
        )
    if info.get("aof_enabled") == 0:
        logger.warning("Redis at %s has appendonly no: sequences are lost when it ends. Set appendonly yes.", name)
    connected = info.get("connected_slaves", replicas)
    if connected < replicas:
        text = "Redis at %s has %d replicas now, and a step is answered only once %d have it (handler.cache.replicas)."
        logger.warning(text, name, connected, replicas)
