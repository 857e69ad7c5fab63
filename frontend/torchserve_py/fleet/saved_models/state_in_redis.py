"""The state of a fleet in Redis, which keeps the newest under a key of the fleet's name.

A Redis that may drop keys when its memory is full is not written to: the state would go with them. If it has replicas,
a change counts once one of them has it, so that the change survives a failover.
"""

import time
from collections.abc import Callable
from typing import Any, Final

import redis

from torchserve_py.fleet.saved_models.fleet_state import MOST_BYTES, NOTHING, FleetState, FleetStateError, read_state
from ts.sequences.redis.redis_client import open_client
from ts.sequences.steps.stores.store import StoreError

_KEY: Final = "torchserve-py:fleet"
#: How long an answer may take (seconds).
_LIMIT: Final = 5.0
#: How long a replica may take to have a change (milliseconds).
_COPY_LIMIT: Final = 4_000
#: The policies by which Redis drops keys that have no time limit begin so.
_DROPS_ALL: Final = "allkeys"
_ADD: Final = """
local number = tonumber(redis.call('HGET', KEYS[1], 'number') or '0')
if number + 1 ~= tonumber(ARGV[1]) then return 0 end
redis.call('HSET', KEYS[1], 'number', ARGV[1], 'state', ARGV[2])
return 1
"""


class StateInRedis:
    """The state of the fleet ``name`` in the Redis at a URL. Raises FleetStateError: the URL is not one of Redis."""

    def __init__(self, url: str, name: str = "") -> None:
        try:
            opened = open_client(url, _LIMIT)
        except StoreError as error:
            raise FleetStateError(f"The state of the fleet cannot be read: {error}") from error
        self._redis: Any = opened.client
        self._key = f"{_KEY}:{name}" if name else _KEY
        self.name = f"{opened.name}, key {self._key}"

    def newest_number(self) -> int:
        return int(self._call(lambda: self._redis.hget(self._key, "number")) or 0)

    def newest(self) -> FleetState:
        if (size := self._call(lambda: self._redis.hstrlen(self._key, "state"))) > MOST_BYTES:
            where = f"in Redis at {self.name}"
            raise FleetStateError(f"The state of the fleet {where} has {size} bytes, at most {MOST_BYTES} are read.")
        number, text = self._call(lambda: self._redis.hmget(self._key, "number", "state"))
        if number is None:
            return NOTHING
        return read_state(text.decode(errors="replace"), int(number), f"The value in Redis at {self.name}")

    def add(self, state: FleetState) -> bool:
        self._check_keeping()
        text = state.text(time.time_ns() // 1_000_000)
        added, copies = self._call(lambda: self._add(state.number, text))
        if added and copies is not None and not copies:
            limit = _COPY_LIMIT / 1000
            raise FleetStateError(f"No replica of Redis at {self.name} had the state of the fleet within {limit:g} s.")
        return bool(added)

    def _add(self, number: int, text: str) -> tuple[int, int | None]:
        """Return whether the state was added, and how many replicas have it; None if there are none."""
        with self._redis.pipeline(transaction=False) as pipe:  # WAIT covers the writes of its own connection
            pipe.eval(_ADD, 1, self._key, number, text)
            if not self._replicas():
                return pipe.execute()[0], None
            pipe.wait(1, _COPY_LIMIT)
            added, copies = pipe.execute()
            return added, copies

    def _replicas(self) -> int:
        return int(self._told("replication").get("connected_slaves", 0))

    def _check_keeping(self) -> None:
        policy = str(self._told("memory").get("maxmemory_policy", ""))
        if policy.startswith(_DROPS_ALL):
            why = f"maxmemory-policy {policy}: it would drop the state of the fleet when its memory is full"
            raise FleetStateError(f"Redis at {self.name} has {why}. Set maxmemory-policy noeviction.")

    def _told(self, section: str) -> dict[str, Any]:
        """Return what Redis says of itself; a managed one may say nothing."""
        try:
            told: dict[str, Any] = self._redis.info(section)
        except redis.ResponseError:
            return {}
        except redis.RedisError as error:
            raise self._unusable(error) from error
        return told

    def _call(self, command: Callable[[], Any]) -> Any:
        try:
            return command()
        except redis.RedisError as error:
            raise self._unusable(error) from error

    def _unusable(self, error: redis.RedisError) -> FleetStateError:
        return FleetStateError(f"The state of the fleet in Redis at {self.name} cannot be used: {error}")
