"""Sequence ids and request ids that are used again: what is a repetition, and what begins anew."""

from typing import Any

import pytest
from tests.features.sequence_steps.stepping import TOTAL, Make, answered, close, step, told

from ts.protocol.boot_clock import boot_time
from ts.protocol.messages import History


@pytest.fixture(params=["the same worker", "another worker"])
def at(request: pytest.FixtureRequest, durable_worker: Make) -> Any:
    """Where the next steps go; a worker that goes on knows only what is stored."""
    workers = [durable_worker(TOTAL)]

    def infer(*rows: list[Any]) -> list[Any]:
        if request.param == "another worker":
            workers.append(durable_worker(TOTAL))
        return answered(workers[-1], *rows)

    return infer


def test_a_sequence_that_is_begun_anew_with_the_same_request_ids_is_another_one(at: Any) -> None:
    assert at(step("j1", "cam", "5", request_id="1")) == ["5"]
    assert at(step("j2", "cam", "2", request_id="2", end=True)) == ["7"]
    assert at(step("j3", "cam", "100", request_id="1", start=True)) == ["100"]
    assert at(step("j4", "cam", "1", request_id="2", end=True)) == ["101"]
    assert at(step("j5", "cam", "30", request_id="1", start=True)) == ["30"]


def test_it_may_begin_anew_without_a_start_marker(at: Any) -> None:
    at(step("j1", "s", "5", request_id="1"))
    at(step("j2", "s", "2", request_id="2", end=True))
    assert at(step("j3", "s", "100", request_id="1")) == ["100"]
    assert at(step("j4", "s", "1", request_id="2")) == ["101"]


def test_a_repeated_start_is_recognised(at: Any) -> None:
    assert at(step("j1", "s", "5", request_id="1", start=True)) == ["5"]
    assert at(step("j2", "s", "5", request_id="1", start=True)) == ["5"]
    assert at(step("j3", "s", "2", request_id="2")) == ["7"]


def test_a_start_that_arrives_late_once_more_does_not_begin_anew_what_goes_on(at: Any) -> None:
    at(step("j0", "s", "5", request_id="0", start=True))
    for number in range(1, 6):  # more steps than there are answers kept of
        at(step(f"j{number}", "s", "1", request_id=str(number)))
    assert at(step("j6", "s", "5", request_id="0", start=True)) == ["5"]
    assert at(step("j7", "s", "1", request_id="7")) == ["11"]


def test_a_repeated_start_that_was_the_end_as_well_is_recognised(at: Any) -> None:
    assert at(step("j1", "s", "5", request_id="1", start=True, end=True)) == ["5"]
    assert at(step("j2", "s", "5", request_id="1", start=True, end=True)) == ["5"]
    assert at(step("j3", "s", "6", request_id="2", start=True, end=True)) == ["6"]


def test_the_last_steps_of_an_ended_sequence_are_recognised(at: Any) -> None:
    at(step("j1", "s", "5", request_id="1"))
    at(step("j2", "s", "2", request_id="2"))
    at(step("j3", "s", "3", request_id="3", end=True))
    assert at(step("j4", "s", "3", request_id="3", end=True)) == ["10"]
    assert at(step("j5", "s", "2", request_id="2")) == ["7"]


def test_a_live_sequence_is_begun_anew_by_an_id_that_it_has_had_in_the_middle(at: Any) -> None:
    at(step("j1", "s", "5", request_id="1", start=True))
    at(step("j2", "s", "2", request_id="2"))
    at(step("j3", "s", "2", request_id="3"))
    assert at(step("j4", "s", "100", request_id="2", start=True)) == ["100"]
    assert at(step("j5", "s", "1", request_id="1")) == ["101"]
    assert at(step("j6", "s", "1", request_id="3")) == ["102"]


def test_a_start_that_fails_leaves_the_sequence_as_it_was(at: Any) -> None:
    at(step("j1", "s", "5", request_id="1", start=True))
    assert at(step("j2", "s", "boom", request_id="x", start=True)) == [(503, "")]
    assert at(step("j3", "s", "5", request_id="1", start=True)) == ["5"]
    assert at(step("j4", "s", "2", request_id="2")) == ["7"]


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


def test_who_only_asks_for_a_sequence_that_is_over_does_not_hold_it(durable_worker: Make) -> None:
    first = durable_worker(TOTAL, lease=600.0)
    answered(first, step("j1", "s", "5", request_id="1", end=True))
    other = durable_worker(TOTAL, lease=600.0, owner="another machine/1/1")
    assert answered(other, step("j2", "s", "5", request_id="1", end=True)) == ["5"]
    assert answered(first, step("j3", "s", "7", request_id="7", start=True)) == ["7"]


def test_a_start_with_the_same_request_id_and_another_body_begins_anew(at: Any) -> None:
    assert at(step("j1", "s", "5", request_id="1", start=True)) == ["5"]
    assert at(step("j2", "s", "6", request_id="1", start=True)) == ["6"]
    assert at(step("j3", "s", "6", request_id="1", start=True)) == ["6"]
    assert at(step("j4", "s", "1", request_id="2", end=True)) == ["7"]
    assert at(step("j5", "s", "8", request_id="1", start=True, end=True)) == ["8"]
    assert at(step("j6", "s", "9", request_id="1", start=True, end=True)) == ["9"]
    assert at(step("j7", "s", "9", request_id="1", start=True, end=True)) == ["9"]
    assert at(step("j8", "s", "3", request_id="1")) == ["3"]


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
    second.admit_frame([row], {"asks": History(boot_time(), False, "not_applied")})
    second.runtime.step()
    assert told(second, row) == "5"
