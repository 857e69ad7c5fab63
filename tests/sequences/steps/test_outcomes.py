"""What a step is told is true: whatever happens to the commit, and whoever asks later."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.sequences.steps.conftest import EVERY_KIND
from tests.sequences.steps.stepping import TOTAL, Make, answered, close, step, told
from tests.unit.ts.frontend_stub import Worker

from ts.protocol.messages import StepHistory
from ts.sequences.steps.stores.store import StoreError

UNKNOWN = (503, "outcome_unknown")
NOT_STORED = (503, "sequence_store")
MOVED = (409, "sequence_moved")
HELD = (409, "sequence_held")
ELSEWHERE = "another machine/1/1"


def ask(worker: Worker, row: list[Any], cause: str = "response_timeout") -> Any:
    """What a step is told that is sent again only to ask."""
    worker.admit_frame([row], {row[0]: StepHistory(0.0, True, cause)})
    worker.runtime.step()
    return told(worker, row)


def break_commits(worker: Worker, *, applied: bool, settles: bool = True) -> None:
    """The next commit raises, and was applied or not; ``settles``: the store can be asked afterwards."""
    store: Any = worker.service.steps._store  # type: ignore[union-attr]
    commit: Callable[..., Any] = store.commit

    def fails(commits: Any) -> Any:
        store.commit = commit
        if applied:
            commit(commits)
        raise StoreError("the reply was lost")

    def nobody(commits: Any) -> Any:
        raise StoreError("nobody is there")

    store.commit = fails
    if not settles:
        store.settle = nobody


def test_a_commit_whose_reply_was_lost_counts(durable_worker: Make) -> None:
    worker = durable_worker(TOTAL)
    answered(worker, step("j1", "s", "5"))
    break_commits(worker, applied=True)
    assert answered(worker, step("j2", "s", "1"), step("j3", "t", "1")) == ["6", "1"]
    assert answered(worker, step("j2", "s", "1"), step("j4", "t", "1")) == ["6", "2"]
    assert answered(worker, step("j5", "s", "1")) == ["7"]


def test_an_end_whose_reply_was_lost_counts(durable_worker: Make) -> None:
    worker = durable_worker(TOTAL, lease=600.0)
    answered(worker, step("j1", "s", "5"))
    break_commits(worker, applied=True)
    assert answered(worker, step("j2", "s", "1", end=True)) == ["6"]
    assert answered(durable_worker(TOTAL, owner=ELSEWHERE), step("j3", "s", "9", start=True)) == ["9"]


def test_a_commit_that_was_not_applied_does_not_count_and_never_will(durable_worker: Make) -> None:
    worker = durable_worker(TOTAL)
    answered(worker, step("j1", "s", "5"))
    break_commits(worker, applied=False)
    assert answered(worker, step("j2", "s", "1")) == [NOT_STORED]
    assert answered(worker, step("j3", "s", "2")) == ["7"]
    assert answered(worker, step("j2", "s", "1")) == ["8"]


@pytest.mark.parametrize("applied", [True, False])
def test_another_server_has_the_sequence_of_a_failed_commit_at_once(durable_worker: Make, applied: bool) -> None:
    worker = durable_worker(TOTAL, lease=600.0)
    answered(worker, step("j1", "s", "5"))
    break_commits(worker, applied=applied)
    assert answered(worker, step("j2", "s", "1")) == ["6" if applied else NOT_STORED]
    elsewhere = durable_worker(TOTAL, owner=ELSEWHERE)
    assert answered(elsewhere, step("j3", "s", "1")) == ["7" if applied else "6"]


@pytest.mark.parametrize("applied", [True, False])
def test_where_the_store_cannot_be_asked_the_step_is_told_so(durable_worker: Make, applied: bool) -> None:
    worker = durable_worker(TOTAL)
    answered(worker, step("j1", "s", "5"))
    break_commits(worker, applied=applied, settles=False)
    assert answered(worker, step("j2", "s", "1", request_id="r")) == [UNKNOWN]
    assert answered(worker, step("j3", "s", "1", request_id="r")) == ["6"]
    assert answered(worker, step("j4", "s", "1")) == ["7"]


@EVERY_KIND
def test_who_asks_is_told_what_was_stored(durable_worker: Make) -> None:
    frozen = durable_worker(TOTAL)
    answered(frozen, step("j1", "s", "5"))
    assert ask(durable_worker(TOTAL), step("j1", "s", "5")) == "5"


def test_who_asks_in_vain_is_told_so_and_the_frozen_worker_cannot_apply_it_later(durable_worker: Make) -> None:
    frozen = durable_worker(TOTAL)
    answered(frozen, step("j1", "s", "5"))
    other = durable_worker(TOTAL)
    assert ask(other, step("j2", "s", "1", end=True)) == (500, "response_timeout")
    assert other.module.calls == []
    close(other, s="ended")  # since that job was meant to be its last
    assert answered(frozen, step("j2", "s", "1", end=True)) == [MOVED]
    assert answered(other, step("j3", "s", "2")) == ["7"]


def test_another_server_has_a_sequence_that_was_asked_for_in_vain_at_once(durable_worker: Make) -> None:
    holder = durable_worker(TOTAL)
    answered(holder, step("j1", "s", "5"))
    holder.service.steps.close()  # type: ignore[union-attr]
    asked = durable_worker(TOTAL, lease=600.0)
    assert ask(asked, step("j2", "s", "1"), "not_applied") == (500, "not_applied")
    while asked.runtime.is_busy:
        asked.runtime.step()
    assert answered(durable_worker(TOTAL, owner=ELSEWHERE), step("j3", "s", "1")) == ["6"]


def test_a_new_sequence_that_never_came_to_be_can_be_asked_for(durable_worker: Make) -> None:
    worker = durable_worker(TOTAL)
    assert ask(worker, step("j1", "s", "5", start=True), "worker_died") == (500, "worker_died")
    assert answered(worker, step("j2", "s", "7")) == ["7"]


def test_who_asks_while_another_server_goes_on_is_told_what_was_stored_or_that_nobody_knows(
    durable_worker: Make,
) -> None:
    lost = durable_worker(TOTAL, lease=0.0)
    answered(lost, step("j1", "s", "5"))
    elsewhere = durable_worker(TOTAL, owner=ELSEWHERE, lease=600.0)
    assert answered(elsewhere, step("j2", "s", "1")) == ["6"]
    successor = durable_worker(TOTAL)
    assert ask(successor, step("j1", "s", "5")) == "5"
    assert ask(successor, step("j3", "s", "5")) == UNKNOWN
    assert answered(successor, step("j4", "s", "5")) == [HELD]


@pytest.mark.parametrize(("body", "starts"), [("9", True), ("5", True), ("5", False)])
def test_a_start_with_an_id_of_the_ended_sequence_is_not_told_the_old_answer_while_the_lease_cannot_be_taken(
    durable_worker: Make, body: str, starts: bool
) -> None:
    elsewhere = durable_worker(TOTAL, owner=ELSEWHERE, lease=600.0)
    answered(elsewhere, step("j1", "s", "5", request_id="1"), step("j2", "s", "1", request_id="2"))
    successor = durable_worker(TOTAL)
    store: Any = successor.service.steps._store  # type: ignore[union-attr]
    acquire = store.acquire

    def fails(*arguments: Any) -> Any:
        store.acquire = acquire
        raise StoreError("not now")

    assert answered(elsewhere, step("j3", "s", "1", request_id="3", end=True)) == ["7"]
    store.acquire = fails
    again = step("j4", "s", body, request_id="1", start=starts)
    successor.admit_frame([again], {"j4": StepHistory(0.0, True, "")})
    successor.runtime.step()
    assert told(successor, again) == UNKNOWN
    assert answered(successor, again) == [body]


def test_a_step_that_another_server_has_applied_meanwhile_is_told_its_answer(durable_worker: Make) -> None:
    frozen = durable_worker(TOTAL, lease=600.0)
    answered(frozen, step("j1", "s", "5"))
    successor = durable_worker(TOTAL)
    assert answered(successor, step("j2", "s", "1", request_id="r")) == ["6"]
    assert answered(frozen, step("j3", "s", "1", request_id="r")) == ["6"]
    assert answered(successor, step("j4", "s", "1")) == ["7"]


def test_a_kept_answer_that_cannot_be_read_is_no_sign_that_the_step_does_not_count(durable_worker: Make) -> None:
    worker = durable_worker(TOTAL)
    answered(worker, step("j1", "s", "5", request_id="r"))
    store: Any = worker.service.steps._store  # type: ignore[union-attr]
    find = store.find

    def fails(*arguments: Any) -> Any:
        store.find = find
        raise StoreError("not now")

    store.find = fails
    assert answered(worker, step("j2", "s", "5", request_id="r")) == [UNKNOWN]
    assert answered(worker, step("j3", "s", "5", request_id="r")) == ["5"]


def test_a_step_that_is_sent_again_is_not_told_that_nothing_was_done_while_the_store_is_away(
    durable_worker: Make,
) -> None:
    answered(durable_worker(TOTAL), step("j1", "s", "5"))
    successor = durable_worker(TOTAL)
    store: Any = successor.service.steps._store  # type: ignore[union-attr]

    def fails(*arguments: Any) -> Any:
        raise StoreError("not now")

    store.acquire = store.find = fails
    again = step("j1", "s", "5")
    successor.admit_frame([again], {"j1": StepHistory(0.0, True, "")})
    successor.runtime.step()
    assert told(successor, again) == UNKNOWN
    assert answered(successor, step("j2", "s", "5")) == [NOT_STORED]


# A row streams its number of further parts, one a step.
STREAM = """
    from ts.sequence import SequenceCache

    class Handler:
        def initialize(self, context):
            self.cache = SequenceCache(context)
            self.left = {}

        def handle(self, data, context):
            results = []
            for index, row in enumerate(data):
                job, sequence = context.get_request_id(index), context.get_sequence_id(index)
                self.left[job] = self.left.get(job, int(row["body"] if row else 0)) - 1
                self.cache[sequence] = self.cache.get(sequence, 0) + 1
                results.append(str(self.cache[sequence]))
            jobs = list(context.request_ids.values())
            context.stopping_criteria = [lambda result, job=job: self.left[job] <= 0 for job in jobs]
            return results
"""


def test_a_stream_that_has_to_end_is_not_told_that_it_does_not_count_if_a_part_of_it_does(durable_worker: Make) -> None:
    worker = durable_worker(STREAM, continuous=True)
    worker.admit(stream := step("j1", "s", "9"))
    worker.runtime.step()
    assert answered(worker, step("j2", "s", "1")) == ["3"]
    worker.admit(step("j3", "s", "9"))
    worker.runtime.step()
    worker.connection.cancelled.add("j3")
    worker.runtime.step()
    assert told(worker, stream) == UNKNOWN
    other = durable_worker(STREAM, continuous=True)
    other.admit(step("j1", "s", "9"))
    (kept,) = other.peer.result_rows()
    assert (kept[5], dict(kept[4])["ts_stream_interrupted"]) == (b"12", "true")


def test_who_asks_for_a_first_step_that_was_not_applied_holds_nothing(durable_worker: Make) -> None:
    asking, other = durable_worker(TOTAL), durable_worker(TOTAL, owner=ELSEWHERE)
    assert ask(asking, step("j1", "s", "5")) == (500, "response_timeout")
    assert answered(other, step("j2", "s", "4", start=True), step("j3", "s", "1", end=True)) == ["4", "5"]
    assert ask(asking, step("j4", "s", "5")) == (500, "response_timeout")
    assert answered(other, step("j5", "s", "6")) == ["6"]
