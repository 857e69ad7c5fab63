"""Attempts of steps that arrive late: long after, after the end, in the next sequence, at another worker."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.sequences.steps.conftest import KINDS
from tests.sequences.steps.served import Served
from tests.sequences.steps.stepping import TOTAL

APPLIED, DIFFERS, GAP = "step_applied", "step_differs", "step_gap"
OPEN, UNKNOWN, ENDED = "sequence_open", "sequence_unknown", "sequence_ended"

Say = Callable[..., Any]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["the same worker", "another worker"])
def say(request: pytest.FixtureRequest, kind: str, served: Callable[..., Served]) -> Say:
    """Send a step, and return what it is told."""
    if kind == "memory" and request.param == "another worker":
        pytest.skip("states in memory are lost with their worker")
    model = served(TOTAL)

    def say(sequence_id: str, body: str, **claims: Any) -> Any:
        if request.param == "another worker":
            model.replace_worker()
        return model.say(sequence_id, body, **claims)

    return say


def test_a_step_that_was_acknowledged_long_ago_is_not_applied_again(say: Say) -> None:
    for number in range(1, 10):
        assert say("s", "1", number=number, token="t") == str(number)
    assert say("s", "1", number=2, token="t") == APPLIED
    assert say("s", "1", number=1, token="t") == "1"
    assert say("s", "1", number=9, token="t") == "9"
    assert say("s", "5", number=9, token="t") == DIFFERS
    assert say("s", "1", number=10, token="t") == "10"


def test_a_late_attempt_of_an_earlier_sequence_does_not_enter_the_next_one(say: Say) -> None:
    say("s", "1", number=1, token="old")
    say("s", "1", number=2, token="old", end=True)
    assert say("s", "10", number=1, token="new") == "10"
    for number in (1, 2, 3):
        assert say("s", "1", number=number, token="old") == (APPLIED if number == 1 else ENDED)
    assert say("s", "1", number=1, token="old", start=True) == APPLIED
    assert say("s", "10", number=2, token="new") == "20"


def test_a_late_step_begins_nothing_after_the_end(say: Say, kind: str) -> None:
    say("s", "1", number=1, token="t")
    say("s", "1", number=2, token="t", end=True)
    assert say("s", "1", number=3, token="t") == ENDED
    assert say("s", "1", number=1, token="t", start=True) == (APPLIED if kind == "memory" else "1")
    assert say("never begun", "1", number=2, token="t") == UNKNOWN
    assert say("s", "1", number=4, token="other") == UNKNOWN


def test_gaps_and_steps_of_other_sequences_change_nothing(say: Say) -> None:
    assert say("s", "1", number=1, token="t") == "1"
    assert say("s", "1", number=3, token="t") == say("s", "1", number=2**63 - 1, token="t") == GAP
    assert say("s", "1", number=1, token="u") == OPEN
    assert say("s", "1", number=2, token="u") == UNKNOWN
    assert say("s", "1", number=2, token="t") == "2"


def test_a_request_id_is_known_however_late_it_comes(say: Say) -> None:
    for number in range(9):
        assert say("s", "1", request_id=f"r{number}") == str(number + 1)
    assert say("s", "1", request_id="r2") == APPLIED
    assert say("s", "5", request_id="r2") == APPLIED
    assert say("s", "5", request_id="r8") == DIFFERS
    assert say("s", "1", request_id="r9") == "10"


def test_a_step_that_fails_leaves_its_number(say: Say) -> None:
    assert say("s", "boom", number=1, token="t") == 503
    assert say("s", "1", number=2, token="t") == UNKNOWN
    assert say("s", "1", number=1, token="t") == "1"
    assert say("s", "boom", number=2, token="t") == 503
    assert say("s", "1", number=3, token="t") == GAP
    assert say("s", "1", number=2, token="t") == "2"


def test_where_a_start_is_required_a_late_request_begins_nothing(served: Callable[..., Served]) -> None:
    model = served(TOTAL, require_start=True)
    assert model.say("s", "1", request_id="a") == UNKNOWN
    assert model.say("s", "1", request_id="b", start=True) == "1"
    assert model.say("s", "1", end=True) == "2"
    assert model.say("s", "1", request_id="c") == UNKNOWN


def test_every_answer_tells_the_token(served: Callable[..., Served]) -> None:
    model = served(TOTAL)
    tokens = {model.token("s", "1") for _ in range(3)}
    (token,) = tokens
    assert token
    assert model.say("s", "1", token=token) == "4"
    assert model.say("s", "1", token=token, number=5) == "5"
    assert model.say("s", "1", token="another") == UNKNOWN


# States in memory

OWN_STATES = """
    totals = {}

    def handle(data, context):
        for index, row in enumerate(data or []):
            sequence_id = context.get_sequence_id(index)
            totals[sequence_id] = totals.get(sequence_id, 0) + int(row["body"])
        return [str(totals[context.get_sequence_id(index)]) for index in range(len(data or []))]
"""


def test_numbers_tell_the_same_where_the_handler_keeps_its_own_states(served: Callable[..., Served], kind: str) -> None:
    if kind != "memory":
        pytest.skip("a store has no such states")
    say = served(OWN_STATES).say
    assert say("s", "1", number=2, token="t") == UNKNOWN
    for number in range(1, 8):
        assert say("s", "1", number=number, token="t") == str(number)
    assert say("s", "1", number=3, token="t") == APPLIED
    assert say("s", "1", number=7, token="t") == "7"
    assert say("s", "5", number=7, token="t") == DIFFERS
    assert say("s", "1", number=9, token="t") == GAP
    assert say("s", "1", number=1, token="u") == OPEN
    assert say("s", "1") == "8", "a step without a number is the next one"
