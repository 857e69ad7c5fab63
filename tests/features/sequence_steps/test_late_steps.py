"""Attempts of steps that arrive late: long after, after the end, in the next sequence, at another worker."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from tests.features.sequence_steps.stepping import TOTAL, Make, answered, close, step
from tests.unit.ts.frontend_stub import Worker

APPLIED, DIFFERS, GAP, OPEN = ((409, f"step_{name}") for name in ("applied", "differs", "gap", "open"))
OPEN = (409, "sequence_open")
UNKNOWN, ENDED = (410, "sequence_unknown"), (410, "sequence_ended")

Say = Callable[..., Any]


@pytest.fixture(params=["the same worker", "another worker"])
def say(request: pytest.FixtureRequest, durable_worker: Make) -> Say:
    """Send a step, and return what it is told."""
    workers = [durable_worker(TOTAL)]
    jobs = itertools.count()

    def say(sequence_id: str, body: str, **claims: Any) -> Any:
        if request.param == "another worker":
            workers.append(durable_worker(TOTAL))
        (told,) = answered(workers[-1], step(f"j{next(jobs)}", sequence_id, body, **claims))
        return told

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


def test_a_late_step_begins_nothing_after_the_end(say: Say) -> None:
    say("s", "1", number=1, token="t")
    say("s", "1", number=2, token="t", end=True)
    assert say("s", "1", number=3, token="t") == ENDED
    assert say("s", "1", number=1, token="t", start=True) == "1", "the answer that it got"
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
    assert say("s", "boom", number=1, token="t") == (503, "")
    assert say("s", "1", number=2, token="t") == UNKNOWN
    assert say("s", "1", number=1, token="t") == "1"
    assert say("s", "boom", number=2, token="t") == (503, "")
    assert say("s", "1", number=3, token="t") == GAP
    assert say("s", "1", number=2, token="t") == "2"


def test_where_a_start_is_required_a_late_request_begins_nothing(durable_worker: Make) -> None:
    worker = durable_worker(TOTAL, require_start=True)
    assert answered(worker, step("j1", "s", "1", request_id="a")) == [UNKNOWN]
    assert answered(worker, step("j2", "s", "1", request_id="b", start=True)) == ["1"]
    assert answered(worker, step("j3", "s", "1", end=True)) == ["2"]
    assert answered(worker, step("j4", "s", "1", request_id="c")) == [UNKNOWN]


def test_a_state_that_is_too_large_is_refused_with_its_size(durable_worker: Make) -> None:
    worker = durable_worker(TOTAL, most_state=10)
    (result,) = worker.infer(step("j1", "s", "1"))
    assert result[2] == 500
    assert "handler.cache.maxStateSize allows 10" in result[6]
    elsewhere = durable_worker(TOTAL, owner="another machine/1/1")
    assert answered(elsewhere, step("j2", "s", "7")) == ["7"], "the lease was given back"


def test_every_answer_tells_the_token(durable_worker: Make) -> None:
    worker = durable_worker(TOTAL)
    tokens = [dict(worker.infer(step(f"j{number}", "s", "1"))[0][4])["ts_sequence_token"] for number in range(3)]
    assert len(set(tokens)) == 1 and tokens[0]
    assert answered(worker, step("k", "s", "1", token=tokens[0])) == ["4"]
    assert answered(worker, step("l", "s", "1", token=tokens[0], number=5)) == ["5"]
    assert answered(worker, step("m", "s", "1", token="another")) == [UNKNOWN]


# States in memory

MEMORY = {
    "store": "memory",
    "module": "",
    "durable": False,
    "capacity": 100,
    "owner": "",
    "lease": 10.0,
    "lifetime": 60.0,
    "kept": 3,
    "restart_expired": False,
    "require_start": False,
}
OWN_STATES = """
    totals = {}

    def handle(data, context):
        for index, row in enumerate(data or []):
            sequence_id = context.get_sequence_id(index)
            totals[sequence_id] = totals.get(sequence_id, 0) + int(row["body"])
        return [str(totals[context.get_sequence_id(index)]) for index in range(len(data or []))]
"""


@pytest.mark.parametrize("source", [TOTAL, OWN_STATES], ids=["a cache", "states of the handler's own"])
def test_in_memory_numbers_tell_the_same(make_worker: Callable[..., Worker], source: str) -> None:
    worker = make_worker(source, sequences=True, cache=MEMORY)
    assert answered(worker, step("j0", "s", "1", number=2, token="t")) == [UNKNOWN]
    for number in range(1, 8):
        assert answered(worker, step(f"j{number}", "s", "1", number=number, token="t")) == [str(number)]
    assert answered(worker, step("k1", "s", "1", number=3, token="t")) == [APPLIED]
    assert answered(worker, step("k2", "s", "1", number=7, token="t")) == ["7"]
    assert answered(worker, step("k3", "s", "5", number=7, token="t")) == [DIFFERS]
    assert answered(worker, step("k4", "s", "1", number=9, token="t")) == [GAP]
    assert answered(worker, step("k5", "s", "1", number=1, token="u")) == [OPEN]
    assert answered(worker, step("k6", "s", "1")) == ["8"], "a step without a number is the next one"
    close(worker, s="ended")
    assert answered(worker, step("k7", "s", "1", number=9, token="t")) == [UNKNOWN]
