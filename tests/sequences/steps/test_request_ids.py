"""Request ids that are used again: what is a repetition, and what begins anew, with every store."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.sequences.steps.conftest import KINDS
from tests.sequences.steps.served import Served
from tests.sequences.steps.stepping import TOTAL

from ts.protocol.messages import ANSWER_TOKEN


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["the same worker", "another worker"])
def at(request: pytest.FixtureRequest, kind: str, served: Callable[..., Served]) -> Any:
    """Where the next steps go; a worker that goes on knows only what is stored."""
    if kind == "memory" and request.param == "another worker":
        pytest.skip("states in memory are lost with their worker")
    model = served(TOTAL)

    def say(sequence_id: str, body: str, **claims: Any) -> Any:
        if request.param == "another worker":
            model.replace_worker()
        return model.say(sequence_id, body, **claims)

    return say


@pytest.fixture
def knows_what_is_over(kind: str) -> None:
    if kind == "memory":
        pytest.skip("the ids of a sequence in memory are forgotten with its end")


def test_a_sequence_that_is_begun_anew_with_the_same_request_ids_is_another_one(at: Any) -> None:
    assert at("cam", "5", request_id="1") == "5"
    assert at("cam", "2", request_id="2", end=True) == "7"
    assert at("cam", "100", request_id="1", start=True) == "100"
    assert at("cam", "1", request_id="2", end=True) == "101"
    assert at("cam", "30", request_id="1", start=True) == "30"


def test_it_may_begin_anew_without_a_start_marker(at: Any) -> None:
    at("s", "5", request_id="1")
    at("s", "2", request_id="2", end=True)
    assert at("s", "100", request_id="1") == "100"
    assert at("s", "1", request_id="2") == "101"


def test_a_repeated_start_is_recognised(at: Any) -> None:
    assert at("s", "5", request_id="1", start=True) == "5"
    assert at("s", "5", request_id="1", start=True) == "5"
    assert at("s", "2", request_id="2") == "7"


def test_a_start_that_arrives_late_once_more_does_not_begin_anew_what_goes_on(at: Any) -> None:
    at("s", "5", request_id="0", start=True)
    for number in range(1, 6):  # more steps than there are answers kept of
        at("s", "1", request_id=str(number))
    assert at("s", "5", request_id="0", start=True) == "5"
    assert at("s", "1", request_id="7") == "11"


def test_a_repeated_step_is_told_the_token_once_as_before(served: Callable[..., Served]) -> None:
    model = served(TOTAL)
    first = model.headers("s", "5", request_id="1")
    assert [name for name, _ in first].count(ANSWER_TOKEN) == 1
    assert model.headers("s", "5", request_id="1") == first


@pytest.mark.usefixtures("knows_what_is_over")
def test_a_repeated_start_that_was_the_end_as_well_is_recognised(at: Any) -> None:
    assert at("s", "5", request_id="1", start=True, end=True) == "5"
    assert at("s", "5", request_id="1", start=True, end=True) == "5"
    assert at("s", "6", request_id="2", start=True, end=True) == "6"


@pytest.mark.usefixtures("knows_what_is_over")
def test_the_last_steps_of_an_ended_sequence_are_recognised(at: Any) -> None:
    at("s", "5", request_id="1")
    at("s", "2", request_id="2")
    at("s", "3", request_id="3", end=True)
    assert at("s", "3", request_id="3", end=True) == "10"
    assert at("s", "2", request_id="2") == "7"


def test_a_live_sequence_is_begun_anew_by_an_id_that_it_has_had_in_the_middle(at: Any) -> None:
    at("s", "5", request_id="1", start=True)
    at("s", "2", request_id="2")
    at("s", "2", request_id="3")
    assert at("s", "100", request_id="2", start=True) == "100"
    assert at("s", "1", request_id="1") == "101"
    assert at("s", "1", request_id="3") == "102"


def test_a_start_that_fails_leaves_the_sequence_as_it_was(at: Any) -> None:
    at("s", "5", request_id="1", start=True)
    assert at("s", "boom", request_id="x", start=True) == 503
    assert at("s", "5", request_id="1", start=True) == "5"
    assert at("s", "2", request_id="2") == "7"


def test_a_start_with_the_same_request_id_and_another_body_begins_anew(at: Any) -> None:
    assert at("s", "5", request_id="1", start=True) == "5"
    assert at("s", "6", request_id="1", start=True) == "6"
    assert at("s", "6", request_id="1", start=True) == "6"
    assert at("s", "1", request_id="2", end=True) == "7"


@pytest.mark.usefixtures("knows_what_is_over")
def test_a_start_that_ends_as_well_begins_anew_with_another_body(at: Any) -> None:
    assert at("s", "8", request_id="1", start=True, end=True) == "8"
    assert at("s", "9", request_id="1", start=True, end=True) == "9"
    assert at("s", "9", request_id="1", start=True, end=True) == "9"
    assert at("s", "3", request_id="1") == "3"
