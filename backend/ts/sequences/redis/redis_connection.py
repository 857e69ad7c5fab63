"""The connection of the Redis store: to one Redis, or to the primary that Sentinels name; and its retries.

While the connection is broken the command is tried again for a limited time, so every command must be safe to run
twice. A Redis that says that it is a replica, or that its replicas have left it, is a former primary after a failover:
the connection to it counts as broken, and the next try asks the Sentinels (or resolves the host) again.
"""

import re
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import redis
from redis.sentinel import MasterNotFoundError

from ts.sequences.redis.redis_client import Opened, open_client
from ts.sequences.steps.record import Damaged
from ts.sequences.steps.stores.store import StoreError, TooLarge

#: Seconds to continue trying, to wait for an answer, and to pause between tries. A short lease shortens the first two,
#: but not below the shortest limit. At least two tries fit into the retry limit: one may ask a Redis that is frozen.
_RETRY_LIMIT: Final = 20.0
_ANSWER_LIMIT: Final = 5.0
_SHORTEST_LIMIT: Final = 0.5
_RETRY_PAUSE: Final = 0.1
#: The part of the time for an answer in which the replicas must have a write.
_COPY_SHARE: Final = 0.8
#: The longest value that Redis takes unless it is configured otherwise (bytes).
_LONGEST_VALUE: Final = 512 * 2**20
_BROKEN: Final = (redis.ConnectionError, redis.TimeoutError, redis.exceptions.BusyLoadingError)
#: What a former primary answers, and one that has been made a replica during WAIT; in Redis 6 within a script's error.
_FORMER: Final = re.compile(r"\b(READONLY|read only replica|NOREPLICAS|UNBLOCKED)\b")
_WRONG_TYPE: Final = re.compile(r"\bWRONGTYPE\b")


class RedisConnection:
    """A client of Redis whose commands are retried.

    Raises StoreError: the URL is not one of Redis.

    Args:
        replicas: The number of replicas that must have a write of `copied`.

    Attributes:
        client: The client.
        name: What the Redis is called in messages.
        repeated: Whether the last command was tried more than once.
    """

    def __init__(self, url: str, lease: float, replicas: int = 0) -> None:
        self._retry_limit = min(_RETRY_LIMIT, max(lease / 2, _SHORTEST_LIMIT))
        answer_limit = min(_ANSWER_LIMIT, max(self._retry_limit / 2, _SHORTEST_LIMIT))
        self._replicas, self._copy_limit = replicas, answer_limit * _COPY_SHARE
        self._longest: int | None = None
        self.repeated = False
        opened: Opened = open_client(url, answer_limit)
        self.client, self.name, self._trust = opened

    def call(self, command: Callable[[], Any]) -> Any:
        """Run a command; retry while the connection is broken, Redis is starting or has lost its role as primary.

        Raises:
            StoreError: Redis did not answer within the time limit, or refused the command.
            Damaged: The command does not fit the type of the key.
        """
        end = time.monotonic() + self._retry_limit
        self.repeated = False
        while True:
            try:
                return command() if self._trust is None else self._trust.run(command, end)
            except redis.RedisError as error:
                is_former = isinstance(error, redis.ResponseError) and _FORMER.search(str(error)) is not None
                if not (is_former or isinstance(error, _BROKEN)):
                    if _WRONG_TYPE.search(str(error)):
                        raise Damaged("its key holds a value of the wrong type") from error
                    raise StoreError(f"Redis at {self.name} refuses: {error}") from error
                if time.monotonic() > end:
                    raise StoreError(self._silence(error, is_former=is_former)) from error
                if is_former:
                    self.client.connection_pool.disconnect()
                self.repeated = True
                time.sleep(_RETRY_PAUSE)

    def copied(self, send: Callable[[redis.client.Pipeline], Any]) -> Sequence[Any]:
        """Send commands, the last of which writes, and wait until the replicas have that; return the results.

        Raises StoreError: as `call`, or too few replicas have the write in time.
        """

        def wait() -> list[Any]:
            with self.client.pipeline(transaction=False) as pipe:
                send(pipe)
                pipe.wait(self._replicas, round(self._copy_limit * 1000))
                results: list[Any] = pipe.execute()
                return results

        results: list[Any] = self.call(wait)
        copies = results[-1]
        if copies < self._replicas:
            place = f"Redis at {self.name}"
            text = f"{copies} of {self._replicas} replicas of {place} had it after {self._copy_limit:g} s"
            raise StoreError(f"{text}; handler.cache.replicas says how many are to have it")
        return results

    def check_size(self, size: int, sequence_id: str) -> None:
        """Raise TooLarge if Redis takes no value of so many bytes, as a commit of a sequence has."""
        if size < 2**20:  # the least that Redis can be configured to take
            return
        if self._longest is None:
            try:
                found = self.call(lambda: self.client.config_get("proto-max-bulk-len"))
                self._longest = int(found.get("proto-max-bulk-len", _LONGEST_VALUE))
            except StoreError:  # a managed Redis may refuse to tell
                self._longest = _LONGEST_VALUE
        if size > self._longest:
            limit = f"Redis at {self.name} takes no value of more than {self._longest:,} bytes (proto-max-bulk-len)"
            raise TooLarge(f"the state has {size:,} bytes with its answers, and {limit}", sequence_id)

    def _silence(self, error: redis.RedisError, *, is_former: bool) -> str:
        if isinstance(error, MasterNotFoundError):  # whose text may quote the password
            advice = "see that they run, know the service, and accept the password and the certificate"
            return f"The Sentinels of {self.name} name no primary that is up; {advice}"
        return f"Redis at {self.name} {'takes no writes' if is_former else 'does not answer'}: {error}"
