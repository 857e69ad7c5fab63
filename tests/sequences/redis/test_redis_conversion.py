"""Sequences that an earlier release has stored in Redis continue with this one."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from typing import Any

import msgpack
import pytest
from tests.redis_server import RedisServer
from tests.sequences.redis.redis_store_steps import acquire, do, open_store, step, take

from ts.protocol.messages import ENDED
from ts.sequences.steps.record import digest_of
from ts.sequences.steps.stores.store import IDLE, HeldElsewhere

redis = pytest.importorskip("redis")

#: What an earlier release has written after 6 steps, three of which are kept besides the first, as its scripts did.
SIX_STEPS = {
    **{"token": "77", "owner": "a/1/1", "incarnation": 2, "steps": 5, "closed": "", "state": b"state 6"},
    **{"q0": "2:r1", "q1": "2:r5", "q2": "2:r6", "q3": "2:r4", "q4": "1:old"},
}
HOUR = 3_600_000


def answer(text: str, digest: bytes = b"") -> bytes:
    """An answer as earlier releases have encoded it."""
    packed: bytes = msgpack.packb((200, "", [], text.encode(), None, digest))
    return packed


class Earlier:
    """The keys of an earlier release for one model."""

    def __init__(self, client: Any, model: str) -> None:
        self.client, self.model = client, model

    @property
    def now(self) -> int:
        return int(self.client.time()[0] * 1000)

    def store(
        self, sequence_id: str, *, version: str = "1", idle_in: int = HOUR, held: bool = False, **more: Any
    ) -> None:
        """Write a sequence; a field that is None is left out."""
        answers = {"r0": answer("one", b"digest-1"), "r1": answer("five"), "r2": answer("six"), "r3": answer("four")}
        times = {"until": self.now + HOUR if held else 0, "expires": self.now + idle_in}
        fields = {**SIX_STEPS, **answers, **times, **more}
        key = f"ts:{{{self.model}/{version}}}:{sequence_id}"
        self.client.hset(key, mapping={name: value for name, value in fields.items() if value is not None})
        self.client.pexpire(key, 2 * HOUR)

    def put_aside(self, sequence_id: str, state: bytes) -> None:
        self.client.set(f"ts:{{{self.model}/1}}aside:{sequence_id}", state, px=300_000)


@pytest.fixture
def earlier(redis_server: RedisServer) -> Iterator[Earlier]:
    with redis.Redis.from_url(redis_server.url) as client:
        yield Earlier(client, uuid.uuid4().hex)


def test_an_open_sequence_continues_with_what_was_known_of_it(redis_server: RedisServer, earlier: Earlier) -> None:
    earlier.store("s")
    store = open_store(redis_server.url, model=earlier.model)
    acquired = acquire(store, "s")
    assert acquired.state == b"state 6"
    assert acquired.lease is not None
    record = acquired.lease.record
    assert (record.incarnation, record.version, record.last, record.closed) == (2, "1", 6, "")
    assert record.token == "", "the next step names it"
    assert record.forgotten_ids
    kept = [(each.number, each.request_id, each.digest) for each in (record.kept or {}).values()]
    assert kept == [(1, "r1", b"digest-1"), (5, "r5", b""), (6, "r6", b"")]
    assert [record.has_id(f"r{number}") for number in range(1, 8)] == [True, False, False, True, True, True, False]
    assert msgpack.unpackb(store.find("s", 2, 6) or b"") == [200, "", [], b"six", None]
    assert store.commit([step(acquired.lease, "seven")]) == [True]
    again = take(store, "s").record
    assert (again.last, again.token) == (7, record.token)
    assert again.has_id("r6")
    assert again.has_id("seven")
    store.close()


def test_what_has_ended_or_expired_or_was_put_aside_stays_so(redis_server: RedisServer, earlier: Earlier) -> None:
    earlier.store("ended", closed=ENDED, state=None)
    earlier.store("expired", closed=IDLE, state=None)
    earlier.store("aside", idle_in=-1000, state=None, aside="1")
    earlier.put_aside("aside", b"state 6")
    earlier.store("held", held=True, owner="b/2/2")
    earlier.store("not begun", steps=0, state=None, q0=None, q1=None, q2=None, q3=None)
    earlier.client.rpush(f"ts:{{{earlier.model}/1}}:list", "no sequence")
    earlier.store("damaged", steps="many")
    store = open_store(redis_server.url, model=earlier.model)
    assert take(store, "ended").record.closed == ENDED
    assert take(store, "expired").record.closed == IDLE
    assert acquire(store, "aside", active_since={"aside": -1e9}).state == b"state 6"
    assert acquire(store, "held").refusal == HeldElsewhere()
    assert not take(store, "not begun").record.has_begun
    for name in (":ended", ":aside", "state:aside"):
        assert 0 < earlier.client.pttl(f"tsq:{{{earlier.model}}}{name}") <= 2 * HOUR + 24 * HOUR
    store.close()


def test_that_version_remains_which_has_used_the_sequence_last(redis_server: RedisServer, earlier: Earlier) -> None:
    earlier.store("s", version="1", idle_in=HOUR, state=b"older")
    earlier.store("s", version="2", idle_in=2 * HOUR, state=b"latest")
    earlier.store("s", version="3", idle_in=HOUR, state=b"older")
    store = open_store(redis_server.url, model=earlier.model, version="2")
    assert acquire(store, "s").state == b"latest"
    store.close()


def test_servers_of_the_earlier_release_do_not_begin_it_again(redis_server: RedisServer, earlier: Earlier) -> None:
    earlier.store("s")
    open_store(redis_server.url, model=earlier.model).close()
    place = earlier.client.hgetall(f"ts:{{{earlier.model}/1}}:s")
    assert place[b"owner"] == b"converted"
    assert int(place[b"until"]) > earlier.now + HOUR
    assert earlier.client.ttl(f"ts:{{{earlier.model}/1}}:s") > 0


def test_many_are_converted_by_several_processes_at_once(redis_server: RedisServer, earlier: Earlier) -> None:
    for number in range(150):
        earlier.store(f"s{number}")
    stores: list[Any] = []
    threads = [
        threading.Thread(target=lambda: stores.append(open_store(redis_server.url, model=earlier.model)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(store.peek(f"s{number}") is not None for store in stores for number in range(150))
    for store in stores:
        store.close()


def test_it_is_done_once(redis_server: RedisServer, earlier: Earlier) -> None:
    open_store(redis_server.url, model=earlier.model).close()
    earlier.store("late")
    store = open_store(redis_server.url, model=earlier.model)
    assert store.peek("late") is None
    do(store, "late", "one")
    assert take(store, "late").record.has_id("one")
    assert digest_of("one")
    store.close()


def test_a_model_whose_name_has_special_characters_gets_its_own_sequences(
    redis_server: RedisServer, earlier: Earlier
) -> None:
    name, other = f"{earlier.model}[a]*", f"{earlier.model}a"
    for model in (name, other):
        Earlier(earlier.client, model).store("s", state=model.encode())
    store = open_store(redis_server.url, model=name)
    assert acquire(store, "s").state == name.encode()
    assert earlier.client.hget(f"ts:{{{other}/1}}:s", "owner") == b"a/1/1"
    store.close()
