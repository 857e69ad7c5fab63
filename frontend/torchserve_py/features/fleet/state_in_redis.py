"""The states of a fleet in Redis, which keeps the newest."""

import time
from collections.abc import Callable
from typing import Any, Final

import redis

from torchserve_py.features.fleet.fleet_state import MOST_BYTES, NOTHING, FleetState, FleetStateError, read_state
from ts.features.redis.redis_client import open_client
from ts.features.sequence_steps.stores.store import StoreError

_KEY: Final = "torchserve-py:fleet"
#: How long an answer may take (seconds).
_LIMIT: Final = 5.0
_ADD: Final = """
local number = tonumber(redis.call('HGET', KEYS[1], 'number') or '0')
if number + 1 ~= tonumber(ARGV[1]) then return 0 end
redis.call('HSET', KEYS[1], 'number', ARGV[1], 'state', ARGV[2])
return 1
"""


class StateInRedis:
    """The state of a fleet in the Redis at a URL. Raises FleetStateError: the URL is not one of Redis."""

    def __init__(self, url: str) -> None:
        try:
            opened = open_client(url, _LIMIT)
        except StoreError as error:
            raise FleetStateError(f"The state of the fleet cannot be read: {error}") from error
        self._redis: Any = opened.client
        self._name = opened.name

    def newest_number(self) -> int:
        return int(self._call(lambda: self._redis.hget(_KEY, "number")) or 0)

    def newest(self) -> FleetState:
        if (size := self._call(lambda: self._redis.hstrlen(_KEY, "state"))) > MOST_BYTES:
            where = f"in Redis at {self._name}"
            raise FleetStateError(f"The state of the fleet {where} has {size} bytes, at most {MOST_BYTES} are read.")
        number, text = self._call(lambda: self._redis.hmget(_KEY, "number", "state"))
        if number is None:
            return NOTHING
        return read_state(text.decode(errors="replace"), int(number), f"The key {_KEY} in Redis at {self._name}")

    def add(self, state: FleetState) -> bool:
        text = state.text(time.time_ns() // 1_000_000)
        return bool(self._call(lambda: self._redis.eval(_ADD, 1, _KEY, state.number, text)))

    def _call(self, command: Callable[[], Any]) -> Any:
        try:
            return command()
        except redis.RedisError as error:
            text = f"The state of the fleet in Redis at {self._name} cannot be used: {error}"
            raise FleetStateError(text) from error
