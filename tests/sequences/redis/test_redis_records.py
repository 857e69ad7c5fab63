"""The Redis store: what it keeps of sequences, who may run them, and for how long it is remembered."""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.redis_server import DEADLINE, RedisServer
from tests.sequences.redis.redis_store_steps import acquire, do, open_store, step, take

from ts.protocol.boot_clock import boot_time
from ts.protocol.messages import ENDED
from ts.sequences.redis.redis_store import RedisStore
from ts.sequences.steps.record import digest_of
from ts.sequences.steps.server_identity import server_identity
from ts.sequences.steps.stores.store import IDLE, HeldElsewhere, OtherVersion, TooLarge, Unreadable

redis = pytest.importorskip("redis")
Open = Callable[..., RedisStore]


@pytest.fixture
def model() -> str:
    return uuid.uuid4().hex


@pytest.fixture
def opened(redis_server: RedisServer, model: str) -> Iterator[Open]:
    """Opens stores of a model of this test's own."""
    stores: list[RedisStore] = []

    def make(**changes: Any) -> RedisStore:
        stores.append(open_store(redis_server.url, **{"model": model, **changes}))
        return stores[-1]

    yield make
    for store in stores:
        store.close()


@pytest.fixture
def operator(redis_server: RedisServer) -> Iterator[Any]:
    with redis.Redis.from_url(redis_server.url) as client:
        yield client


def test_another_server_continues_what_was_released(opened: Open) -> None:
    mine, other = opened(), opened(owner="b/2/2")
    lease = do(mine, "s", "one", "two", "three", "four")
    assert acquire(other, "s")[:3] == (None, None, HeldElsewhere())
    mine.release([(lease, boot_time() + 60)])
    acquired = acquire(other, "s")
    assert acquired.lease is not None
    assert (acquired.state, acquired.refusal) == (b"state four", None)
    record = acquired.lease.record
    assert (record.incarnation, record.token, record.version, record.last, record.closed) == (1, "t", "1", 4, "")
    assert [(each.number, each.request_id, each.digest) for each in (record.kept or {}).values()] == [
        (1, "one", b"digest-o"),
        (3, "three", b"digest-t"),
        (4, "four", b"digest-f"),
    ]
    assert [record.has_id(each) for each in ("one", "two", "three", "four", "five")] == [True] * 4 + [False]
    assert mine.commit([step(lease, "late")]) == [False]
    assert mine.renew([lease]) == [False]


def test_kept_answers_are_found_without_a_lease(opened: Open) -> None:
    do(opened(), "s", "one", "two", "three", "four")
    reader = opened(owner="b/2/2")
    assert [reader.find("s", 1, number) for number in range(1, 6)] == [
        b"answer one",
        None,
        b"answer three",
        b"answer four",
        None,
    ]
    assert reader.find("s", 2, 4) is None
    assert reader.find("unknown", 1, 1) is None
    record = reader.peek("s")
    assert record is not None
    assert record.last == 4
    assert reader.peek("unknown") is None


def test_a_stream_that_ends_late_leaves_the_answers_of_later_steps(opened: Open) -> None:
    store = opened()
    lease = do(store, "s", "one")
    stream = step(lease, "two")
    (kept,) = stream.kept
    assert store.commit([stream]) == [True]
    for text in ("three", "four"):
        assert store.commit([step(lease, text)]) == [True]
    late = stream._replace(state=b"state two", new_ids=b"", kept=[kept._replace(answer=b"whole")])
    assert store.commit([late]) == [True]
    acquired = acquire(store, "s")
    assert acquired.state == b"state two"
    assert acquired.lease is not None
    record = acquired.lease.record
    assert (record.last, list(record.kept or {})) == (4, [1, 3, 4])
    assert [record.has_id(each) for each in ("one", "two", "three", "four")] == [True] * 4
    assert [store.find("s", 1, number) for number in (2, 3, 4)] == [None, b"answer three", b"answer four"]


def test_the_next_incarnation_remembers_the_token_and_nothing_else_of_the_last(opened: Open) -> None:
    store = opened()
    do(store, "s", "one", "two", closed=ENDED)
    lease = do(store, "s", "three", token="u")
    assert (lease.record.incarnation, lease.record.last) == (3, 1)
    record = take(store, "s").record
    assert (record.token, record.last, list(record.kept or {})) == ("u", 1, [1])
    assert record.is_earlier("t")
    assert not record.is_earlier("u")
    assert not record.has_id("one")
    assert record.has_id("three")


def test_ids_are_recognized_however_many_there_are(opened: Open, operator: Any, model: str) -> None:
    store = opened(most_ids=40)
    lease = take(store, "s")
    for number in range(200):
        assert store.commit([step(lease, f"r{number}")]) == [True]
        assert lease.record.forget_ids_beyond(40) == (number >= 40)
    assert operator.strlen(f"tsq:{{{model}}}ids:s") <= 2 * 40 * 8
    for record in (take(store, "s").record, store.peek("s")):
        assert record is not None
        known = [number for number in range(200) if record.has_id(f"r{number}")]
        assert known == list(range(160, 200))
        assert record.forgotten_ids
    few = opened(most_ids=10, owner="b/2/2").peek("s")
    assert few is not None
    assert few.has_id("r199")


def test_an_id_is_recognized_by_a_holder_that_keeps_fewer_answers(opened: Open) -> None:
    many, few = opened(kept=9), opened(kept=2)
    do(many, "s", *"abcdefgh", kept=9)
    lease = take(few, "s")
    assert lease.record.ids is not None
    assert bytes(lease.record.ids) == b"".join(map(digest_of, "abcdefgh"))
    assert list(lease.record.kept or {}) == [1, 7, 8]
    assert few.find("s", 1, 8) == b"answer h"
    assert few.commit([step(lease, "i")]) == [True]
    assert [take(many, "s").record.has_id(each) for each in "abcdefghij"] == [True] * 9 + [False]


def test_a_commit_that_is_repeated_adds_its_ids_once(opened: Open, operator: Any, model: str) -> None:
    store = opened()
    lease = do(store, "s", *(f"r{number}" for number in range(15)))
    write, replies = store._commit, iter([redis.ConnectionError("the reply was lost"), None])

    def unsteady(*arguments: object) -> object:
        result, lost = write(*arguments), next(replies)
        if lost is not None:
            raise lost
        return result

    store._commit = unsteady
    assert store.commit([step(lease, "r15")]) == [True]
    assert operator.strlen(f"tsq:{{{model}}}ids:s") == 16 * 8


def test_ids_need_not_be_valid_text(opened: Open) -> None:
    store, other = opened(), opened(owner="b/2/2")
    do(store, "s\udc80", "one", "\udcff")
    assert store.find("s\udc80", 1, 2) is not None
    assert acquire(other, "s\udc80").refusal == HeldElsewhere()
    record = take(store, "s\udc80").record
    assert [each.request_id for each in (record.kept or {}).values()] == ["one", "\udcff"]


# Versions


def test_an_open_sequence_stays_with_its_version(opened: Open) -> None:
    first, second = opened(), opened(version="2")
    lease = do(first, "s", "one")
    watch = first.watch()
    assert not watch.wait()
    assert acquire(second, "s")[:3] == (None, None, OtherVersion("1", is_served=True))
    watch.close()
    assert acquire(second, "s")[:3] == (None, None, OtherVersion("1", is_served=True))  # it may only be restarted
    assert first.commit([step(lease, "two")]) == [True]
    first.end([lease])
    assert take(second, "s").record.closed == ENDED


def test_a_sequence_of_a_version_that_nobody_serves_can_only_be_begun_again(opened: Open) -> None:
    first, second = opened(), opened(version="2")
    lease = do(first, "s", "one")
    acquired = acquire(second, "s")
    assert (acquired.state, acquired.refusal) == (None, OtherVersion("1", is_served=False))
    assert acquired.lease is not None
    assert acquired.lease.record.last == 1
    assert first.commit([step(lease, "two")]) == [False]
    acquired.lease.record.begin("u", "2", "")
    assert second.commit([step(acquired.lease, "new", version="2")]) == [True]
    assert take(second, "s").record.version == "2"


def test_versions_that_read_each_others_states_continue_each_others_sequences(opened: Open) -> None:
    first, second = opened(state_version="a"), opened(version="2", state_version="a")
    do(first, "s", "one", states="a")
    assert acquire(second, "s").state == b"state one"
    assert acquire(opened(version="3", state_version="b"), "s").refusal == OtherVersion("1", is_served=False)
    watch = second.watch()
    watch.wait()
    assert acquire(opened(version="3", state_version="b"), "s").refusal == OtherVersion("1", is_served=True)
    watch.close()


# Leases


def test_the_lease_of_a_server_that_is_gone_is_taken_at_once(opened: Open) -> None:
    place = server_identity().rpartition("/")[0].rpartition("/")[0]
    gone, other = opened(owner=f"{place}/1/0"), opened(owner="b/2/2")
    for sequence_id in ("s", "t"):
        do(gone, sequence_id, "one")
    do(opened(owner="c/3/3"), "u", "one")
    acquired = other.acquire(["s", "u", "t", "v"])
    assert [each.state for each in acquired] == [b"state one", None, b"state one", None]
    assert [each.refusal for each in acquired] == [None, HeldElsewhere(), None, None]


def test_a_lease_that_nobody_renews_runs_out(opened: Open) -> None:
    mine, other = opened(lease=0.3), opened(owner="b/2/2")
    do(mine, "s", "one")
    end = time.monotonic() + DEADLINE
    while acquire(other, "s").lease is None:
        assert time.monotonic() < end


def test_a_sequence_that_has_not_begun_leaves_nothing(opened: Open, operator: Any, model: str) -> None:
    store = opened()
    store.release([(take(store, "s"), boot_time())])
    store.end([take(store, "t")])
    assert operator.keys(f"tsq:{{{model}}}*") == [f"tsq:{{{model}}}converted".encode()]
    assert store.peek("s") is None


# Idle time and the end


def test_a_sequence_that_was_idle_for_too_long_has_expired_for_everybody(opened: Open) -> None:
    mine, other = opened(), opened(owner="b/2/2", version="2")
    mine.release([(do(mine, "s", "one"), boot_time() - 1)])
    lease = take(other, "s")
    assert lease.record.closed == IDLE
    assert lease.record.last == 1
    assert mine.find("s", 1, 1) == b"answer one"


def test_a_step_that_was_queued_in_time_continues(opened: Open) -> None:
    mine, other = opened(), opened(owner="b/2/2")
    mine.release([(do(mine, "s", "one"), boot_time() - 1)])
    for since in (boot_time() - 5, -math.inf):
        acquired = acquire(other, "s", active_since={"s": since})
        assert acquired.state == b"state one"
        assert acquired.lease is not None
        assert other.commit(
            [
                step(acquired.lease, "two"),
            ]
        ) == [True]
        return


def test_a_sequence_that_was_not_released_has_not_been_idle(opened: Open) -> None:
    mine, other = opened(lease=0.2, lifetime=0.1), opened(owner="b/2/2")
    do(mine, "s", "one")
    time.sleep(0.3)
    assert acquire(other, "s").state == b"state one"


def test_what_is_over_is_remembered_and_has_no_state(opened: Open, operator: Any, model: str) -> None:
    store = opened(remembered=1000.0)
    do(store, "s", *(f"r{number}" for number in range(20)))
    store.end([take(store, "s")])
    lease = take(store, "t")
    assert store.commit([step(lease, f"r{number}") for number in range(1)]) == [True]
    assert store.commit([step(lease, "last", closed=ENDED)]) == [True]
    keys = {
        name: operator.pttl(f"tsq:{{{model}}}{name}") / 1000 for name in (":s", "ids:s", ":t", "state:s", "state:t")
    }
    assert all(999 < keys[name] <= 1000 for name in (":s", "ids:s", ":t"))
    assert keys["state:s"] == keys["state:t"] == -0.002
    assert acquire(store, "t").state is None
    assert take(store, "t").record.closed == ENDED


def test_every_key_of_a_sequence_expires(opened: Open, operator: Any, model: str) -> None:
    store = opened()
    lease = do(store, "s", *(f"r{number}" for number in range(20)))
    nothing = step(lease, "none")._replace(state=None)
    assert store.commit([nothing]) == [True]
    assert store.commit([step(lease, "again")]) == [True]
    lifetimes = {name: operator.ttl(f"tsq:{{{model}}}{name}") for name in (":s", "ids:s", "state:s")}
    assert 60 + 3600 < lifetimes["state:s"] < lifetimes[":s"] - 80_000
    assert lifetimes["ids:s"] >= lifetimes[":s"] - 1
    store.release([(lease, boot_time() + 60)])
    assert operator.ttl(f"tsq:{{{model}}}state:s") <= 360


def test_an_abandoned_state_is_dropped_and_its_sequence_has_expired(opened: Open, operator: Any, model: str) -> None:
    store = opened(lifetime=0.1, lease=0.2)
    do(store, "s", "one")
    time.sleep(0.3)
    operator.delete(f"tsq:{{{model}}}state:s")  # as its expiry does
    other = opened(owner="b/2/2", lifetime=0.1)
    assert take(other, "s").record.closed == IDLE


# Failed commits


def test_settling_tells_what_was_written(opened: Open) -> None:
    store = opened()
    written, lost = step(take(store, "s"), "one"), step(take(store, "t"), "one")
    elsewhere = step(take(store, "u"), "one")
    assert store.commit([written, elsewhere]) == [True, True]
    other = opened(owner="b/2/2")
    store.release([(elsewhere.lease, boot_time() + 60)])
    take(other, "u")
    assert store.settle([written, lost, elsewhere]) == [True, False, None]
    assert store.commit([lost]) == [False]


def test_settling_does_not_take_the_step_of_another_server_for_its_own(opened: Open) -> None:
    store, other = opened(), opened(owner="b/2/2")
    lost = step(take(store, "s"), "one")
    store.release([(lost.lease, boot_time() + 60)])
    lease = take(other, "s")
    same = step(lease, "one")
    (kept,) = same.kept
    assert other.commit([same._replace(kept=[kept._replace(answer=b"another answer")])]) == [True]
    other.release([(lease, boot_time() + 60)])
    assert store.settle([lost]) == [None]


def test_a_state_that_redis_does_not_take_is_refused_for_good(redis_server: RedisServer, opened: Open) -> None:
    with redis.Redis.from_url(redis_server.url) as operator:
        operator.config_set("proto-max-bulk-len", 2**20)
        try:
            store = opened()
            commit = step(take(store, "s"), "one")._replace(state=bytes(2**20))
            with pytest.raises(TooLarge, match=r"has 1,\d+,\d+ bytes .* no value of more than 1,048,576 bytes"):
                store.commit([commit])
        finally:
            operator.config_set("proto-max-bulk-len", 512 * 2**20)
    assert acquire(store, "s").state is None


def test_large_states_are_written_in_portions(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ts.sequences.redis.redis_store._PORTION", 10_000)
    store = opened()
    ids = [f"s{number}" for number in range(9)]
    states = [bytes([number]) * (number * 3000) for number in range(9)]
    commits = [
        step(each.lease, "one")._replace(state=state)
        for each, state in zip(store.acquire(ids), states, strict=True)
        if each.lease is not None
    ]
    assert store.commit(commits) == [True] * 9
    assert [each.state for each in store.acquire(ids)] == states


def test_a_state_whose_key_is_damaged_costs_only_the_state(opened: Open, operator: Any, model: str) -> None:
    store = opened()
    do(store, "s", "one")
    operator.set(f"tsq:{{{model}}}state:s", b"other")
    acquired = acquire(store, "s")
    assert acquired.state is None
    assert acquired.refusal == Unreadable("the checksum of its state is wrong")
    assert acquired.lease is not None
    acquired.lease.record.begin("u", "1", "")
    assert store.commit([step(acquired.lease, "new")]) == [True]
    assert acquire(store, "s").state == b"state new"


def test_a_commit_that_redis_runs_long_after_those_that_followed_it_changes_nothing(redis_server: RedisServer) -> None:
    """Its sender has given up waiting and sent it again; the first attempt was on its way all the time."""
    store: Any = open_store(redis_server.url, model="late")
    script, sent = store._commit, []

    def record(keys: Any, args: Any, **options: Any) -> Any:
        sent.append((keys, args))
        return script(keys, args, **options)

    store._commit = record
    lease = take(store, "s")
    for text in ("one", "two", "three"):
        assert store.commit([step(lease, text)]) == [True]
    assert script(*sent[0]) == [0]
    assert script(*sent[2]) == [1], "the latest one, once more"
    acquired = acquire(store, "s")
    assert acquired.lease is not None
    assert (acquired.state, acquired.lease.record.last) == (b"state three", 3)
    assert acquired.lease.record.has_id("three")
