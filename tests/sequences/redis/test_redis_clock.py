"""The clock of Redis's machine is set, or another Redis with another clock becomes the primary."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from tests.redis_server import RedisServer
from tests.sequences.redis.redis_store_steps import acquire, do, open_store, step

from ts.protocol.boot_clock import boot_time
from ts.sequences.redis import redis_clock
from ts.sequences.redis.redis_clock import RedisClock
from ts.sequences.steps.stores.store import HeldElsewhere

redis = pytest.importorskip("redis")
DAY = 86_400.0


@pytest.fixture
def set_boot_time(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    def set_to(moment: float) -> None:
        monkeypatch.setattr(redis_clock, "boot_time", lambda: moment)

    return set_to


def test_the_offset_is_known_the_better_the_faster_redis_answers(set_boot_time: Callable[[float], None]) -> None:
    clock = RedisClock(10.0)
    set_boot_time(103.0)
    clock.heard(1_000.0, asked_at=100.0)  # the offset is between 897 and 900
    assert clock.shown_at(103.0) == 1_000.0
    set_boot_time(110.5)
    clock.heard(1_009.5, asked_at=110.0)  # between 899 and 899.5
    assert clock.shown_at(110.0) == 1_009.0
    set_boot_time(125.0)
    clock.heard(1_020.0, asked_at=120.0)  # between 895 and 900: nothing new
    assert clock.shown_at(125.0) == 1_024.0


def test_a_clock_that_is_set_back_is_believed_at_once(set_boot_time: Callable[[float], None]) -> None:
    clock = RedisClock(10.0)
    set_boot_time(100.0)
    clock.heard(DAY, asked_at=100.0)
    set_boot_time(101.0)
    clock.heard(DAY / 2, asked_at=101.0)
    assert clock.shown_at(102.0) == DAY / 2 + 1


def test_a_clock_that_is_set_forward_is_believed_after_a_lease(set_boot_time: Callable[[float], None]) -> None:
    clock = RedisClock(10.0)
    set_boot_time(100.0)
    clock.heard(DAY, asked_at=100.0)
    for moment, shown in ((101.0, DAY + 1), (110.9, DAY + 10.9), (111.0, 2 * DAY + 11)):
        set_boot_time(moment)
        clock.heard(2 * DAY + moment - 100, asked_at=moment)
        assert clock.shown_at(moment) == pytest.approx(shown)


def test_a_jump_that_is_taken_back_was_none(set_boot_time: Callable[[float], None]) -> None:
    clock = RedisClock(10.0)
    for moment, shown in ((100.0, DAY), (101.0, 2 * DAY), (102.0, DAY + 2), (108.0, 2 * DAY), (112.0, 2 * DAY + 4)):
        set_boot_time(moment)
        clock.heard(shown, asked_at=moment)
    assert clock.shown_at(112.0) == DAY + 12


def shift(operator: Any, model: str, seconds: float) -> None:
    """Shift what the store has written, as if Redis's clock had been set by as much in the other direction."""
    key = f"tsq:{{{model}}}:s"
    for name in ("until", "expires"):
        if int(operator.hget(key, name)):
            operator.hincrby(key, name, round(seconds * 1000))


def test_a_clock_that_was_set_back_prolongs_no_lease(redis_server: RedisServer) -> None:
    model = uuid.uuid4().hex
    mine = open_store(redis_server.url, model=model)
    other = open_store(redis_server.url, model=model, owner="b/2/2")
    do(mine, "s", "one")
    with redis.Redis.from_url(redis_server.url) as operator:
        shift(operator, model, DAY)
        assert acquire(other, "s").refusal == HeldElsewhere()
        left = int(operator.hget(f"tsq:{{{model}}}:s", "until")) / 1000 - operator.time()[0]
        assert left <= 11
    for store in (mine, other):
        store.close()


def test_a_clock_that_was_set_forward_ends_no_lease_and_expires_no_sequence(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = uuid.uuid4().hex
    mine, same = (open_store(redis_server.url, model=model) for _ in range(2))
    other = open_store(redis_server.url, model=model, owner="b/2/2")
    lease = do(mine, "s", "one")
    with redis.Redis.from_url(redis_server.url) as operator:
        # For these servers Redis's clock showed an hour less before: it has been set forward since.
        for store in (mine, same, other):
            for clock in (store._clock, store._idle_clock):
                monkeypatch.setattr(clock, "_low", clock._low - 3600)
                monkeypatch.setattr(clock, "_high", clock._high - 3600)
        shift(operator, model, -3600)
        assert acquire(other, "s").refusal == HeldElsewhere()
        acquired = acquire(same, "s")  # by its own server, which knows that it has just been used
        assert acquired.state == b"state one"
        same.release([(acquired.lease, boot_time() + 30)])
        shift(operator, model, -3600)
        assert acquire(other, "s").state == b"state one"
    assert mine.commit([step(lease, "late")]) == [False]
    for store in (mine, same, other):
        store.close()


def test_what_a_worker_knew_of_the_clock_does_not_die_with_it(redis_server: RedisServer) -> None:
    """Redis's clock is set half an hour forward, and then the worker is killed: another one continues the sequence."""
    model = uuid.uuid4().hex
    killed = open_store(redis_server.url, model=model, lease=1.0)
    watch = killed.watch()
    watch.wait()
    do(killed, "s", "one")
    with redis.Redis.from_url(redis_server.url) as operator:
        shift(operator, model, -1800)
        clocks = f"tsq:{{{model}}}clocks"
        for machine, offsets in operator.hgetall(clocks).items():
            operator.hset(clocks, machine, " ".join(str(float(each) - 1800) for each in offsets.split()))
    again = open_store(redis_server.url, model=model, lease=1.0)
    assert acquire(again, "s", active_since={"s": boot_time()}).state == b"state one"
    for each in (watch, killed, again):
        each.close()
