"""What a worker has of a sequence, another one has after the hand-over: the state, and what is known of its steps."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.sequences.steps.stepping import answered, close, step
from tests.unit.ts.frontend_stub import Worker, row

from ts.protocol.messages import GIVE, STATE, TAKE

COUNTING = """
import numpy
import torch


class Handler:
    def initialize(self, context):
        self.elsewhere = {}

    def handle(self, data, context):
        return [self.step(context, index) for index in range(len(data))]

    def step(self, context, index):
        word = context.body(index).decode()
        if word == "elsewhere":
            return "kept elsewhere"
        state = context.state.get(index, {"count": 0, "sums": numpy.zeros(3), "hidden": torch.zeros(2)})
        state["count"] += 1
        state["sums"] += 1
        state["hidden"] += 1
        if word == "opaque":
            state["opaque"] = lambda: None
        if word == "large":
            state["large"] = bytes(2_000_000)
        context.state[index] = state
        if word == "fail":
            raise ValueError(word)
        return f"{state['count']} {state['sums'].sum():g} {state['hidden'].sum():g}"
"""
Make = Callable[..., Worker]


def give(worker: Worker, sequence_id: str) -> tuple[list[Any], list[Any]]:
    """Return a worker's answer to the question for a sequence, and the pieces that it has sent before."""
    sent: list[list[Any]] = []
    answer = worker.service.steps.hand_over(sent.append, 2**28)[GIVE](sequence_id, 7)
    assert all(message[:2] == [STATE, 7] for message in sent)
    return answer, [bytes(message[2]) for message in sent]


def take(worker: Worker, sequence_id: str, size: int, pieces: list[Any]) -> list[Any]:
    for piece in pieces:
        worker.service.steps.add_state(sequence_id, piece)
    return worker.service.steps.hand_over(lambda message: None, 2**28)[TAKE](sequence_id, size)


def move(giver: Worker, taker: Worker, sequence_id: str) -> list[Any]:
    """Move a sequence as the server does; return what the taker says."""
    (size,), pieces = give(giver, sequence_id)
    answer = take(taker, sequence_id, size, pieces)
    close(*((giver,) if not answer else (taker,)), **{sequence_id: "suspended"})
    return answer


@pytest.fixture
def pair(worker_of: Make) -> tuple[Worker, Worker]:
    return worker_of(COUNTING), worker_of(COUNTING)


def test_the_next_step_continues_the_state_at_the_other_worker(pair: tuple[Worker, Worker]) -> None:
    one, other = pair
    assert answered(one, step("a", "s", "x"), step("b", "t", "x")) == ["1 3 2", "1 3 2"]
    assert move(one, other, "s") == []
    assert answered(other, step("c", "s", "x")) == ["2 6 4"]
    assert answered(one, step("d", "t", "x")) == ["2 6 4"]
    assert "s" not in one.service.context.sequence_cache


def test_a_state_of_many_pieces_arrives(pair: tuple[Worker, Worker]) -> None:
    one, other = pair
    answered(one, step("a", "s", "large"))
    assert len(give(one, "s")[1]) > 3
    assert move(one, other, "s") == []
    assert answered(other, step("b", "s", "x")) == ["2 6 4"]


def test_steps_are_recognized_that_the_other_worker_has_applied(pair: tuple[Worker, Worker]) -> None:
    one, other = pair
    for number in (1, 2):
        answered(one, step(f"a{number}", "s", "x", number=number, token="mine"))
    assert move(one, other, "s") == []
    assert answered(other, step("b", "s", "x", number=2, token="mine")) == ["2 6 4"]
    assert answered(other, step("c", "s", "y", number=2, token="mine")) == [(409, "step_differs")]
    assert answered(other, step("d", "s", "x", number=4, token="mine")) == [(409, "step_gap")]
    assert answered(other, step("e", "s", "x", number=3, token="mine")) == ["3 9 6"]


def test_requests_are_recognized_by_their_ids(pair: tuple[Worker, Worker]) -> None:
    one, other = pair
    answered(one, step("a", "s", "x", request_id="first"))
    assert move(one, other, "s") == []
    assert answered(other, step("b", "s", "x", request_id="first")) == ["1 3 2"]
    assert answered(other, step("c", "s", "x", request_id="second")) == ["2 6 4"]


def test_a_sequence_moves_back_and_forth(pair: tuple[Worker, Worker]) -> None:
    one, _ = pair
    answered(one, step("a", "s", "x"))
    for number in range(4):
        assert move(*(pair if number % 2 == 0 else pair[::-1]), "s") == []
    assert answered(one, step("b", "s", "x")) == ["2 6 4"]


def test_a_step_that_fails_after_the_move_leaves_the_state_as_it_came(pair: tuple[Worker, Worker]) -> None:
    one, other = pair
    answered(one, step("a", "s", "x"))
    assert move(one, other, "s") == []
    assert answered(other, step("b", "s", "fail"))[0][0] == 503
    assert answered(other, step("c", "s", "x")) == ["2 6 4"]


def test_what_cannot_be_encoded_stays(pair: tuple[Worker, Worker]) -> None:
    one, _ = pair
    answered(one, step("a", "s", "opaque"))
    (reason, text), pieces = give(one, "s")
    assert (reason, pieces) == ("not_encodable", [])
    assert "state['opaque'] is a builtins.function, which cannot be stored" in text
    assert answered(one, step("b", "s", "x")) == ["2 6 4"]


def test_a_handler_that_keeps_its_states_elsewhere_keeps_them(pair: tuple[Worker, Worker]) -> None:
    one, _ = pair
    answered(one, step("a", "s", "elsewhere"))
    assert give(one, "s") == (["state_elsewhere", "the handler keeps no state in context.state"], [])


def test_there_must_be_room_without_an_eviction(worker_of: Make) -> None:
    one, other = worker_of(COUNTING), worker_of(COUNTING, capacity=1)
    answered(one, step("a", "s", "x"))
    answered(other, step("b", "t", "x"))
    assert move(one, other, "s")[0] == "no_room"
    assert answered(other, step("c", "t", "x")) == ["2 6 4"]
    assert answered(one, step("d", "s", "x")) == ["2 6 4"]


def test_a_state_that_is_lost_is_lost_at_the_other_worker(worker_of: Make) -> None:
    one, other = worker_of(COUNTING, capacity=1), worker_of(COUNTING)
    answered(one, step("a", "s", "x"))
    answered(one, step("b", "t", "x"))  # which takes the room of s
    assert move(one, other, "s") == []
    assert answered(other, step("c", "s", "x")) == [(410, "sequence_lost")]


def test_a_piece_that_is_missing_is_noticed(pair: tuple[Worker, Worker]) -> None:
    one, other = pair
    answered(one, step("a", "s", "large"))
    (size,), pieces = give(one, "s")
    assert take(other, "s", size, pieces[:-1])[0] == "failed"
    assert answered(other, step("b", "s", "x")) == ["1 3 2"], "nothing of it is left"


def test_what_is_not_taken_in_the_end_leaves_nothing(pair: tuple[Worker, Worker]) -> None:
    one, other = pair
    answered(one, step("a", "s", "large"))
    (size,), pieces = give(one, "s")
    for piece in pieces[:2]:
        other.service.steps.add_state("s", piece)
    close(other, s="suspended")
    assert take(other, "s", size, pieces) == []
    assert answered(other, step("b", "s", "x")) == ["2 6 4"]


def test_a_running_step_keeps_its_sequence(worker_of: Make) -> None:
    one = worker_of(COUNTING)
    one.runtime.begin_rows([row("a", b"x", headers=[("ts_request_sequence_id", "s")])])
    assert give(one, "s") == (["failed", "a step of it runs"], [])


def test_the_handler_hears_nothing_of_a_sequence_that_it_did_not_get(
    worker_of: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    hook = """
    def on_sequence_end(self, sequence_id, reason):
        print(sequence_id, reason)
"""
    one, other = worker_of(COUNTING), worker_of(COUNTING + hook)
    answered(one, step("a", "s", "x"))
    answered(other, step("b", "t", "x"))
    for piece in give(one, "s")[1]:
        other.service.steps.add_state("s", piece)
    close(other, s="suspended", t="ended")
    assert capsys.readouterr().out == "t ended\n"
    assert move(one, other, "s") == []
