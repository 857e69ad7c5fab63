"""Idle time across servers: what one of them has queued keeps a sequence from expiring at another."""

import math
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.sequences.steps.stepping import AT_ONCE, TOTAL, Make, admit, answered, close, step
from tests.unit.ts.frontend_stub import Worker

from ts.protocol.boot_clock import boot_time
from ts.protocol.messages import EndedSequence
from ts.sequences.redis.redis_keys import STATE
from ts.sequences.sqlite import file_sweep
from ts.sequences.steps.stores.store import StoreError

EXPIRED = (410, "sequence_expired")
ELSEWHERE = "another machine/1/1"


def expired_while_queued(durable_worker: Make, reason: str = "idle") -> tuple[Worker, Worker, float]:
    """Two servers' workers, the first of which has let sequences expire, and a moment before that."""
    holder, other = durable_worker(TOTAL), durable_worker(TOTAL, owner=ELSEWHERE)
    assert answered(holder, step("j1", "s", "5", request_id="1"), step("j2", "t", "1")) == ["5", "1"]
    close(holder, s=reason, t=reason)
    assert answered(holder, step("j3", "u", "1")) == ["1"]  # what had to be told is told before that
    return holder, other, boot_time() - 60


@pytest.mark.parametrize("reason", ["idle", "timeout"])
def test_a_step_that_was_queued_elsewhere_before_goes_on(durable_worker: Make, reason: str) -> None:
    holder, other, queued_at = expired_while_queued(durable_worker, reason)
    assert admit(other, step("j4", "s", "2", request_id="2"), queued_at) == "7"
    assert answered(other, step("j5", "s", "2", request_id="2"), step("j6", "s", "9")) == ["7", "16"]
    other.runtime.close()
    assert answered(holder, step("j7", "s", "5", request_id="1")) == ["5"]


def test_a_repeated_step_that_was_queued_elsewhere_before_leaves_the_sequence_open(durable_worker: Make) -> None:
    _, other, queued_at = expired_while_queued(durable_worker)
    assert admit(other, step("j4", "s", "5", request_id="1"), queued_at) == "5"
    assert answered(other, step("j5", "s", "2", request_id="2")) == ["7"]


def test_a_step_that_came_later_is_told_that_the_sequence_has_expired(durable_worker: Make) -> None:
    _, other, _ = expired_while_queued(durable_worker)
    assert admit(other, step("j4", "s", "2"), math.inf) == EXPIRED
    assert answered(other, step("j5", "s", "2", start=True)) == ["2"]


def test_what_somebody_was_told_to_have_expired_has_expired_for_everybody(durable_worker: Make) -> None:
    holder, other, queued_at = expired_while_queued(durable_worker)
    assert answered(holder, step("j4", "s", "2")) == [EXPIRED]
    holder.service.steps.update_store()  # type: ignore[union-attr]
    assert admit(other, step("j5", "s", "2"), queued_at) == EXPIRED


def test_a_sequence_expires_when_the_scheduler_closes_it_however_late_the_worker_hears_of_that(
    durable_worker: Make,
) -> None:
    worker = durable_worker(TOTAL)
    assert answered(worker, step("j1", "s", "5")) == ["5"]
    now = boot_time()
    worker.runtime.end_sequences([EndedSequence("s", "idle", now - 60)])
    assert admit(worker, step("j2", "s", "2"), now - 30) == EXPIRED


def test_a_server_that_takes_a_sequence_over_begins_its_idle_time_anew(durable_worker: Make) -> None:
    lost = durable_worker(TOTAL, lifetime=AT_ONCE, lease=0.0)
    assert answered(lost, step("j1", "s", "5")) == ["5"]
    dying = durable_worker(TOTAL, owner=ELSEWHERE)
    assert answered(dying, step("j2", "s", "boom")) == [(503, "")]
    successor = durable_worker(TOTAL, owner=ELSEWHERE)
    assert admit(successor, step("j2", "s", "1"), boot_time()) == "6"


@pytest.mark.parametrize("is_copied", [False, True])
def test_after_a_failed_step_the_idle_time_runs_and_even_a_refused_copy_makes_final_that_it_is_over(
    durable_worker: Make, is_copied: bool
) -> None:
    holder = durable_worker(TOTAL, lifetime=AT_ONCE)
    queued_at = boot_time() - 60
    assert answered(holder, step("j1", "s", "5", number=1, token="t")) == ["5"]
    assert answered(holder, step("j2", "s", "boom", number=2, token="t")) == [(503, "")]
    while holder.runtime.is_busy:
        holder.runtime.step()
    if is_copied:
        other = durable_worker(TOTAL, owner=ELSEWHERE)
        assert answered(other, step("j3", "s", "6", number=1, token="t")) == [(409, "step_differs")]
    successor = durable_worker(TOTAL)
    assert admit(successor, step("j4", "s", "1", number=2, token="t"), queued_at) == (EXPIRED if is_copied else "6")


@pytest.mark.parametrize("start", [False, True])
def test_a_sequence_of_which_no_step_counts_never_expires(durable_worker: Make, start: bool) -> None:
    worker = durable_worker(TOTAL, lifetime=AT_ONCE)
    assert answered(worker, step("j1", "s", "boom", start=start)) == [(503, "")]
    close(worker, s="idle")
    assert answered(worker, step("j2", "t", "1")) == ["1"]  # the store hears of what has left before that
    assert admit(worker, step("j3", "s", "4"), boot_time()) == "4"
    assert admit(worker, step("j4", "s", "2"), -math.inf) == "6"


def test_a_state_is_kept_for_steps_that_wait_elsewhere_for_a_while_only(
    durable_worker: Make, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    holder, other, queued_at = expired_while_queued(durable_worker)
    store: Any = holder.service.steps._store  # type: ignore[union-attr]
    if kind == "file":
        monkeypatch.setattr(file_sweep, "REVIVABLE_SECONDS", 0.0)
        monkeypatch.setattr(file_sweep, "_INTERVAL", 0.0)
        store._execute("UPDATE clock SET sweep_at = 0")
        store.sweep()
        with sqlite3.connect(tmp_path / "sequences.db") as database:
            ((state,),) = database.execute("SELECT state FROM sequences WHERE CAST(id AS TEXT) = 's'").fetchall()
        assert state is None
    else:
        state_key = store._keys.of("s", STATE)
        assert 0 < store._client.pttl(state_key) <= 300_000
        store._client.delete(state_key)
    assert admit(other, step("j4", "s", "2"), queued_at) == EXPIRED


@pytest.mark.parametrize("kind", ["file"])
def test_to_wait_for_a_locked_file_is_no_idle_time(durable_worker: Make, tmp_path: Path, kind: str) -> None:
    holder, other = durable_worker(TOTAL), durable_worker(TOTAL, owner=ELSEWHERE)
    assert answered(holder, step("j1", "s", "5")) == ["5"]
    queued_at = boot_time()
    holder.runtime.end_sequences([EndedSequence("s", "idle", queued_at + 0.5)])
    locking = sqlite3.connect(tmp_path / "sequences.db", isolation_level=None, check_same_thread=False)
    locking.execute("BEGIN IMMEDIATE")
    threading.Timer(0.7, locking.execute, ["COMMIT"]).start()
    assert admit(other, step("j2", "s", "1"), queued_at) == "6"


@pytest.mark.parametrize("kind", ["redis"])
def test_to_wait_for_redis_is_no_idle_time(durable_worker: Make, kind: str) -> None:
    redis = pytest.importorskip("redis")
    holder, other = durable_worker(TOTAL), durable_worker(TOTAL, owner=ELSEWHERE)
    assert answered(holder, step("j1", "s", "5")) == ["5"]
    queued_at = boot_time()
    holder.runtime.end_sequences([EndedSequence("s", "idle", queued_at + 0.5)])
    store: Any = other.service.steps._store  # type: ignore[union-attr]
    acquire, lost = store._acquire, iter([True])

    def unsteady(*arguments: Any) -> Any:
        if next(lost, False):
            time.sleep(0.7)
            raise redis.ConnectionError("the connection is gone")
        return acquire(*arguments)

    store._acquire = unsteady
    assert admit(other, step("j2", "s", "1"), queued_at) == "6"


def test_what_the_server_knows_to_be_active_does_not_expire(durable_worker: Make) -> None:
    before = boot_time() + 2 * AT_ONCE
    answered(durable_worker(TOTAL, lifetime=AT_ONCE), step("j1", "s", "5"), step("j2", "t", "5"))
    other = durable_worker(TOTAL, lifetime=AT_ONCE)
    assert admit(other, step("j3", "s", "1"), before) == "6"
    assert admit(other, step("j4", "t", "1"), boot_time()) == (410, "sequence_expired")


def test_what_a_server_had_that_did_not_let_go_of_it_does_not_expire(durable_worker: Make) -> None:
    lost = durable_worker(TOTAL, lifetime=AT_ONCE, lease=0.0)
    answered(lost, step("j1", "s", "5"))
    elsewhere = durable_worker(TOTAL, lifetime=AT_ONCE, owner=ELSEWHERE)
    assert answered(elsewhere, step("j2", "s", "1")) == ["6"]


def test_what_a_server_has_let_go_of_expires(durable_worker: Make) -> None:
    drained = durable_worker(TOTAL, lifetime=AT_ONCE)
    answered(drained, step("j1", "s", "5"))
    drained.runtime.close()
    elsewhere = durable_worker(TOTAL, lifetime=AT_ONCE, owner=ELSEWHERE)
    assert answered(elsewhere, step("j2", "s", "1")) == [(410, "sequence_expired")]
    assert answered(elsewhere, step("j3", "s", "1")) == [(410, "sequence_expired")]


def test_a_state_that_made_room_does_not_expire_before_the_scheduler_says_so(durable_worker: Make) -> None:
    worker = durable_worker(TOTAL, capacity=1, lifetime=AT_ONCE)
    assert answered(worker, step("j1", "s", "5")) == ["5"]
    assert answered(worker, step("j2", "t", "5")) == ["5"]
    assert answered(worker, step("j3", "s", "1")) == ["6"]
    close(worker, s="idle")
    assert answered(worker, step("j4", "s", "1")) == [(410, "sequence_expired")]


def test_a_sweep_leaves_alone_what_may_only_be_slow(durable_worker: Make) -> None:
    frozen = durable_worker(TOTAL, lifetime=AT_ONCE, lease=0.0)
    answered(frozen, step("j1", "s", "5"))
    elsewhere = durable_worker(TOTAL, owner=ELSEWHERE, lease=0.0)
    answered(elsewhere, step("j2", "t", "5"))
    elsewhere.service.steps._store.sweep()  # type: ignore[union-attr]
    assert answered(frozen, step("j3", "s", "1")) == ["6"]


def test_what_was_asked_for_while_the_store_failed_is_active(
    durable_worker: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = boot_time() + 2 * AT_ONCE
    answered(durable_worker(TOTAL, lifetime=AT_ONCE), step("j1", "s", "5"))
    other = durable_worker(TOTAL, lifetime=AT_ONCE)
    with monkeypatch.context() as failing:
        failing.setattr(other.service.steps._store, "acquire", fail)  # type: ignore[union-attr]
        assert admit(other, step("j2", "s", "1"), before) == (503, "sequence_store")
    assert answered(other, step("j3", "s", "1")) == ["6"]


def fail(*_: Any) -> Any:
    raise StoreError("the store is down")


@pytest.mark.parametrize("kind", ["redis"])
def test_what_redis_executes_late_ends_no_sequence(durable_worker: Make, kind: str) -> None:
    holder, other = durable_worker(TOTAL), durable_worker(TOTAL, owner=ELSEWHERE)
    assert answered(holder, step("j1", "s", "5")) == ["5"]
    queued_at = boot_time()
    holder.runtime.end_sequences([EndedSequence("s", "idle", queued_at + 0.3)])
    store: Any = other.service.steps._store  # type: ignore[union-attr]
    acquire = store._acquire

    def as_if_redis_had_been_frozen(keys: Any, arguments: Any, **more: Any) -> Any:
        time.sleep(0.6)
        acquire(keys, arguments, **more)  # from a sender that has given up waiting
        return acquire(keys, arguments, **more)

    store._acquire = as_if_redis_had_been_frozen
    assert admit(other, step("j2", "s", "1"), queued_at) == "6"
