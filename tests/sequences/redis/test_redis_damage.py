"""The Redis store, whatever is in Redis: damage costs the sequence that has it, and raises the store's errors only."""

from __future__ import annotations

import contextlib
import random
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import msgpack
import pytest
from tests.redis_server import RedisServer
from tests.sequences.redis.redis_store_steps import acquire, do, open_store, step, take

from ts.protocol.boot_clock import boot_time
from ts.sequences.redis.redis_maintenance import RedisMaintenance
from ts.sequences.redis.redis_store import RedisStore
from ts.sequences.steps.record import Damaged, seal
from ts.sequences.steps.stores.store import HeldElsewhere, StoreError, Unreadable

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


def wrong_type(operator: Any, key: str) -> None:
    operator.delete(key)
    operator.rpush(key, "a list")


def no_field(name: str) -> Callable[[Any, str], None]:
    return lambda operator, key: operator.hdel(key, name)


def garbage(name: str, value: bytes = b"\xff garbage") -> Callable[[Any, str], None]:
    return lambda operator, key: operator.hset(key, name, value)


def another_format(operator: Any, key: str) -> None:
    operator.hset(key, "head", b"\x03" + operator.hget(key, "head")[1:])


DAMAGES = {
    "a list": wrong_type,
    **{f"no {name}": no_field(name) for name in ("fence", "owner", "until", "lease", "lifetime", "expires", "closed")},
    **{f"no {name}": no_field(name) for name in ("version", "states", "earlier", "ids", "k1")},
    **{f"garbage in {name}": garbage(name) for name in ("until", "lease", "expires", "closed", "head", "earlier")},
    **{f"garbage in {name}": garbage(name) for name in ("ids", "k0", "k1", "k2")},
    "another version": garbage("version", b"2"),
    "another version of states": garbage("states", b"2"),
    "a sealed number as head": garbage("head", seal(msgpack.packb(7))),
    "a head of text": garbage("head", seal(msgpack.packb(["a"] * 9))),
    "a head with infinity": garbage("head", seal(msgpack.packb([float("inf"), "t", "1", "", 3, False, 3, 0, 0]))),
    "a head of a later format": another_format,
    "ids of the wrong type": lambda operator, key: wrong_type(operator, key.replace("}:", "}ids:")),
    "ids that are cut off": lambda operator, key: operator.set(key.replace("}:", "}ids:"), b"short"),
    "ids that are gone": lambda operator, key: operator.delete(key.replace("}:", "}ids:")),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_record_that_cannot_be_read_is_nobodys_and_the_others_are_served(
    redis_server: RedisServer, store: RedisStore, operator: Any, model: str, damage: Callable[[Any, str], None]
) -> None:
    for sequence_id in ("a", "s", "z"):
        do(store, sequence_id, *(f"r{number}" for number in range(20)))
    key = f"tsq:{{{model}}}:s"
    damage(operator, key)
    before, after, other = store.acquire(["a", "z", "new"])
    first, damaged, last = store.acquire(["a", "s", "z"])
    assert [each.refusal for each in (first, last, before, after, other)] == [None] * 5
    assert damaged.lease is None
    assert damaged.state is None
    assert isinstance(damaged.refusal, Unreadable), damaged
    with pytest.raises(Damaged):
        store.peek("s")
    assert first.lease is not None
    assert last.lease is not None
    assert store.commit([step(first.lease, "more"), step(last.lease, "more")]) == [True, True]
    # It stays so for the other servers: it is held by nobody.
    another = open_store(redis_server.url, model=model, owner="b/2/2")
    assert isinstance(acquire(another, "s").refusal, Unreadable)
    another.close()


STATES = {
    "gone": lambda operator, key: operator.delete(key),
    "another one": lambda operator, key: operator.set(key, b"another state"),
    "a list": wrong_type,
}


@pytest.mark.parametrize("damage", STATES.values(), ids=STATES.keys())
def test_a_state_that_cannot_be_read_leaves_what_is_known_of_its_steps(
    store: RedisStore, operator: Any, model: str, damage: Callable[[Any, str], None]
) -> None:
    do(store, "s", "one", "two")
    damage(operator, f"tsq:{{{model}}}state:s")
    acquired = acquire(store, "s")
    assert isinstance(acquired.refusal, Unreadable)
    assert acquired.state is None
    assert acquired.lease is not None
    assert acquired.lease.record.has_id("two")
    assert store.find("s", 1, 2) == b"answer two"
    acquired.lease.record.begin("u", "1", "")
    assert store.commit([step(acquired.lease, "new")]) == [True]
    assert acquire(store, "s").state == b"state new"


def test_an_answer_that_cannot_be_read_is_damaged_and_the_sequence_continues(
    store: RedisStore, operator: Any, model: str
) -> None:
    do(store, "s", "one", "two", "three")
    key = f"tsq:{{{model}}}:s"
    operator.hset(key, "a1", b"another answer")
    operator.hdel(key, "a0")
    with pytest.raises(Damaged, match="the checksum of the answer to step 2 is wrong"):
        store.find("s", 1, 2)
    with pytest.raises(Damaged, match="the answer to step 1 is missing"):
        store.find("s", 1, 1)
    assert store.find("s", 1, 3) == b"answer three"
    assert store.commit([step(take(store, "s"), "four")]) == [True]


def test_a_commit_to_a_key_of_another_type_is_refused_and_the_others_are_written(
    store: RedisStore, operator: Any, model: str
) -> None:
    do(store, "t", *(f"r{number}" for number in range(15)))
    commits = [step(take(store, each), "one") for each in ("a", "s", "t", "z")]
    wrong_type(operator, f"tsq:{{{model}}}:s")
    wrong_type(operator, f"tsq:{{{model}}}ids:t")
    assert store.commit(commits) == [True, False, False, True]
    assert store.renew([each.lease for each in commits]) == [True, False, True, True]
    store.release([(each.lease, boot_time() + 60) for each in commits])
    store.end([each.lease for each in commits])
    assert store.settle(commits) == [True, None, None, True]


def test_whatever_is_in_redis_the_store_raises_its_own_errors_only(
    store: RedisStore, operator: Any, model: str
) -> None:
    random_source = random.Random(20)
    key = f"tsq:{{{model}}}:s"
    for _ in range(400):
        for name in (":s", "ids:s", "state:s"):
            operator.delete(f"tsq:{{{model}}}{name}")
        do(store, "s", *(f"r{number}" for number in range(random_source.choice((1, 3, 17)))))
        mangle(random_source, operator, model)
        good, _ = store.acquire(["good", "s"])
        assert good.lease is not None, (good, operator.hgetall(key))
        with contextlib.suppress(Damaged, StoreError):
            acquired = acquire(store, "s")
            if acquired.lease is not None:
                store.commit([step(acquired.lease, "next")])
                store.settle([step(acquired.lease, "last")])
                store.release([(acquired.lease, boot_time() - 1)])
        for action in (lambda: store.peek("s"), *(lambda n=n: store.find("s", 1, n) for n in (1, 2, 3))):
            with contextlib.suppress(Damaged, StoreError):
                action()
        operator.delete(f"tsq:{{{model}}}:good")


def test_whatever_is_in_redis_a_repair_makes_it_readable(
    redis_server: RedisServer, store: RedisStore, operator: Any, model: str
) -> None:
    random_source = random.Random(21)
    operator.flushdb()  # to examine and to repair looks at what other tests have left, too
    for number in range(200):
        names = [f"tsq:{{{model}}}{name}" for name in (":s", "ids:s", "state:s")]
        operator.delete(*names)
        do(store, "s", *(f"r{number}" for number in range(random_source.choice((1, 3, 17)))))
        mangle(random_source, operator, model)
        maintenance = RedisMaintenance(redis_server.url)
        found = [each for each in maintenance.examine() if each.model == model]
        readable = not isinstance(acquire(store, "s").refusal, Unreadable)
        list(maintenance.repair())
        again = [each for each in maintenance.examine() if each.model == model]
        maintenance.close()
        assert not any(each.problems for each in again), (number, found, again)
        acquired = acquire(store, "s")
        assert acquired.refusal in {None, HeldElsewhere()}, (number, found, again, acquired)
        assert readable or not found or found[0].problems, (number, found)


def mangle(random_source: random.Random, operator: Any, model: str) -> None:
    """Damage one or two places of the sequence s."""
    key, ids, state = (f"tsq:{{{model}}}{name}" for name in (":s", "ids:s", "state:s"))
    for _ in range(random_source.choice((1, 2))):
        kind = random_source.randrange(6)
        if operator.type(key) != b"hash" or kind == 5:
            target = random_source.choice((key, ids, state))
            operator.delete(target)
            random_source.choice((operator.set, operator.rpush, operator.sadd))(target, random_source.randbytes(9))
            continue
        name = random_source.choice(sorted(operator.hkeys(key)))
        value = bytearray(operator.hget(key, name))
        if kind == 0:
            operator.hdel(key, name)
        elif kind == 1 and value:
            value[random_source.randrange(len(value))] ^= 1 << random_source.randrange(8)
            operator.hset(key, name, bytes(value))
        elif kind == 2:
            operator.hset(key, name, bytes(value[: random_source.randrange(len(value) + 1)]))
        elif kind == 3:
            choices = (b"", b"nan", b"-inf", b"1e400", b"0x1f", b"\xff\xfe", random_source.randbytes(40))
            operator.hset(key, name, random_source.choice(choices))
        else:  # whole for its checksum, but nothing that a store has written
            odd = (7, None, "text", [1], [None] * 9, [-1] * 9, [2**63] * 6, ["x"] * 6, {"a": 1}, [[1]] * 6, [1.5] * 9)
            operator.hset(key, name, seal(msgpack.packb(random_source.choice(odd))))
