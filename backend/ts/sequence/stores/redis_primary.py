"""The primary that Sentinels name, and for how long a client may believe that it still is the primary.

A primary that was frozen, or that the network has separated from most Sentinels, does not know that they have made a
replica the primary, and acknowledges writes; replicas that still follow it make even ``WAIT`` succeed. But Sentinels
replace a primary only after a quorum of them has waited ``down-after-milliseconds`` for its answer. So what the
Sentinels tell of their waiting says until when the primary cannot be replaced. Later the client asks them again, and
an answer of the primary that comes later counts as none.
"""

import math
import time
from typing import Any

import redis
from redis.sentinel import MasterNotFoundError, Sentinel


class CarefulSentinels(Sentinel):
    """Sentinels of which a majority must answer, and none may be about to replace the primary.

    Attributes:
        patience: How long the Sentinels cannot replace the primary, as far as they told when they were asked (seconds).
        asked: How often they were asked.
    """

    patience = 0.0
    asked = 0

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

    def confirm(self) -> None:
        """Make sure that the primary is the primary, and will be for a while.

        Raises redis.ConnectionError: it is not, or may not be any moment now.
        """
        # Half of the time is left for the command that follows.
        if self._is_believed(self._sentinels.patience / 2):
            return
        self._client.ping()
        asked_at = time.monotonic()
        pool: Any = self._client.connection_pool
        if self._sentinels.discover_master(self._service) != pool.master_address:
            pool.disconnect()
            raise redis.ConnectionError("the Sentinels name another primary")
        self._asked, self._asked_at = self._sentinels.asked, asked_at
        if not self._is_believed(self._sentinels.patience):
            raise redis.ConnectionError("the Sentinels do not hear from the primary")

    def expect_unchanged(self) -> None:
        """Raise redis.ConnectionError if the Sentinels may have replaced the primary before it answered."""
        if not self._is_believed(self._sentinels.patience):
            raise redis.ConnectionError("the primary was silent, or has changed")

    def _is_believed(self, seconds: float) -> bool:
        return self._asked == self._sentinels.asked and time.monotonic() < self._asked_at + seconds
