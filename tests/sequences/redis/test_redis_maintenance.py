"""What an operator does with the sequences in a Redis: examine, repair and move them while servers use them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from tests.redis_server import RedisServer
from tests.sequences.redis.redis_store_steps import acquire, do, open_store, step, take

from ts.protocol.boot_clock import boot_time
from ts.protocol.messages import ENDED
from ts.sequences.redis.redis_maintenance import RedisMaintenance
from ts.sequences.redis.redis_store import RedisStore
from ts.sequences.steps.stores.maintenance import Examined, StoredSequence
from ts.sequences.steps.stores.store import StoreError, Unreadable

redis = pytest.importorskip("redis")


@pytest.fixture
def model() -> str:
    return uuid.uuid4().hex


@pytest.fixture
def store(redis_server: RedisServer, model: str) -> Iterator[RedisStore]:
    store = open_store(redis_server.url, model=model)
    yield store
    store.close()


@pytest.fixture
def operator(redis_server: RedisServer) -> Iterator[Any]:
    with redis.Redis.from_url(redis_server.url) as client:
        yield client


@pytest.fixture
def maintenance(redis_server: RedisServer) -> Iterator[RedisMaintenance]:
    maintenance = RedisMaintenance(redis_server.url)
    yield maintenance
    maintenance.close()


def examined(maintenance: RedisMaintenance, model: str) -> dict[str, Examined]:
    return {each.sequence_id: each for each in maintenance.examine() if each.model == model}


def timeless(found: dict[str, Examined]) -> dict[str, StoredSequence]:
    return {name: replace(each.sequence, time_left=0) for name, each in found.items() if each.sequence is not None}


def test_sequences_move_to_another_redis_as_they_are(
    store: RedisStore, maintenance: RedisMaintenance, redis_server: RedisServer, model: str
) -> None:
    do(store, "ended", "one", "two", closed=ENDED)
    first = do(store, "s", "zero", closed=ENDED)
    lease = do(store, "s", *(f"r{number}" for number in range(20)), token="u")
    take(store, "not begun")
    store.release([(first, boot_time()), (lease, boot_time() + 60)])
    found = examined(maintenance, model)
    assert found.keys() == {"ended", "s"}
    assert [each.problems for each in found.values()] == [[], []]
    moved = found["s"].sequence
    assert moved is not None
    assert (moved.closed, moved.state, len(moved.ids)) == ("", b"state r19", 20 * 8)
    assert 50 < moved.time_left <= 60
    assert [(each.step.number, each.answer) for each in moved.answers] == [
        (1, b"answer r0"),
        (19, b"answer r18"),
        (20, b"answer r19"),
    ]
    with redis.Redis.from_url(redis_server.url, db=1) as other:
        other.flushdb()
    url = f"{redis_server.url.removesuffix('/0')}/1"
    target = RedisMaintenance(url)
    for each in found.values():
        assert each.sequence is not None
        assert target.write(each.sequence, replace=False)
        assert not target.write(each.sequence, replace=False)
        assert target.write(each.sequence, replace=True)
    assert timeless(examined(target, model)) == timeless(found)
    target.close()
    there = open_store(url, model=model)
    acquired = acquire(there, "s")
    assert acquired.state == b"state r19"
    assert acquired.lease is not None
    record, old = acquired.lease.record, lease.record
    assert (record.incarnation, record.token, record.last, record.kept) == (2, "u", 20, old.kept)
    assert record.is_earlier("t")
    assert record.ids == old.ids
    assert there.find("s", 2, 20) == b"answer r19"
    assert there.commit([step(acquired.lease, "next")]) == [True]
    assert take(there, "s").record.has_id("r19")
    assert take(there, "ended").record.closed == ENDED
    there.close()


def test_a_repair_sets_right_what_is_damaged_and_nothing_else(
    store: RedisStore, maintenance: RedisMaintenance, operator: Any, model: str
) -> None:
    ids = ("whole", "answer", "state", "head", "ids", "earlier", "type", "kept")
    for sequence_id in ids:
        do(store, sequence_id, *(f"r{number}" for number in range(20)))
    key = f"tsq:{{{model}}}:"
    operator.hset(f"{key}answer", "a1", b"garbage")
    operator.set(f"tsq:{{{model}}}state:state", b"garbage")
    operator.hset(f"{key}head", "head", b"garbage")
    operator.delete(f"tsq:{{{model}}}ids:ids")
    operator.hset(f"{key}earlier", "earlier", b"garbage")
    operator.delete(f"{key}type")
    operator.rpush(f"{key}type", "a list")
    operator.hset(f"{key}kept", "k0", b"garbage")
    found = examined(maintenance, model)
    assert {name for name, each in found.items() if each.problems} == {*ids} - {"whole"}
    assert {name for name, each in found.items() if each.sequence} == {"whole", "answer"}
    repaired = {each.sequence_id: each.what for each in maintenance.repair() if each.model == model}
    assert repaired.keys() == {*ids} - {"whole"}
    assert "the checksum of the answer to step 20 is wrong" in repaired["answer"]
    assert "its state" in repaired["state"]
    assert not [each for each in examined(maintenance, model).values() if each.problems]
    assert not [each for each in maintenance.repair() if each.model == model]
    closed = {}
    for name in ids:
        acquired = acquire(store, name)
        assert acquired.lease is not None, (name, acquired)
        assert acquired.refusal is None
        closed[name] = acquired.lease.record.closed
    over = {"state", "head", "type"}
    assert {name for name, reason in closed.items() if reason == ENDED} == over
    assert {name for name, reason in closed.items() if not reason} == {*ids} - over
    assert store.find("answer", 1, 19) == b"answer r18"
    assert store.find("answer", 1, 20) is None
    assert take(store, "ids").record.forgotten_ids
    assert take(store, "ids").record.has_id("r19")  # which was kept with the last step
    assert take(store, "head").record.last == 20
    assert acquire(store, "kept").state == b"state r19"
    (problem,) = [each for each in maintenance.other_problems() if model in each]
    assert "'type' was set aside" in problem


def test_who_holds_a_repaired_sequence_has_lost_it(
    store: RedisStore, maintenance: RedisMaintenance, operator: Any, model: str
) -> None:
    lease = do(store, "s", "one", "two")
    operator.hset(f"tsq:{{{model}}}:s", "a0", b"garbage")
    assert [each.sequence_id for each in maintenance.repair() if each.model == model] == ["s"]
    assert store.commit([step(lease, "three")]) == [False]
    assert acquire(store, "s").state == b"state two"


def test_a_sequence_that_cannot_be_read_is_replaced_only_on_demand(
    store: RedisStore, maintenance: RedisMaintenance, operator: Any, model: str
) -> None:
    do(store, "s", "one")
    (whole,) = examined(maintenance, model).values()
    assert whole.sequence is not None
    operator.hset(f"tsq:{{{model}}}:s", "head", b"garbage")
    assert isinstance(acquire(store, "s").refusal, Unreadable)
    assert not maintenance.write(whole.sequence, replace=False)
    assert maintenance.write(whole.sequence, replace=True)
    assert acquire(store, "s").state == b"state one"


def test_a_redis_that_does_not_answer_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ts.sequences.redis.redis_maintenance._LEASE", 0.1)
    with pytest.raises(StoreError, match=r"Redis at 127\.0\.0\.1:1 does not answer"):
        RedisMaintenance("redis://127.0.0.1:1/0")
