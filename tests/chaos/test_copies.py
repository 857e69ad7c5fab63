"""What may be said to a late copy of a step, and what would contradict that which the client was told."""

import pytest
from tests.chaos.attempts import Attempt, Incarnation, Result, Step
from tests.chaos.copies import what_contradicts


def told(status: int, cause: str) -> Attempt:
    return Attempt(Result.REFUSED, status, cause)


def answered(*tokens: str, of: str = "A") -> Attempt:
    return Attempt(Result.ANSWERED, 200, tokens=list(tokens), incarnation=of)


APPLIED, DIFFERS, GAP = told(409, "step_applied"), told(409, "step_differs"), told(409, "step_gap")
ENDED, EXPIRED, UNKNOWN = told(410, "sequence_ended"), told(410, "sequence_expired"), told(410, "sequence_unknown")
FAILED, MOVED = told(503, "handler_error"), told(409, "sequence_moved")
OPEN, OVER, LEFT = Incarnation("A", last=3), Incarnation("A", last=3, over=True), Incarnation("A", last=3, left=True)
ACKNOWLEDGED, FAILED_BEFORE = Step("t2", number=2, answer=["t1", "t2"]), Step("t2", number=2)
FAILED_LAST = Step("t4", number=4)


@pytest.mark.parametrize(
    ("step", "incarnation", "attempt"),
    [
        *[(ACKNOWLEDGED, OPEN, attempt) for attempt in (answered("t1", "t2"), APPLIED, MOVED)],
        (ACKNOWLEDGED, LEFT, ENDED),
        (FAILED_BEFORE, OPEN, DIFFERS),
        (FAILED_LAST, OVER, EXPIRED),
        (FAILED_LAST, OVER, ENDED),
    ],
)
def test_an_answer_given_before_and_true_refusals_contradict_nothing(
    step: Step, incarnation: Incarnation, attempt: Attempt
) -> None:
    assert not what_contradicts(step, incarnation, attempt, is_same=True)


@pytest.mark.parametrize(
    ("step", "incarnation", "attempt"),
    [
        *[(ACKNOWLEDGED, OPEN, attempt) for attempt in (answered("t1", "t2", "t3", "t2"), answered("t2"))],
        *[(ACKNOWLEDGED, OPEN, attempt) for attempt in (DIFFERS, GAP, ENDED, EXPIRED, UNKNOWN, FAILED)],
        (ACKNOWLEDGED, LEFT, answered("t1", "t2", of="B")),
        (FAILED_BEFORE, OPEN, answered("t1", "t2")),
        (FAILED_LAST, OVER, answered("t4")),
        (FAILED_LAST, OVER, APPLIED),
    ],
)
def test_what_is_applied_again_or_refused_for_no_true_reason_contradicts(
    step: Step, incarnation: Incarnation, attempt: Attempt
) -> None:
    assert what_contradicts(step, incarnation, attempt, is_same=True)


def test_another_body_differs_and_has_no_answer() -> None:
    assert not what_contradicts(ACKNOWLEDGED, OPEN, DIFFERS, is_same=False)
    assert what_contradicts(ACKNOWLEDGED, OPEN, answered("t1", "t2"), is_same=False)
