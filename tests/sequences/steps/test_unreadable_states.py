"""A stored state that a worker's code cannot read: its sequence can only be begun anew there, and goes on elsewhere."""

import pytest
from tests.sequences.steps.stepping import TOTAL, Make, answered, step, told
from tests.unit.ts.frontend_stub import Worker

from ts.protocol.messages import StepHistory

UNREADABLE = (500, "handler_error")
ELSEWHERE = "another machine/1/1"

#: A handler whose totals are of a class that other handlers have no decoder for.
FRACTIONS = """
    from fractions import Fraction
    from ts.sequence import SequenceCache

    class Handler:
        def initialize(self, context):
            self.cache = SequenceCache(context, encoders={Fraction: (str, Fraction)})

        def handle(self, data, context):
            return [self.step(context.get_sequence_id(index), row["body"]) for index, row in enumerate(data)]

        def step(self, sequence_id, body):
            self.cache[sequence_id] = self.cache.get(sequence_id, Fraction(0)) + int(body)
            return int(self.cache[sequence_id])
"""


@pytest.fixture
def worker(durable_worker: Make) -> Worker:
    """A worker that cannot read the state of the sequence ``s``, whose total is 5."""
    assert answered(durable_worker(FRACTIONS, owner=ELSEWHERE, lease=0.0), step("j0", "s", "5", request_id="r")) == [
        "5"
    ]
    return durable_worker(TOTAL)


def test_a_step_that_needs_the_state_is_refused(worker: Worker) -> None:
    assert answered(worker, step("j1", "s", "1")) == [UNREADABLE]
    assert answered(worker, step("j2", "s", "1")) == [UNREADABLE]


def test_a_start_marker_begins_the_sequence_anew(worker: Worker) -> None:
    assert answered(worker, step("j1", "s", "1", start=True)) == ["1"]
    assert answered(worker, step("j2", "s", "2")) == ["3"]


def test_a_start_marker_is_served_after_a_refusal_and_beside_one(worker: Worker) -> None:
    assert answered(worker, step("j1", "s", "1")) == [UNREADABLE]
    assert answered(worker, step("j2", "s", "1"), step("j3", "s", "2", start=True)) == [UNREADABLE, "2"]
    assert answered(worker, step("j4", "s", "1")) == ["3"]


def test_a_step_behind_a_start_marker_goes_on_from_its_state(worker: Worker) -> None:
    assert answered(worker, step("j1", "s", "1", start=True), step("j2", "s", "2")) == ["1", "3"]


def test_a_repeated_start_gets_its_kept_answer(worker: Worker) -> None:
    assert answered(worker, step("j1", "s", "5", request_id="r", start=True)) == ["5"]
    assert answered(worker, step("j2", "s", "1")) == [UNREADABLE]


def test_a_repeated_step_gets_its_kept_answer(worker: Worker) -> None:
    assert answered(worker, step("j1", "s", "5", request_id="r"), step("j2", "t", "1")) == ["5", "1"]


@pytest.mark.parametrize(("request_id", "said"), [("r", "5"), ("other", (500, "not_applied"))])
def test_a_client_can_ask_for_a_kept_answer(worker: Worker, request_id: str, said: object) -> None:
    asked = step("j1", "s", "1", request_id=request_id)
    worker.admit_frame([asked], {"j1": StepHistory(0.0, False, "not_applied")})
    worker.runtime.step()
    assert told(worker, asked) == said
    assert answered(worker, step("j2", "s", "1")) == [UNREADABLE]


def test_whoever_can_read_the_state_goes_on_after_a_refusal(worker: Worker, durable_worker: Make) -> None:
    assert answered(worker, step("j1", "s", "1")) == [UNREADABLE]
    elsewhere = durable_worker(FRACTIONS, owner=ELSEWHERE)
    assert answered(elsewhere, step("j2", "s", "1")) == ["6"]


def test_a_step_that_starts_anew_and_fails_leaves_the_state(worker: Worker, durable_worker: Make) -> None:
    assert answered(worker, step("j1", "s", "boom", start=True)) == [(503, "")]
    assert answered(worker, step("j2", "s", "1")) == [UNREADABLE]
    assert answered(worker, step("j3", "s", "1", start=True)) == ["1"]


@pytest.mark.parametrize(("start", "restart"), [(True, False), (False, True)])
def test_a_first_step_that_arrives_late_once_more_leaves_the_state_to_whoever_can_read_it(
    durable_worker: Make, start: bool, restart: bool
) -> None:
    elsewhere = durable_worker(FRACTIONS, owner=ELSEWHERE, lease=0.0)
    answered(elsewhere, step("j0", "s", "5", request_id="r", start=start), step("j1", "s", "1"))
    worker = durable_worker(TOTAL, restart_expired=restart)
    assert answered(worker, step("j2", "s", "5", request_id="r", start=start)) == ["5"]
    assert answered(durable_worker(FRACTIONS, owner=ELSEWHERE), step("j3", "s", "1")) == ["7"]
