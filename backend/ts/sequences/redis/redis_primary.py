"""The primary that Sentinels name, and for how long a client may believe that it still is the primary.

A primary that was frozen, or that the network has separated from most Sentinels, does not know that they have made a
replica the primary, and acknowledges writes; replicas that still follow it make even ``WAIT`` succeed. But Sentinels
replace a primary only after a quorum of them has waited ``down-after-milliseconds`` for its answer. So what the
Sentinels tell of their waiting says until when the primary cannot be replaced. Later the client asks them again, and
an answer of the primary that comes later counts as none.
"""

import math
import time
from collections.abc import Callable
from typing import Any

import redis
from redis.connection import SSLConnection
from redis.sentinel import MasterNotFoundError, Sentinel, SentinelManagedConnection


class CarefulSentinels(Sentinel):
    """Sentinels of which a majority must answer, and none may be about to replace the primary.

    Attributes:
        patience: How long the Sentinels cannot replace the primary, as far as they told when they were asked (seconds).
        asked: How often they were asked.
        wait_until: The moment (monotonic seconds) until which an answer of the primary is waited for.
    """

    patience = 0.0
    asked = 0
    wait_until = math.inf

    def discover_master(self, service_name: str) -> tuple[str, int]:
        """Return host and port of the primary of the latest failover.

        Raises MasterNotFoundError: too few Sentinels answer, they do not know the service, or one replaces the primary.
        """
        self.asked += 1
        states: list[dict[str, Any]] = []
        for sentinel in self.sentinels:
            try:
                masters: Any = sentinel.sentinel_masters()
            except (redis.ConnectionError, redis.TimeoutError):
                continue
            if service_name in masters:
                states.append(masters[service_name])
        if 2 * len(states) <= len(self.sentinels):
            raise MasterNotFoundError(f"{len(states)} of {len(self.sentinels)} Sentinels tell of {service_name}")
        if any("failover_in_progress" in state["flags"] for state in states):
            raise MasterNotFoundError(f"the primary of {service_name} is being replaced")
        self.patience = patience_of(states, silent=len(self.sentinels) - len(states))
        latest = max(states, key=lambda state: int(state["config-epoch"]))
        return latest["ip"], latest["port"]


def patience_of(states: list[dict[str, Any]], silent: int) -> float:
    """Return how long Sentinels cannot replace their primary (seconds); 0 or less if they may do so now.

    Args:
        states: What Sentinels tell of the primary.
        silent: How many further Sentinels there are; they may all have waited long enough.
    """
    needed: int = min(state["quorum"] for state in states) - silent
    if needed <= 0:
        return 0.0
    waits = sorted(_patience(state) for state in states)
    return waits[min(needed, len(waits)) - 1]


def _patience(state: dict[str, Any]) -> float:
    """Return for how many seconds a Sentinel will go on waiting until the primary is down for it."""
    without_link = state["last-ok-ping-reply"] if "disconnected" in state["flags"] else 0
    waited: int = state["last-ping-sent"] or without_link
    limit: int = state["down-after-milliseconds"]
    return (limit - waited) / 1000


class PrimaryTrust:
    """For how long a client may believe its primary.

    Args:
        client: A client of the service's primary.
        sentinels: Those that name the primary.
        service: The name of the service.
    """

    def __init__(self, client: redis.Redis, sentinels: CarefulSentinels, service: str) -> None:
        self._client = client
        self._sentinels = sentinels
        self._service = service
        self._asked_at = -math.inf
        self._asked = 0

    def run(self, command: Callable[[], Any], end: float) -> Any:
        """Run a command at the primary, and wait for its answer while it is believed, until ``end`` at the latest.

        Raises redis.ConnectionError: it is not the primary, or has perhaps not been until it answered.
        """
        # Half of the time is left for the command.
        if not self._is_believed(self._sentinels.patience / 2):
            self._confirm(end)
        self._sentinels.wait_until = min(end, self._asked_at + self._sentinels.patience)
        result = command()
        if not self._is_believed(self._sentinels.patience):
            raise redis.ConnectionError("the primary was silent, or has changed")
        return result

    def _confirm(self, end: float) -> None:
        """Make sure that the client has a connection to the primary, and that it will be the primary for a while.

        A primary that the Sentinels may be about to replace is not even asked: it may be frozen.
        """
        pool: Any = self._client.connection_pool
        asked_at = time.monotonic()
        primary = self._sentinels.discover_master(self._service)
        self._sentinels.wait_until = min(end, asked_at + self._sentinels.patience)
        if self._sentinels.wait_until <= time.monotonic():
            raise redis.ConnectionError("the Sentinels do not hear from the primary")
        if primary != pool.master_address:
            pool.disconnect()
        self._client.ping()
        if primary != pool.master_address:
            raise redis.ConnectionError("the Sentinels name another primary")
        self._asked, self._asked_at = self._sentinels.asked, asked_at

    def _is_believed(self, seconds: float) -> bool:
        return self._asked == self._sentinels.asked and time.monotonic() < self._asked_at + seconds


class _PrimaryConnection(SentinelManagedConnection):
    """A connection that waits for an answer while the primary is believed, if a `PrimaryTrust` says for how long."""

    def read_response(self, *arguments: Any, **options: Any) -> Any:
        until = self.connection_pool.sentinel_manager.wait_until
        is_limited = until < math.inf and "timeout" not in options
        if is_limited and not self.can_read(max(until - time.monotonic(), 0.0)):
            self.disconnect()  # type: ignore[no-untyped-call]
            raise redis.TimeoutError("no answer while it was certain to be the primary")
        return super().read_response(*arguments, **options)


class _PrimaryTlsConnection(_PrimaryConnection, SSLConnection):
    """The same with TLS."""


def connection_class(*, uses_tls: bool) -> type[SentinelManagedConnection]:
    """Return the class of the connections to a primary."""
    return _PrimaryTlsConnection if uses_tls else _PrimaryConnection
