"""Hears which sequences other servers ask this one to let go, and tells and asks which versions of a model are served.

Each worker tells Redis, in a sorted set per model, until when it is to be believed that its version of the model is
served. A broken connection only delays what the watch hears and tells; the store has connections of its own.
"""

import contextlib
import logging
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import redis

from ts.jobs.sequence_steps import StoreReports
from ts.sequences.redis.redis_client import open_client
from ts.sequences.redis.redis_keeping import KEEPS_ALL
from ts.sequences.redis.redis_keys import Keys
from ts.sequences.steps.server_identity import machine
from ts.sequences.steps.stores.store import (
    LOOK_SECONDS,
    NO_REPORTS,
    SERVED_SECONDS,
    StoreSettings,
    Watch,
)

logger = logging.getLogger(__name__)

#: How long (seconds) a connection of the watch waits for an answer, `wait` for a message at a time, and after an error.
_ANSWER_LIMIT: Final = 2.0
_SLICE: Final = 0.1
_PAUSE: Final = 1.0
_SEPARATOR: Final = "\0"
#: For how long what a machine knows of the clock is kept (seconds).
_CLOCK_KEPT: Final = 7 * 86_400

#: ARGV: for how long it is believed (ms), the member. Returns how many versions are served.
_TELL: Final = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
redis.call('ZADD', KEYS[1], now + ARGV[1], ARGV[2])
return redis.call('PEXPIRE', KEYS[1], ARGV[1])
"""


class ServedVersion(NamedTuple):
    """What a member of the sorted set says."""

    version: str
    states: str
    owner: str


def is_served(version: str, states: str, members: Sequence[bytes]) -> bool:
    """Return whether a living server continues what a version began, as far as the members of the set tell."""
    for member in members:
        parts = member.decode(errors="replace").split(_SEPARATOR)
        if len(parts) != len(ServedVersion._fields) + 1:
            continue
        served = ServedVersion(*parts[:-1])
        if version == served.version or (states and states == served.states):
            return True
    return False


class RedisWatch(Watch):
    """Hears by a subscription, and tells every third of a lease that the version is served."""

    def __init__(
        self,
        settings: StoreSettings,
        url: str,
        keys: Keys,
        known_clock: Callable[[], str],
        reports: StoreReports = NO_REPORTS,
    ) -> None:
        self._keys = keys
        self._reports = reports
        #: When evictions are looked at next, the number of evicted keys, -1 before the first look, and whether any may.
        self._next_look, self._evicted, self._may_evict = 0.0, -1, False
        self._known_clock = known_clock
        self._channel = keys.asked + settings.owner
        self._interval = settings.lease / 3
        self._believed = round((settings.lease + SERVED_SECONDS) * 1000)
        parts = (settings.version, settings.state_version, settings.owner, secrets.token_hex(8))
        self._member = _SEPARATOR.join(parts)
        self._client = open_client(url, min(_ANSWER_LIMIT, self._interval)).client
        self._tell = self._client.register_script(_TELL)
        self._subscription: Any = None
        self._next = 0.0
        self._works = True
        self._closed = threading.Event()

    def wait(self) -> Sequence[str]:
        """Wait for at most a third of a lease; return the ids of sequences that were asked for."""
        end = time.monotonic() + self._interval
        try:
            heard = self._hear(end)
            if not self._works:
                logger.info("Redis tells again which sequences other servers ask for")
            self._works = True
        except redis.RedisError as error:
            if self._closed.is_set():
                return ()
            if self._works:
                logger.warning("Redis does not tell which sequences other servers ask for: %s", error)
            self._works = False
            self._disconnect()
            self._closed.wait(min(_PAUSE, self._interval))
            return ()
        return heard

    def _hear(self, end: float) -> Sequence[str]:
        if self._subscription is None:
            self._subscription = self._client.pubsub(ignore_subscribe_messages=True)  # type: ignore[no-untyped-call]
            self._subscription.subscribe(self._channel)
        if time.monotonic() >= self._next:
            self._tell([self._keys.served], [self._believed, self._member])
            self._client.hset(self._keys.clocks, machine(), self._known_clock())
            self._client.expire(self._keys.clocks, _CLOCK_KEPT)
            self._next = time.monotonic() + self._interval
        if time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + LOOK_SECONDS
            self._look_at_memory()
        heard: list[str] = []
        while not (heard or self._closed.is_set()) and (left := end - time.monotonic()) > 0:
            message = self._subscription.get_message(timeout=min(left, _SLICE))
            while message is not None:
                heard.append(_text(message["data"]))
                message = self._subscription.get_message()
        return list(dict.fromkeys(heard))

    def _look_at_memory(self) -> None:
        """Report how much Redis has, whether it may drop sequences by itself, which may change, and whether it has."""
        memory = self._client.info("memory")
        if (used := memory.get("used_memory")) is not None:
            self._reports.size(int(used), None)
        policy = memory.get("maxmemory_policy", KEEPS_ALL)
        evicted = int(self._client.info("stats").get("evicted_keys", 0))
        may_evict = policy != KEEPS_ALL
        if may_evict and not self._may_evict:
            logger.error(
                "Redis has maxmemory-policy %s now: it drops acknowledged sequences when its memory is full. Set %s.",
                policy,
                KEEPS_ALL,
            )
        if evicted > self._evicted >= 0:
            dropped = evicted - self._evicted
            logger.error("Redis has dropped %d keys since the last look: sequences may be lost", dropped)
        self._may_evict, self._evicted = may_evict, evicted
        self._reports.evictions(may_evict, evicted)

    def _disconnect(self) -> None:
        subscription, self._subscription, self._next = self._subscription, None, 0.0
        with contextlib.suppress(redis.RedisError):  # it is given up anyway
            if subscription is not None:
                subscription.close()
            self._client.connection_pool.disconnect()

    def close(self) -> None:
        """Say that this process serves no more, and make `wait` return within a tenth of a second."""
        self._closed.set()
        try:
            self._tell([self._keys.served], [round(SERVED_SECONDS * 1000), self._member])
        except redis.RedisError as error:
            logger.info("Redis could not be told that this worker serves no more: %s", error)


def _text(data: bytes) -> str:
    """Return the id in a message; one that nobody has if it is none."""
    try:
        return data.decode(errors="surrogatepass")
    except UnicodeDecodeError:
        return ""
