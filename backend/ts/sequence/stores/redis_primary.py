"""The primary that Sentinels name, and for how long a client may believe that it still is the primary.

A primary that was frozen wakes up without knowing that Sentinels have made a replica the primary, and acknowledges
writes; for a moment other replicas still follow it, so even ``WAIT`` succeeds. But Sentinels replace a primary only
after it has been silent for ``down-after-milliseconds``. So a primary that has answered, and that no Sentinel was
replacing after that answer, is the primary until that time has passed since the answer; each further answer within that
time prolongs it. Later the client asks for an answer and the Sentinels again.
"""

from __future__ import annotations

import math
import time
from typing import Any

import redis
from redis.sentinel import MasterNotFoundError, Sentinel


class CarefulSentinels(Sentinel):
    """Sentinels of which a majority must answer, and none may be about to replace the primary.

    Attributes:
        silence: How long the primary must be silent until the Sentinels replace it (seconds).
        asked: How often they were asked.
    """

    silence = 0.0
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
        self.silence = min(state["down-after-milliseconds"] for state in states) / 1000
        latest = max(states, key=lambda state: int(state["config-epoch"]))
        return latest["ip"], latest["port"]


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
        self._alive_at = -math.inf
        self._asked = 0

    def confirm(self) -> None:
        """Make sure that the primary is still the primary. Raises redis.ConnectionError: it is not."""
        if self._is_believed():
            return
        sent = time.monotonic()
        self._client.ping()
        pool: Any = self._client.connection_pool
        if self._sentinels.discover_master(self._service) != pool.master_address:
            pool.disconnect()
            raise redis.ConnectionError("the Sentinels name another primary")
        self._asked, self._alive_at = self._sentinels.asked, sent

    def answered(self, sent: float) -> None:
        """Record the answer to a command sent at that moment (monotonic).

        Raises redis.ConnectionError: the Sentinels may have replaced the primary before it answered.
        """
        if not self._is_believed():
            raise redis.ConnectionError("the primary was silent, or has changed")
        self._alive_at = sent

    def _is_believed(self) -> bool:
        is_recent = time.monotonic() < self._alive_at + self._sentinels.silence
        return is_recent and self._asked == self._sentinels.asked
