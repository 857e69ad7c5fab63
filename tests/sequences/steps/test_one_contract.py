"""What every store keeps, memory included: a step that does not count changes nothing, a repetition repeats nothing."""

from collections.abc import Callable

import pytest
from tests.sequences.steps.conftest import KINDS
from tests.sequences.steps.served import Served
from tests.sequences.steps.stepping import TOTAL

Serve = Callable[..., Served]

# The state is a dict that is changed in place. A body: a number to be added, "bad" (the row fails half way), "raise".
STATE = """
    def handle(data, context):
        return [step(context, index) for index in range(len(data or []))]

    def step(context, index):
        word = context.body(index).decode()
        state = context.state.get(index) or {"total": 0}
        context.state[index] = state
        state["total"] += int(word) if word.isdigit() else 1000
        if word == "bad":
            context.fail(index, word, 422)
        if word == "raise":
            raise ValueError(word)
        return str(state["total"])
"""

# A row streams its number of further parts, one a step; "bad" streams and fails.
STREAM = """
    class Handler:
        def initialize(self, context):
            self.left = {}

        def handle(self, data, context):
            jobs = list(context.request_ids.values())
            results = []
            for index, job in enumerate(jobs):
                if job not in self.left:
                    word = context.body(index).decode()
                    self.left[job] = 2 if word == "bad" else int(word)
                    context.state[index] = (context.state.get(index) or []) + [word]
                else:
                    context.state[index] = context.state[index] + ["+"]
                self.left[job] -= 1
                if context.state[index][0] == "bad" and self.left[job] <= 0:
                    context.fail(index, "bad", 422)
                results.append("".join(context.state[index]) + " ")
            context.stopping_criteria = [lambda result, job=job: self.left[job] <= 0 for job in jobs]
            return results
"""


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[TOTAL, STATE], ids=["SequenceCache", "context.state"])
def totals(served: Serve, request: pytest.FixtureRequest) -> Served:
    return served(request.param)


FAILS = {"context.state": [("bad", 422), ("raise", 503)], "SequenceCache": [("unsendable", 503), ("boom", 503)]}


@pytest.fixture(params=["the row", "the batch"])
def failing(request: pytest.FixtureRequest) -> tuple[str, int]:
    """The body of a step that fails, and what it is told."""
    source = request.node.callspec.params["totals"]
    return FAILS["SequenceCache" if source is TOTAL else "context.state"][request.param == "the batch"]


def test_a_last_step_that_fails_ends_nothing(totals: Served, failing: tuple[str, int]) -> None:
    body, status = failing
    for number in (1, 2):
        assert totals.say("s", "1", number=number, token="t") == str(number)
    assert totals.say("s", body, number=3, token="t", end=True) == status
    assert totals.say("s", body, number=3, token="t", end=True) == status
    assert totals.say("s", "1", number=3, token="t", end=True) == "3"
    assert totals.say("s", "1", number=4, token="t") == "sequence_ended"


def test_a_last_step_with_an_id_that_fails_ends_nothing(totals: Served, failing: tuple[str, int]) -> None:
    body, status = failing
    assert totals.say("s", "1", request_id="a") == "1"
    assert totals.say("s", body, request_id="b", end=True) == status
    assert totals.say("s", "1", request_id="b", end=True) == "2"


@pytest.mark.parametrize(
    ("claims", "cause"),
    [
        ({"number": 4, "token": "t"}, "step_gap"),
        ({"number": 2, "token": "t"}, "step_differs"),
        ({"number": 3, "token": "another"}, "sequence_unknown"),
        ({"token": "another"}, "sequence_unknown"),
        ({"number": 1, "token": "another"}, "sequence_open"),
    ],
)
def test_a_refused_request_with_the_end_marker_ends_nothing(totals: Served, claims: dict, cause: str) -> None:
    for number in (1, 2):
        assert totals.say("s", "1", number=number, token="t") == str(number)
    assert totals.say("s", "7", **claims, end=True) == cause
    assert totals.say("s", "1", number=3, token="t") == "3"


@pytest.mark.parametrize("number", [1, 2])
def test_a_repetition_with_the_end_marker_ends_nothing(totals: Served, number: int) -> None:
    for each in (1, 2, 3):
        assert totals.say("s", "1", number=each, token="t") == str(each)
    assert totals.say("s", "1", number=number, token="t", end=True) == str(number)
    assert totals.open == {"s"}
    assert totals.say("s", "1", number=4, token="t") == "4"


def test_a_repetition_of_the_last_step_leaves_the_next_sequence_alone(totals: Served) -> None:
    assert totals.say("s", "1", request_id="a", start=True) == "1"
    assert totals.say("s", "1", request_id="b", end=True) == "2"
    assert totals.say("s", "5", request_id="c", start=True) == "5"
    assert totals.say("s", "5", request_id="c", start=True, end=True) == "5"
    assert totals.say("s", "5", request_id="d") == "10"


def test_a_start_that_fails_leaves_the_sequence_as_it_was(totals: Served, failing: tuple[str, int]) -> None:
    body, status = failing
    assert totals.say("s", "5", number=1, token="t") == "5"
    for _ in range(2):
        assert totals.say("s", body, number=1, token="u", start=True) == status
    assert totals.say("s", "5", number=1, token="t") == "5"
    assert totals.say("s", "1", number=2, token="t") == "6"
    assert totals.say("s", "2", number=1, token="u", start=True) == "2"
    assert totals.say("s", "1", number=3, token="t") == "sequence_ended"


def test_a_first_step_that_fails_begins_nothing(totals: Served, failing: tuple[str, int]) -> None:
    body, status = failing
    assert totals.say("s", body, number=1, token="t") == status
    assert totals.say("s", "1", number=2, token="t") == "sequence_unknown"
    assert totals.say("s", "1", number=1, token="t") == "1"


def test_a_token_of_a_server_begins_nothing(totals: Served, served: Serve, kind: str) -> None:
    """A client that sends on the token of its last answer is told that its sequence is lost, with a restart too."""
    token = totals.token("s", "1")
    assert totals.say("s", "1", token=token) == "2"
    for claims in ({}, {"number": 1}, {"start": True}):
        assert totals.say("never begun", "1", token=token, **claims) == "sequence_unknown"
    if kind == "memory":
        restarted = served(TOTAL)
        assert restarted.say("s", "1", token=token) == "sequence_unknown"
        assert restarted.open == set()
        assert restarted.say("s", "1") == "1", "as with TorchServe, which knows no tokens"


# Continuous batching


def test_a_start_ends_the_stream_of_the_sequence_before(served: Serve) -> None:
    model = served(STREAM, continuous=True)
    stream = model.submit("s", "9", number=1, token="t")
    model.step()
    assert model.part(stream) == "9 "
    started = model.submit("s", "1", number=1, token="u", start=True)
    model.step()
    assert model.told(stream) == "sequence_moved"
    assert model.told(started) == "1 ", "nothing of the one before"
    assert model.say("s", "1", number=2, token="u") == "11 "


def test_a_start_that_fails_leaves_what_was_applied_before_the_stream_that_it_has_ended(served: Serve) -> None:
    model = served(STREAM, continuous=True)
    assert model.say("s", "1", number=1, token="t") == "1 "
    stream = model.submit("s", "9", number=2, token="t")
    model.step()
    started = model.submit("s", "bad", number=1, token="u", start=True)
    for _ in range(3):
        model.step()
    assert model.part(stream) == "19 " and model.told(stream) == "sequence_moved"
    model.part(started)
    assert model.told(started) == 422
    assert model.say("s", "1", number=2, token="t") == "11 "


def test_a_start_that_a_further_start_has_ended_was_not_applied(served: Serve) -> None:
    model = served(STREAM, continuous=True)
    one = model.submit("s", "9", number=1, token="t", start=True)
    model.step()
    other = model.submit("s", "1", number=1, token="u", start=True)
    model.step()
    model.part(one)
    assert (model.told(one), model.told(other)) == ("sequence_moved", "1 ")
    assert model.say("s", "1", number=1, token="t", start=True) == "1 ", "its client was told to send it again"


def test_what_a_step_counts_beside_a_stream_counts_the_stream(served: Serve) -> None:
    model = served(STREAM, continuous=True)
    stream = model.submit("s", "3", number=1, token="t")
    model.step()
    assert model.say("s", "1", number=2, token="t") == "3+1 "
    again = model.submit("s", "3", number=1, token="t")
    model.step()
    assert model.told(stream) == "3 3+ 3+1+ "
    assert model.told(again) == "3 3+ "
    assert model.say("s", "3", number=1, token="t") == "3 3+ 3+1+ "


def test_a_step_that_fails_beside_a_stream_undoes_both(served: Serve) -> None:
    model = served(STREAM.replace('context.state[index][0] == "bad"', '"bad" in context.state[index]'), continuous=True)
    assert model.say("s", "1", number=1, token="t") == "1 "
    stream = model.submit("s", "9", number=2, token="t")
    model.step()
    failing = model.submit("s", "bad", number=3, token="t")
    model.step()
    model.step()
    model.part(failing)
    assert model.told(failing) == 422
    model.part(stream), model.part(stream)
    assert model.told(stream) == "sequence_moved"
    assert model.say("s", "1", number=2, token="t") == "11 "
