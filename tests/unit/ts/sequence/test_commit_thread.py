"""When commits are left to a thread: only where that pays, and never so that an error or an answer is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.ts.frontend_stub import DEADLINE_SECONDS, FrontendStub, Worker
from tests.unit.ts.sequence.stepping import TOTAL, Make, close, step

from ts.frontend_connection import FrontendGone
from ts.sequence.commit_thread import CommitOverlap, CommitThread
from ts.sequence.stores.store import StoreError

LONG, SHORT = 5e-3, 1e-4


def noted(overlap: CommitOverlap, steps: int, step: float, commit: float) -> bool:
    for _ in range(steps):
        overlap.note(step, commit)
    return overlap.pays


def test_a_thread_pays_for_long_commits_of_long_steps() -> None:
    assert noted(CommitOverlap(), 100, LONG, 1e-3)
    assert not noted(CommitOverlap(), 100, LONG, 1e-5), "there is nothing to be gained"
    assert not noted(CommitOverlap(), 100, SHORT, 1e-3), "the step is over before the thread has begun"
    assert not noted(CommitOverlap(), 3, LONG, 1e-3), "three steps tell nothing"


def test_a_thread_that_turns_out_not_to_pay_is_tried_again_later_each_time() -> None:
    overlap = CommitOverlap()
    waits = []
    for _ in range(3):
        steps = 0
        while not overlap.pays:
            overlap.note(LONG, 1e-3)
            steps += 1
        waits.append(steps)
        assert noted(overlap, 2, LONG, 3e-3), "two steps tell nothing"
        while overlap.pays:
            overlap.note(LONG, 3e-3)  # the handler lets no other thread run
    assert waits[0] < waits[1] < waits[2]
    while not overlap.pays:
        overlap.note(LONG, 1e-3)
    assert noted(overlap, 10_000, LONG, 1.5e-3), "it goes on to pay"
    assert not noted(overlap, 10_000, SHORT, 1.5e-3), "now the steps are short"


def test_an_error_in_the_thread_is_raised_by_every_wait() -> None:
    thread = CommitThread()

    def fail() -> None:
        raise TypeError("a defect")

    thread.start(fail)
    for _ in range(2):
        with pytest.raises(TypeError, match="a defect"):
            thread.wait()


@pytest.fixture
def held(durable_worker: Make, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Worker, threading.Event]]:
    """Make a worker that leaves commits to its thread, which waits for the event; two steps were run before."""

    def make(source: str = TOTAL) -> tuple[Worker, threading.Event]:
        worker, go = durable_worker(source), threading.Event()
        steps: Any = worker.service.steps
        assert [row[5] for row in worker.infer(step("j1", "s", "5"), step("k1", "t", "7"))] == [b"5", b"7"]
        commit = steps._store.commit

        def waits(commits: Any) -> Any:
            assert threading.current_thread() is threading.main_thread() or go.wait(DEADLINE_SECONDS)
            return commit(commits)

        steps._store.commit = waits
        steps._overlap.pays = True
        return worker, go

    return make


def admit(worker: Worker, *rows: Any) -> None:
    for row in rows:
        worker.runtime.admit([row])


def commit_fails(worker: Worker) -> None:
    """Have the commits of the worker's thread fail, certainly without effect."""
    steps: Any = worker.service.steps
    commit = steps._store.commit

    def fail(commits: Any) -> Any:
        commit([])
        raise StoreError("there is no room")

    steps._store.commit = fail


def test_the_next_batch_runs_while_a_commit_is_under_way(held: Any) -> None:
    worker, go = held()
    admit(worker, step("j2", "s", "1"), step("k2", "t", "1"))
    worker.runtime.step()
    calls: list[int] = worker.module.calls
    before = len(calls)
    threading.Timer(0.2, go.set).start()
    assert worker.peer.result_rows() == []
    worker.runtime.step()  # waits for the first commit after its handler has run
    assert len(calls) == before + 1
    assert go.is_set()
    assert [row[5] for row in worker.peer.result_rows()] == [b"6", b"8"]


def test_a_commit_is_left_to_the_thread_only_if_another_message_waits(held: Any) -> None:
    worker, _ = held()
    assert [row[5] for row in worker.infer(step("j2", "s", "1"))] == [b"6"]
    assert not worker.runtime.is_busy


def test_nothing_is_left_to_the_thread_over_tls(held: Any) -> None:
    worker, _ = held()
    worker.connection._is_plain = False
    admit(worker, step("j2", "s", "1"), step("k2", "t", "1"))
    worker.runtime.step()
    assert [row[5] for row in worker.peer.result_rows()] == [b"6"]


def test_a_worker_with_a_commit_under_way_is_busy_until_that_is_done(held: Any) -> None:
    worker, go = held()
    worker.peer.send("infer", [step("k2", "t", "1")])
    admit(worker, step("j2", "s", "1"))
    worker.runtime.step()
    assert worker.runtime.is_busy
    go.set()
    worker.runtime.step()
    assert not worker.runtime.is_busy
    assert [row[5] for row in worker.peer.result_rows()] == [b"6"]


def test_an_answer_in_memory_that_the_handler_may_use_again_is_not_left_to_the_thread(held: Any) -> None:
    worker, _ = held(TOTAL.replace('return state["total"]', 'return bytearray(b"%d" % state["total"])'))
    admit(worker, step("j2", "s", "1"), step("k2", "t", "1"))
    worker.runtime.step()
    assert [row[5] for row in worker.peer.result_rows()] == [b"6"]


def test_a_worker_stops_with_a_commit_under_way_once_that_is_done(held: Any) -> None:
    worker, go = held()
    admit(worker, step("j2", "s", "1"), step("k2", "t", "1"))
    worker.runtime.step()
    threading.Timer(0.1, go.set).start()
    worker.runtime.close()
    assert [row[5] for row in worker.peer.result_rows()] == [b"6"]


HOOK = """
        def on_sequence_end(self, sequence_id, reason):
            calls.append(self.cache.get(sequence_id))
"""


def test_a_handler_hears_of_the_end_of_a_sequence_once_a_step_that_failed_is_rolled_back(held: Any) -> None:
    worker, go = held(TOTAL + HOOK)
    commit_fails(worker)
    admit(worker, step("j2", "s", "1"), step("k2", "t", "1"))
    worker.runtime.step()
    threading.Timer(0.1, go.set).start()
    close(worker, s="timeout")
    assert worker.module.calls[-1] is None
    assert [row[2] for row in worker.peer.result_rows()] == [503]


def test_what_became_of_a_step_is_told_after_a_commit_that_was_under_way_not_before_it(held: Any) -> None:
    worker, go = held()
    admit(worker, step("j2", "s", "1"))
    worker.runtime.admit([step("k2", "t", "1")], {"k2": (0.0, True, "worker_died")})
    worker.runtime.step()
    steps: Any = worker.service.steps
    take = steps._holdings.take

    def takes(asked: Any) -> Any:
        assert go.is_set(), "the lease may run out until the answer leaves"
        return take(asked)

    steps._holdings.take = takes
    threading.Timer(0.1, go.set).start()
    worker.runtime.step()
    assert [(row[0], row[2]) for row in worker.peer.result_rows()] == [("j2", 200), ("k2", 500)]


def test_a_worker_whose_commit_is_done_does_not_repeat_other_writes_that_have_failed(held: Any) -> None:
    worker, go = held()
    steps: Any = worker.service.steps
    writes: list[Any] = []

    def fail(leases: Any) -> None:
        writes.append(leases)
        raise StoreError("nobody answers")

    steps._store.end = fail
    close(worker, t="ended")
    worker.peer.send("infer", [step("k2", "u", "1")])
    admit(worker, step("j2", "s", "1"))
    worker.runtime.step()
    before = len(writes)
    go.set()
    while worker.runtime.is_busy:
        worker.runtime.step()
    assert len(writes) == before > 0
    assert [row[5] for row in worker.peer.result_rows()] == [b"6"]


def test_the_end_of_the_frontend_ends_the_worker(held: Any, frontend: FrontendStub) -> None:
    worker, go = held()
    admit(worker, step("j2", "s", "1"), step("k2", "t", "1"))
    worker.runtime.step()
    worker.peer.close()
    go.set()
    for _ in range(2):
        with pytest.raises(FrontendGone):
            worker.runtime.step()


def test_a_defect_of_the_store_ends_the_worker_even_if_a_handler_catches_it(held: Any) -> None:
    worker, _ = held()
    steps: Any = worker.service.steps

    def defect(commits: Any) -> Any:
        raise TypeError("a defect")

    steps._store.commit = defect
    admit(worker, step("j2", "s", "1"), step("k2", "t", "1"))
    worker.runtime.step()
    for _ in range(2):
        with pytest.raises(TypeError, match="a defect"):
            steps.finish_commit()
