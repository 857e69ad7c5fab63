"""The connection of the Redis store: to one Redis, or to the primary that Sentinels name; and its retries.

While the connection is broken the command is tried again for a limited time, so every command must be safe to run
twice. A Redis that says that it is a replica, or that its replicas have left it, is a former primary after a failover:
the connection to it counts as broken, and the next try asks the Sentinels (or resolves the host) anew.
"""

import re
import time
from collections.abc import Callable
from typing import Any, Final

import redis
from redis.backoff import NoBackoff
from redis.connection import SSLConnection, parse_url
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError

from ts.protocol.sentinel_url import is_sentinel_url, split_sentinel_url
from ts.sequence.stores.redis_primary import CarefulSentinels, PrimaryTrust
from ts.sequence.stores.store import StoreError

#: Seconds to go on trying, to wait for an answer, and to pause between tries. A short lease shortens the first two, but
#: not below the shortest limit. At least two tries fit into the retry limit: one may ask a primary that is frozen.
_RETRY_LIMIT: Final = 20.0
_ANSWER_LIMIT: Final = 5.0
_SHORTEST_LIMIT: Final = 0.5
_RETRY_PAUSE: Final = 0.1
_BROKEN: Final = (redis.ConnectionError, redis.TimeoutError, redis.exceptions.BusyLoadingError)
#: What a former primary answers, and one that has been made a replica during WAIT; in Redis 6 within a script's error.
_FORMER: Final = re.compile(r"\b(READONLY|read only replica|NOREPLICAS|UNBLOCKED)\b")


class RedisConnection:
    """A client of Redis whose commands are retried.

    Raises StoreError: the URL is not one of Redis.

    Attributes:
        client: The client.
        name: What the Redis is called in messages.
        answer_limit: How long one try waits for an answer (seconds).
        repeated: Whether the last command was tried more than once.
    """

    def __init__(self, url: str, lease: float) -> None:
        self._retry_limit = min(_RETRY_LIMIT, max(lease / 2, _SHORTEST_LIMIT))
        self.answer_limit = min(_ANSWER_LIMIT, max(self._retry_limit / 2, _SHORTEST_LIMIT))
        self.repeated = False
        try:
            self._trust: PrimaryTrust | None = None
            if is_sentinel_url(url):
                self.client, self.name, self._trust = _open_primary(url, self.answer_limit)
            else:
                self.client, self.name = _open_one(url, self.answer_limit)
        except ValueError as error:
            raise StoreError(f"the url of the sequence store is not one of Redis: {error}") from error

    def call(self, command: Callable[[], Any]) -> Any:
        """Run a command; retry while the connection is broken, Redis is starting or has lost its role as primary.

        Raises StoreError: Redis did not answer within the time limit, or refused the command.
        """
        end = time.monotonic() + self._retry_limit
        self.repeated = False
        while True:
            try:
                return self._try(command)
            except redis.RedisError as error:
                is_former = isinstance(error, redis.ResponseError) and _FORMER.search(str(error)) is not None
                if not (is_former or isinstance(error, _BROKEN)):
                    raise StoreError(f"Redis at {self.name} refuses: {error}") from error
                if time.monotonic() > end:
                    raise StoreError(self._silence(error, is_former=is_former)) from error
                if is_former:
                    self.client.connection_pool.disconnect()
                self.repeated = True
                time.sleep(_RETRY_PAUSE)

    def _try(self, command: Callable[[], Any]) -> Any:
        if self._trust is None:
            return command()
        self._trust.confirm()
        result = command()
        self._trust.expect_unchanged()
        return result

    def _silence(self, error: redis.RedisError, *, is_former: bool) -> str:
        if isinstance(error, MasterNotFoundError):  # whose text may quote the password
            advice = "see that they run, know the service, and accept the password and the certificate"
            return f"The Sentinels of {self.name} name no primary that is up; {advice}"
        return f"Redis at {self.name} {'takes no writes' if is_former else 'does not answer'}: {error}"


def _open_one(url: str, limit: float) -> tuple[redis.Redis, str]:
    client = redis.Redis.from_url(url, socket_timeout=limit, socket_connect_timeout=limit)
    where = client.connection_pool.connection_kwargs
    return client, where.get("path") or f"{where.get('host', 'localhost')}:{where.get('port', 6379)}"


def _open_primary(url: str, limit: float) -> tuple[redis.Redis, str, PrimaryTrust]:
    named = split_sentinel_url(url)
    options = parse_url(named.redis_url)  # type: ignore[no-untyped-call]
    uses_tls = options.pop("connection_class", None) is SSLConnection
    each = limit / len(named.sentinels)
    sentinel_options = {
        **{name: value for name, value in options.items() if name.startswith("ssl_")},
        **named.login,
        "ssl": uses_tls,
        "socket_timeout": each,
        "socket_connect_timeout": each,
        "retry": Retry(NoBackoff(), 0),
    }
    options = {"socket_timeout": limit, "socket_connect_timeout": limit, **options, "ssl": uses_tls}
    sentinels = CarefulSentinels(named.sentinels, sentinel_kwargs=sentinel_options, **options)  # type: ignore[no-untyped-call]
    hosts = ",".join(f"{host}:{port}" for host, port in named.sentinels)
    primary: redis.Redis = sentinels.master_for(named.service)  # type: ignore[no-untyped-call]
    return primary, f"{hosts}/{named.service}", PrimaryTrust(primary, sentinels, named.service)
