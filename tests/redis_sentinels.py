"""A Redis that fails over: a primary, two replicas, and three Sentinels that make a replica the primary."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from redis import Redis, RedisError
from tests.redis_server import DEADLINE, RedisServer

SERVICE = "mymaster"
SENTINELS = 3
#: The servers of the service.
SERVERS = 3
#: How long a Sentinel hears nothing from a server before it takes it for dead (ms).
DOWN_AFTER = 1000
#: How long a failover may take (ms). Sentinels that fail begin the next one after twice as long.
_FAILOVER_TIMEOUT = 6000
_CONFIG = """
port {port}
bind 127.0.0.1
dir {directory}
sentinel monitor {service} 127.0.0.1 {primary} 2
sentinel down-after-milliseconds {service} {down_after}
sentinel failover-timeout {service} {failover_timeout}
sentinel parallel-syncs {service} 2
"""


class FailoverRedis:
    """Three Redis servers, one of which is the primary at a time, and three Sentinels.

    Args:
        directory: Where they keep their data.
    """

    def __init__(self, directory: Path) -> None:
        options = {"repl-diskless-sync-delay": "0"}
        folders = [directory / f"redis-{number}" for number in range(SERVERS)]
        first = RedisServer(folders[0], options)
        others = [RedisServer(each, {**options, "replicaof": f"127.0.0.1 {first.port}"}) for each in folders[1:]]
        self.servers = [first, *others]
        self._sentinels = [RedisServer(directory / f"sentinel-{number}") for number in range(SENTINELS)]
        hosts = ",".join(f"127.0.0.1:{each.port}" for each in self._sentinels)
        self.url = f"redis+sentinel://{hosts}/{SERVICE}/0"

    def __enter__(self) -> FailoverRedis:
        for each in self.servers:
            each.directory.mkdir()
            each.start()
        for each in self._sentinels:
            each.directory.mkdir()
            config = each.directory / "sentinel.conf"
            places = {"port": each.port, "directory": each.directory, "primary": self.servers[0].port}
            limits = {"down_after": DOWN_AFTER, "failover_timeout": _FAILOVER_TIMEOUT}
            config.write_text(_CONFIG.format(**places, **limits, service=SERVICE))
            each.start_sentinel(config)
        self.wait_whole()
        return self

    def __exit__(self, *exc: object) -> None:
        for each in [*self._sentinels, *self.servers]:
            each.kill()

    def find_primary(self) -> RedisServer:
        """Return the server that the first Sentinel names as the primary."""
        with Redis(port=self._sentinels[0].port, socket_timeout=DEADLINE) as sentinel:
            _, port = sentinel.sentinel_get_master_addr_by_name(SERVICE)
        return next(each for each in self.servers if each.port == int(port))

    def signal_most_sentinels(self, number: int) -> None:
        """Send a signal to all Sentinels except one."""
        for each in self._sentinels[1:]:
            each.send_signal(number)

    def wait_failed_over(self, former: RedisServer) -> None:
        """Wait until another server is the primary."""
        end = time.monotonic() + DEADLINE
        while self.find_primary() is former:
            assert time.monotonic() < end, "no replica becomes the primary"
            time.sleep(0.05)

    def wait_promoted(self, former: RedisServer) -> None:
        """Wait until another server takes itself for the primary; the Sentinels are not done then."""
        end = time.monotonic() + DEADLINE
        with contextlib.ExitStack() as stack:
            others = [stack.enter_context(Redis(port=each.port)) for each in self.servers if each is not former]
            while not any(each.role()[0] == b"master" for each in others):
                assert time.monotonic() < end, "no replica is promoted"
                time.sleep(0.005)

    def wait_whole(self) -> None:
        """Wait until the primary has all replicas, and all Sentinels know all servers and each other.

        A server that a busy machine holds up is failed over meanwhile, and the failover may have to be tried again.
        """
        end = time.monotonic() + DEADLINE + 2 * 2 * _FAILOVER_TIMEOUT / 1000
        while not self._is_whole():
            assert time.monotonic() < end, "the servers do not come together"
            time.sleep(0.05)

    def _is_whole(self) -> bool:
        with contextlib.suppress(RedisError):
            with Redis(port=self.find_primary().port, socket_timeout=1) as primary:
                if not primary.set("probe", 1) or primary.wait(SERVERS - 1, 100) < SERVERS - 1:
                    return False
            return all(self._knows_all(each) for each in self._sentinels)
        return False

    def _knows_all(self, sentinel: RedisServer) -> bool:
        with Redis(port=sentinel.port, socket_timeout=1) as client:
            state = client.sentinel_master(SERVICE)
            replicas = client.sentinel_slaves(SERVICE)
        others, is_well = state["num-other-sentinels"], not (state["is_sdown"] or state["is_odown"])
        named = sum(not each["is_sdown"] for each in replicas)
        is_named = state["port"] == self.find_primary().port
        return bool(is_well and is_named and others == SENTINELS - 1 and named == SERVERS - 1)
