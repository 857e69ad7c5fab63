"""A large state that was sent ahead: only what has changed since follows, and the other worker has what there is."""

from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.sequences.steps.stepping import answered, close, step
from tests.unit.ts.frontend_stub import Worker, row

from ts.protocol.messages import GIVE, GIVE_AHEAD, GIVES_AHEAD, STATE_PIECE, TAKE
from ts.sequence.encoding import StateEncoding
from ts.sequences.handover.sent_ahead import changed_since, copy_of, put_together

GROWING = """
import numpy
import torch


class Handler:
    def initialize(self, context):
        pass

    def handle(self, data, context):
        return [self.step(context, index) for index in range(len(data))]

    def step(self, context, index):
        fresh = {"count": 0, "table": numpy.ones(5_000_000), "past": torch.zeros(0), "text": "x"}
        state = context.state.get(index, fresh)
        state["count"] += 1
        state["table"][state["count"]] = 7
        state["past"] = torch.cat([state["past"], torch.full((300_000,), float(state["count"]))])
        state["text"] *= 2
        if context.body(index) == b"small":
            state["table"] = state["table"][:100].copy()
        if context.body(index) == b"drop":
            del context.state[index]
            return "dropped"
        context.state[index] = state
        return f"{state['count']} {state['table'].sum():.0f} {state['past'].sum():.0f} {len(state['text'])}"
"""
Make = Callable[..., Worker]


class Giver:
    """A worker that gives the sequence s."""

    def __init__(self, worker: Worker) -> None:
        self.sent: list[bytes] = []
        self._questions = worker.service.steps.hand_over(lambda message: self.sent.append(bytes(message[2])), 2**28)

    def give(self, ahead: int | None) -> list[Any]:
        return list(self._questions[GIVE]("s", 7, ahead))

    def send_ahead(self) -> int:
        """Let it send all pieces; return how many there are."""
        sent, wanted = 0, 1
        while sent < wanted:
            sent, wanted = self._questions[GIVE_AHEAD]("s", 7, sent)
        assert len(self.sent) == wanted
        return wanted

    def drop(self) -> None:
        self._questions[GIVE_AHEAD]("s", 7, -1)


def take(taker: Worker, size: int, pieces: list[bytes], ahead: int) -> list[Any]:
    for piece in pieces:
        taker.service.steps.add_state("s", piece)
    return list(taker.service.steps.hand_over(lambda message: None, 2**28)[TAKE]("s", size, "", ahead))


@pytest.fixture
def pair(worker_of: Make) -> tuple[Worker, Worker]:
    return worker_of(GROWING), worker_of(GROWING)


def test_only_what_has_changed_follows(pair: tuple[Worker, Worker]) -> None:
    one, other = pair
    answered(one, step("a", "s", "x"))
    giver = Giver(one)
    assert giver.give(0) == [GIVES_AHEAD]
    ahead = giver.send_ahead()
    assert answered(one, step("b", "s", "x")) == ["2 5000012 900000 4"]
    (size,) = giver.give(ahead)
    assert size == sum(map(len, giver.sent[ahead:]))
    assert size < 3_500_000, "one piece of the table, and the end of the past"
    assert take(other, size, giver.sent, ahead) == []
    close(one, s="suspended")
    assert answered(other, step("c", "s", "x")) == ["3 5000018 1800000 8"]


def test_it_is_sent_in_turns_with_steps(pair: tuple[Worker, Worker]) -> None:
    one, _ = pair
    answered(one, step("a", "s", "x"))
    giver = Giver(one)
    first, wanted = one.service.steps.hand_over(giver.sent.append, 2**28)[GIVE_AHEAD]("s", 7, 0)
    assert first < wanted / 4


def test_a_small_state_moves_at_once(pair: tuple[Worker, Worker]) -> None:
    one, other = pair
    answered(one, step("a", "s", "small"))
    giver = Giver(one)
    (size,) = giver.give(0)
    assert take(other, size, giver.sent, 0) == []


@pytest.mark.parametrize("change", ["small", "drop"])
def test_a_state_may_become_small_or_go_meanwhile(pair: tuple[Worker, Worker], change: str) -> None:
    one, other = pair
    answered(one, step("a", "s", "x"))
    giver = Giver(one)
    ahead = giver.send_ahead()
    answered(one, step("b", "s", change))
    (size,) = giver.give(ahead)
    assert take(other, size, giver.sent, ahead) == []
    assert answered(other, step("c", "s", "x"))[0].split()[0] == {"small": "3", "drop": "1"}[change]


def test_all_of_it_follows_where_the_copy_is_gone(pair: tuple[Worker, Worker]) -> None:
    one, other = pair
    answered(one, step("a", "s", "x"))
    giver = Giver(one)
    ahead = giver.send_ahead()
    giver.drop()
    (size,) = giver.give(ahead)
    assert size > 40_000_000
    assert take(other, size, giver.sent, ahead) == []
    assert answered(other, step("b", "s", "x")) == ["2 5000012 900000 4"]


def test_the_copy_ends_with_its_sequence(pair: tuple[Worker, Worker]) -> None:
    one, _ = pair
    answered(one, step("a", "s", "x"))
    giver = Giver(one)
    giver.send_ahead()
    close(one, s="ended")
    answered(one, step("b", "s", "x"))
    del giver.sent[:]
    (size,) = giver.give(9)
    assert size > 40_000_000, "nothing of the earlier sequence is taken for sent"


@pytest.mark.parametrize("missing", [0, -1])
def test_a_piece_that_is_missing_is_noticed(pair: tuple[Worker, Worker], missing: int) -> None:
    one, other = pair
    answered(one, step("a", "s", "x"))
    giver = Giver(one)
    ahead = giver.send_ahead()
    (size,) = giver.give(ahead)
    del giver.sent[missing]
    assert take(other, size, giver.sent, ahead)[0] in {"failed", "not_encodable"}
    assert answered(other, step("b", "s", "x")) == ["1 5000006 300000 2"], "nothing of it is left"


def test_nothing_is_sent_ahead_while_a_step_runs(worker_of: Make) -> None:
    one = worker_of(GROWING)
    answered(one, step("a", "s", "x"))
    one.runtime.begin_rows([row("b", b"x", headers=[("ts_request_sequence_id", "s")])])
    assert Giver(one).give(0) == ["failed", "a step of it runs"]
    assert one.service.steps.hand_over(print, 2**28)[GIVE_AHEAD]("s", 7, 0) == ["failed", "a step of it runs"]


def test_a_state_that_is_too_large_is_not_sent_ahead(worker_of: Make) -> None:
    one = worker_of(GROWING)
    answered(one, step("a", "s", "x"))
    answer = one.service.steps.hand_over(print, 1_000_000)[GIVE_AHEAD]("s", 7, 0)
    assert answer[0] == "no_room"
    assert "no more than 1000000 are handed over" in answer[1]


sizes = st.lists(st.integers(0, 3 * STATE_PIECE), max_size=4)


@given(before=sizes, now=sizes, changed=st.sets(st.integers(0, 4 * STATE_PIECE), max_size=3))
def test_whatever_changes_the_parts_are_as_they_are_now(before: list[int], now: list[int], changed: set[int]) -> None:
    copy = copy_of([bytes(size) for size in before])
    parts = [bytearray(size) for size in now]
    for each in changed:
        part = parts[each % len(parts)] if parts else b""
        if isinstance(part, bytearray) and part:
            part[each % len(part)] = 1
    change = changed_since(copy, parts)
    ahead = [piece for part in copy for piece in part]
    put = put_together(change.makeup, ahead, memoryview(b"".join(change.rest)))
    assert [b"".join(part) for part in put] == parts


def test_arrays_and_tensors_come_back_from_pieces_as_what_they_were() -> None:
    encoding = StateEncoding()
    state = {
        "matrix": numpy.arange(600_000, dtype="float32").reshape(300, 2000),
        "moments": numpy.arange(100_000).astype("datetime64[s]"),
        "none": numpy.zeros((0, 3)),
        "tensor": torch.arange(400_000, dtype=torch.float16).reshape(4, -1),
        "numbers": [1, 2.5, None],
    }
    parts = encoding.encode_in_parts(state)
    assert len(parts) == 4
    pieces = [[part[at : at + 100_000] for at in range(0, len(part), 100_000)] for part in map(memoryview, parts)]
    again = encoding.decode(bytes(parts[0]), pieces)
    for name in ("matrix", "moments", "none"):
        assert again[name].dtype == state[name].dtype  # type: ignore[union-attr]
        assert (again[name] == state[name]).all()  # type: ignore[union-attr]
    assert torch.equal(again["tensor"], state["tensor"])  # type: ignore[arg-type]
    assert again["numbers"] == state["numbers"]
    again["matrix"][0, 0] = 5  # it can be changed in place, and resized
    again["matrix"].resize((2, 2), refcheck=False)
