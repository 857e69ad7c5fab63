"""Sequence ids and request ids that are used again: what is a repetition, and what begins anew."""

import pytest
from tests.sequences.steps.conftest import EVERY_KIND
from tests.sequences.steps.stepping import TOTAL, Make, answered, close, step, told

from ts.protocol.boot_clock import boot_time
from ts.protocol.messages import StepHistory


def test_what_has_expired_is_begun_anew_with_the_same_request_ids(durable_worker: Make) -> None:
    worker = durable_worker(TOTAL)
    answered(worker, step("j1", "s", "5", request_id="1"))
    answered(worker, step("j2", "s", "2", request_id="2"))
    close(worker, s="idle")
    assert answered(worker, step("j3", "s", "2", request_id="2")) == ["7"]
    assert answered(worker, step("j4", "s", "2", request_id="3")) == [(410, "sequence_expired")]
    assert answered(worker, step("j5", "s", "2", request_id="3")) == [(410, "sequence_expired")]
    assert answered(worker, step("j6", "s", "100", request_id="1", start=True)) == ["100"]
    assert answered(worker, step("j7", "s", "1", request_id="2")) == ["101"]


@EVERY_KIND
def test_a_start_ends_what_runs_of_the_sequence(durable_worker: Make) -> None:
    worker = durable_worker(TOTAL, continuous=True)
    answered(worker, step("j0", "s", "5", request_id="0"))
    worker.admit_frame([step("j1", "s", "1"), step("j2", "s", "7", start=True)])
    worker.runtime.step()
    results = {each[0]: (each[2], each[5]) for each in worker.peer.result_rows()}
    assert results == {"j1": (409, b""), "j2": (200, b"7")}
    assert answered(worker, step("j3", "s", "1")) == ["8"]


@pytest.mark.parametrize("ending", ["its last step", "its answer", "idle"])
def test_a_sequence_that_is_over_may_be_begun_by_any_server_at_once(durable_worker: Make, ending: str) -> None:
    worker = durable_worker(TOTAL, lease=600.0)
    elsewhere = durable_worker(TOTAL, lease=600.0, owner="another machine/1/1")
    answered(worker, step("j1", "s", "5"))
    if ending == "idle":
        close(worker, s="idle")
    else:
        answered(worker, step("j2", "s", "0" if ending == "its answer" else "1", end=ending == "its last step"))
    assert answered(elsewhere, step("j3", "s", "7", start=True)) == ["7"]


@EVERY_KIND
def test_who_only_asks_for_a_sequence_that_is_over_does_not_hold_it(durable_worker: Make) -> None:
    first = durable_worker(TOTAL, lease=600.0)
    answered(first, step("j1", "s", "5", request_id="1", end=True))
    other = durable_worker(TOTAL, lease=600.0, owner="another machine/1/1")
    assert answered(other, step("j2", "s", "5", request_id="1", end=True)) == ["5"]
    assert answered(first, step("j3", "s", "7", request_id="7", start=True)) == ["7"]


@EVERY_KIND
def test_a_sequence_whose_first_step_does_not_count_is_held_by_nobody(durable_worker: Make) -> None:
    one, other = durable_worker(TOTAL), durable_worker(TOTAL, owner="another machine/1/1")
    assert answered(one, step("j1", "s", "5"), step("j2", "s", "2", end=True)) == ["5", "7"]
    assert answered(other, step("j3", "s", "boom")) == [(503, "")]
    assert answered(one, step("j4", "s", "4", start=True)) == ["4"]


def test_a_repeated_answer_says_that_its_step_ended_the_sequence(durable_worker: Make) -> None:
    """Who asks again may not know that the request had the marker."""
    first = durable_worker(TOTAL)
    assert answered(first, step("j1", "s", "5", request_id="1"), step("j2", "s", "2", request_id="2", end=True))
    second = durable_worker(TOTAL)
    results = second.infer(step("j3", "s", "2", request_id="2"), step("j4", "s", "5", request_id="1"))
    assert [dict(each[4]).get("ts_request_sequence_end") for each in results] == ["s", None]


@pytest.mark.parametrize("count", [1, 2])
def test_a_client_may_ask_for_the_first_answer_of_a_sequence_that_has_ended(durable_worker: Make, count: int) -> None:
    """It begins nothing, so its body does not matter."""
    first = durable_worker(TOTAL)
    for number in range(1, count + 1):
        answered(first, step(f"j{number}", "s", "5", request_id=str(number), end=number == count))
    second = durable_worker(TOTAL)
    row = step("asks", "s", "", request_id="1")
    second.admit_frame([row], {"asks": StepHistory(boot_time(), False, "not_applied")})
    second.runtime.step()
    assert told(second, row) == "5"
