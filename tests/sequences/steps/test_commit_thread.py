"""When commits are left to a thread: only where that pays, and never so that an error or an answer is lost."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from tests.sequences.steps.stepping import TOTAL, Make, close, step
from tests.unit.ts.frontend_stub import DEADLINE_SECONDS, FrontendStub, Worker

from ts.connection.frontend_connection import FrontendGone
from ts.protocol.messages import StepHistory
from ts.sequences.steps.commit_thread import CommitOverlap, CommitThread
from ts.sequences.steps.stores.store import StoreError

LONG, SHORT = 5e-3, 1e-4


class Clock:
    """Runs steps, and notes how long they and their commits took and how long the device waited before."""

    def __init__(self) -> None:
        self.overlap = CommitOverlap()
        self._now = 0.0

    def pays(self, steps: int, step: float, wait: float, commit: float, *, is_followed: bool = True) -> bool:
        for _ in range(steps):
            began = self._now + wait
            self._now = began + step
            self.overlap.ran(began, self._now, is_followed=is_followed)
            self.overlap.committed(commit)
        return self.overlap.pays

    def steps_until(self, pays: bool, step: float, wait: float, commit: float) -> int:
        return next(number for number in range(10_000) if self.pays(1, step, wait, commit) is pays)


def test_a_thread_pays_for_long_commits_of_long_steps() -> None:
    assert Clock().pays(20, LONG, 2e-3, 1e-3)
    assert not Clock().pays(20, LONG, 2e-3, 1e-5), "there is nothing to be gained"
    assert not Clock().pays(20, SHORT, 2e-3, 1e-3), "the step is over before the thread has begun"
    assert not Clock().pays(3, LONG, 2e-3, 1e-3), "three steps tell nothing"
    assert not Clock().pays(20, LONG, 2e-3, 1e-3, is_followed=False), "no other batch waits"


@pytest.mark.parametrize(
    ("step", "wait", "commit"),
    [
        pytest.param(LONG, 2e-3, 1e-3, id="the device waits as long as without"),
        pytest.param(LONG, 1e-3, 3e-3, id="the handler lets no other thread run"),
        pytest.param(SHORT, 1e-3, 1e-3, id="the steps are short now"),
    ],
)
def test_a_thread_that_turns_out_not_to_pay_is_tried_again_later_each_time(
    step: float, wait: float, commit: float
) -> None:
    clock = Clock()
    waits = []
    for _ in range(3):
        waits.append(clock.steps_until(True, LONG, 2e-3, 1e-3))
        clock.steps_until(False, step, wait, commit)
    assert waits[0] < waits[1] < waits[2]


def test_a_thread_that_pays_goes_on_even_if_one_commit_takes_long() -> None:
    clock = Clock()
    clock.steps_until(True, LONG, 2e-3, 1e-3)
    for _ in range(20):
        assert clock.pays(15, LONG, 1e-3, 1.5e-3)
        assert clock.pays(1, LONG, 20.0, 20.0)


def test_an_error_in_the_thread_is_raised_by_every_wait() -> None:
    thread = CommitThread()

    def fail() -> None:
        raise TypeError("a defect")

    thread.start(fail)
    for _ in range(2):
        with pytest.raises(TypeError, match="a defect"):
            thread.wait()


def test_parts_of_streams_are_no_commits(durable_worker: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = """
            from ts.handler_utils.utils import send_intermediate_predict_response
            for _ in range(3):
                send_intermediate_predict_response(["part"] * len(data), context.request_ids, "", 200, context)
            calls.append(len(data))"""
    worker = durable_worker(TOTAL.replace("            calls.append(len(data))", parts.removeprefix("\n")))
    commits: list[float] = []
    monkeypatch.setattr(worker.service.steps._overlap, "committed", commits.append)  # type: ignore[union-attr]
    assert [row[5] for row in worker.infer(step("j1", "s", "5"))] == [b"part"] * 3 + [b"5"]
    assert len(commits) == 1


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
        worker.admit_frame([row])


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
    worker.connection.is_plain = False
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
    worker.admit_frame([step("k2", "t", "1")], {"k2": StepHistory(0.0, True, "worker_died")})
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
            steps.wait_for_commit()
