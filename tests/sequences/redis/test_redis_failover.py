"""The Redis store when Redis fails over: steps go on at the new primary, and a former primary is not believed."""

import itertools
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from tests.programs import need_program
from tests.redis_sentinels import FailoverRedis
from tests.redis_server import DEADLINE, RedisServer
from tests.sequences.redis import redis_store_steps
from tests.sequences.redis.redis_store_steps import open_store, take
from tests.sequences.steps.stepping import TOTAL, Make, answered, step

from ts.sequences.redis.redis_primary import patience_of
from ts.sequences.steps.stores.store import StoreError


@pytest.fixture
def directory() -> Iterator[Path]:
    need_program("redis-server")
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory)


@pytest.mark.parametrize("kind", ["redis"])
def test_steps_go_on_at_the_new_primary_and_none_is_lost(durable_worker: Make, directory: Path, kind: str) -> None:
    with FailoverRedis(directory) as redis:
        worker = durable_worker(TOTAL, url=redis.url, replicas=1, lease=2.0)
        numbers = itertools.count(1)

        def add_one() -> bool:
            number = next(numbers)
            deadline = time.monotonic() + DEADLINE
            while True:
                (told,) = answered(worker, step(f"j{time.monotonic()}", "s", "1", request_id=f"r{number}"))
                if isinstance(told, str):
                    assert told == str(number)
                    return True
                assert told in {(503, "outcome_unknown"), (503, "sequence_store")}
                assert time.monotonic() < deadline

        assert add_one()
        idle, elsewhere = (open_store(redis.url, replicas=1, lease=2.0) for _ in range(2))
        change = redis_store_steps.step(take(idle, "other"), "new")
        former = redis.find_primary()
        former.send_signal(signal.SIGSTOP)
        redis.wait_promoted(former)
        # The former primary does not know yet that it was replaced, and a replica still follows it: WAIT would succeed.
        former.send_signal(signal.SIGCONT)
        assert persistently(lambda: idle.commit([change])) == [True]
        assert add_one()
        redis.wait_failed_over(former)
        assert persistently(lambda: elsewhere.acquire(["other"]))[0].state == b"state new"
        assert add_one()
        redis.find_primary().kill()
        assert add_one()
        for store in (idle, elsewhere):
            store.close()


def test_without_most_sentinels_nothing_is_acknowledged(directory: Path) -> None:
    with FailoverRedis(directory) as redis:
        store = open_store(redis.url, lease=2.0)
        assert store.acquire(["s"])[0].lease is not None
        assert store.watch().wait() == [], "no other server asks for a sequence"
        redis.signal_most_sentinels(signal.SIGSTOP)
        # They may be separated from the primary, and make another server the primary.
        end = time.monotonic() + DEADLINE
        with pytest.raises(StoreError, match="name no primary that is up"):
            while time.monotonic() < end:
                store.acquire(["s"])
        redis.signal_most_sentinels(signal.SIGCONT)
        assert persistently(lambda: store.acquire(["s"]))[0].lease is not None
        store.close()


@pytest.mark.parametrize(
    ("waited", "silent", "seconds"),
    [
        ((0, 0, 0), 0, 5.0),
        ((0, 4000, 0), 0, 5.0),  # one Sentinel alone cannot replace the primary
        ((1000, 4000, 0), 0, 4.0),
        ((5000, 6000, 0), 0, 0.0),
        ((0, 1000), 1, 4.0),  # the silent Sentinel and the one that waits are enough
        ((0, 0), 2, 0.0),
    ],
)
def test_sentinels_are_patient_until_a_quorum_has_waited_long_enough(
    waited: tuple[int, ...], silent: int, seconds: float
) -> None:
    connected = {"down-after-milliseconds": 5000, "quorum": 2, "flags": "master", "last-ok-ping-reply": 9000}
    assert patience_of([{**connected, "last-ping-sent": each} for each in waited], silent) == seconds


def test_a_sentinel_without_a_connection_has_waited_since_the_last_answer() -> None:
    state = {"down-after-milliseconds": 5000, "quorum": 1, "last-ping-sent": 0, "last-ok-ping-reply": 2000}
    assert patience_of([{**state, "flags": "master,disconnected"}], silent=0) == 3.0


def persistently(action: Callable[[], Any]) -> Any:
    """Try until the store can do it."""
    end = time.monotonic() + DEADLINE
    while True:
        try:
            return action()
        except StoreError:
            assert time.monotonic() < end


def test_a_primary_that_has_become_a_replica_is_a_broken_connection(directory: Path) -> None:
    with RedisServer(directory) as redis, Redis(port=redis.port) as operator:
        store = open_store(redis.url, lease=2.0)
        operator.replicaof("127.0.0.1", 1)
        with pytest.raises(StoreError, match=r"takes no writes: .*read only replica"):
            store.acquire(["s"])
        soon = threading.Timer(0.2, lambda: operator.replicaof("NO", "ONE"))
        soon.start()
        (acquired,) = store.acquire(["s"])
        soon.join()
        assert acquired.lease is not None
        store.close()


def test_a_primary_that_its_replicas_have_left_is_a_broken_connection(directory: Path) -> None:
    with RedisServer(directory, {"min-replicas-to-write": "1"}) as redis, Redis(port=redis.port) as operator:
        store = open_store(redis.url, lease=2.0)
        with pytest.raises(StoreError, match="takes no writes: NOREPLICAS"):
            store.acquire(["s"])
        soon = threading.Timer(0.2, lambda: operator.config_set("min-replicas-to-write", 0))
        soon.start()
        (acquired,) = store.acquire(["s"])
        soon.join()
        assert acquired.lease is not None
        store.close()


def test_redis_and_its_sentinels_have_passwords_of_their_own(directory: Path) -> None:
    sentinel = RedisServer(directory)
    with RedisServer(directory, {"requirepass": "p,w"}) as redis:
        lines = [f"port {sentinel.port}", "bind 127.0.0.1", f"dir {directory}", "requirepass s@w"]
        lines += [f"sentinel monitor main 127.0.0.1 {redis.port} 1", "sentinel auth-pass main p,w"]
        (directory / "sentinel.conf").write_text("\n".join(lines))
        sentinel.start_sentinel(directory / "sentinel.conf")
        try:
            at = f"redis+sentinel://:p%2Cw@127.0.0.1:{sentinel.port}/main/3?sentinel_password="
            store = open_store(f"{at}s%40w", lease=2.0)
            (acquired,) = store.acquire(["s"])
            assert acquired.lease is not None
            store.close()
            with pytest.raises(StoreError, match="accept the password"):
                open_store(f"{at}wrong", lease=2.0)
        finally:
            sentinel.kill()
        with Redis(port=redis.port, password="p,w", db=3) as operator:
            assert operator.exists("tsq:{m}:s")


def test_sentinels_that_cannot_be_asked_are_told_without_the_password() -> None:
    url = "redis+sentinel://me:secret@127.0.0.1:1,127.0.0.1:2/main?sentinel_password=secret"
    with pytest.raises(StoreError, match=r"127\.0\.0\.1:2/main name no primary that is up") as told:
        open_store(url, lease=2.0)
    assert "secret" not in str(told.value)
