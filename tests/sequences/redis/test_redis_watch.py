"""A server hears through Redis which sequences it is asked to let go, whatever becomes of the connection."""

from __future__ import annotations

import signal
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.programs import need_program
from tests.redis_server import DEADLINE, RedisServer
from tests.sequences.redis.redis_store_steps import acquire, do, open_store, take

from ts.jobs.sequence_steps import StoreReports
from ts.sequences.redis import redis_watch
from ts.sequences.steps.stores.store import HeldElsewhere, OtherVersion

redis = pytest.importorskip("redis")


@pytest.fixture
def model() -> str:
    return uuid.uuid4().hex


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    need_program("redis-server")
    with tempfile.TemporaryDirectory() as directory, RedisServer(Path(directory)) as server:
        yield server


class Listening:
    """A thread that listens as a worker does."""

    def __init__(self, store: Any) -> None:
        self.watch = store.watch()
        self.heard: list[str] = []
        self.is_open = True
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        while self.is_open:
            self.heard += self.watch.wait()

    def close(self) -> None:
        self.is_open = False
        self.watch.close()
        self._thread.join(DEADLINE)
        assert not self._thread.is_alive()


def until_heard(listening: Listening, other: Any, sequence_id: str) -> None:
    """Ask for a sequence until its holder has heard of that."""
    end = time.monotonic() + DEADLINE
    while sequence_id not in listening.heard:
        assert acquire(other, sequence_id).refusal == HeldElsewhere()
        assert time.monotonic() < end, "nothing was heard"


def test_a_policy_that_drops_sequences_is_noticed_while_the_server_runs(
    own_redis: RedisServer, model: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(redis_watch, "LOOK_SECONDS", 0.0)
    store = open_store(own_redis.url, model=model, lease=0.3)
    told: list[tuple[bool, int]] = []
    watch = store.watch(StoreReports(lambda may_evict, count: told.append((may_evict, count))))
    with redis.Redis.from_url(own_redis.url) as client:
        for policy, expected in (("noeviction", False), ("allkeys-lru", True), ("noeviction", False)):
            client.config_set("maxmemory-policy", policy)
            told.clear()
            watch.wait()
            assert told[-1] == (expected, 0)
    assert [each.message for each in caplog.records if "allkeys-lru" in each.message] == [
        "Redis has maxmemory-policy allkeys-lru now: it drops acknowledged sequences when its memory is full."
        " Set noeviction."
    ]
    watch.close()


def test_the_memory_of_redis_is_reported(redis_server: RedisServer, model: str) -> None:
    told: list[tuple[int, int | None]] = []
    watch = open_store(redis_server.url, model=model, lease=0.3).watch(
        StoreReports(size=lambda size, sequences: told.append((size, sequences)))
    )
    watch.wait()
    watch.wait()
    watch.close()
    assert len(told) == 1 and told[0][0] > 100_000 and told[0][1] is None


def test_the_holder_and_nobody_else_hears_who_asks(redis_server: RedisServer, model: str) -> None:
    stores = [open_store(redis_server.url, model=model, owner=f"{name}/1/1") for name in "abc"]
    holder, bystander, asking = stores
    do(holder, "sequence ü:1", "one")
    listening = [Listening(store) for store in (holder, bystander)]
    until_heard(listening[0], asking, "sequence ü:1")
    assert set(listening[0].heard) == {"sequence ü:1"}
    for each in listening:
        each.close()
    assert not listening[1].heard
    for store in stores:
        store.close()


def test_nobody_is_asked_for_what_nobody_holds(redis_server: RedisServer, model: str) -> None:
    holder, asking = open_store(redis_server.url, model=model), open_store(redis_server.url, model=model, owner="b/2/2")
    listening = Listening(holder)
    take(holder, "mine")
    take(asking, "theirs")
    assert take(holder, "mine")
    until_heard(listening, asking, "mine")
    assert set(listening.heard) == {"mine"}
    listening.close()
    for store in (holder, asking):
        store.close()


def test_it_hears_again_once_redis_is_back(own_redis: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    holder = open_store(own_redis.url, lease=600.0)
    asking = open_store(own_redis.url, owner="b/2/2", version="1")
    do(holder, "s", "one")
    listening = Listening(holder)
    until_heard(listening, asking, "s")
    own_redis.kill()
    end = time.monotonic() + DEADLINE
    while "does not tell which sequences" not in caplog.text:
        assert time.monotonic() < end
    own_redis.start()
    listening.heard.clear()
    until_heard(listening, asking, "s")
    later = open_store(own_redis.url, owner="b/2/2", version="2")
    assert acquire(later, "s").refusal == OtherVersion("1", is_served=True)
    listening.close()
    for store in (holder, asking, later):
        store.close()


def test_closing_ends_waiting_though_redis_is_frozen(own_redis: RedisServer) -> None:
    store = open_store(own_redis.url, lease=600.0)
    listening = Listening(store)
    own_redis.send(signal.SIGSTOP)
    try:
        listening.close()
    finally:
        own_redis.send(signal.SIGCONT)
    store.close()
