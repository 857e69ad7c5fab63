"""`Arena`: whatever is appended, forgotten, forked and moved, each state has the tensors that it was made with."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.sequences.steps.stepping import Make, answered, step
from tests.unit.ts.frontend_stub import Worker

from ts.context import Context
from ts.sequence import SequenceCache
from ts.sequence import arena as arena_module
from ts.sequence.arena import UNIT, Arena, ArenaFull, ArenaState, Field
from ts.sequence.encoding import StateEncoding

HIDDEN = {"hidden": Field((3,)), "count": Field((), torch.int64)}
GROWING = {"keys": Field((2, 4), grows=1), "tokens": Field((), torch.int64, grows=0)}
UNIT_OF_GROWING = UNIT * (8 * 4 + 8)


def context() -> Context:
    return Context("model", "/model", None, 8, None, "1.0")


def arena_of(spec: dict[str, Field], units: int, shared: Context | None = None) -> Arena:
    size = UNIT_OF_GROWING if spec is GROWING else 3 * 4 + 8
    return Arena(shared or context(), spec, most_bytes=(units + 1) * size)


def cache_of(shared: Context) -> SequenceCache:
    shared.cache_settings = {"capacity": 1000}
    return SequenceCache(shared)


def rows_of(*values: int) -> dict[str, torch.Tensor]:
    return {"hidden": torch.tensor(values).float()[:, None].repeat(1, 3), "count": torch.tensor(values)}


def test_each_row_has_its_tensors_and_a_sequence_begins_with_zeros() -> None:
    arena = arena_of(HIDDEN, 8)
    one, two = arena.scatter(rows_of(1, 2))
    found = arena.gather([two, None, one])
    assert found["hidden"].tolist() == [[2.0] * 3, [0.0] * 3, [1.0] * 3]
    assert found["count"].tolist() == [2, 0, 1]


def test_memory_is_free_as_soon_as_no_state_refers_to_it() -> None:
    arena = arena_of(HIDDEN, 8)
    states = arena.scatter(rows_of(1, 2))
    assert arena.used_bytes == 2 * arena.unit_bytes
    states = arena.scatter(rows_of(3, 4))
    assert arena.used_bytes == 2 * arena.unit_bytes
    del states
    assert arena.used_bytes == 0


def test_what_is_used_least_moves_to_the_host_and_comes_back() -> None:
    shared = context()
    arena, cache = arena_of(HIDDEN, 4, shared), cache_of(shared)
    for value in range(20):
        (cache[str(value)],) = arena.scatter(rows_of(value))
    assert arena.used_bytes <= 4 * arena.unit_bytes
    assert [name for name, state in cache.items() if state.units] == ["19", "18", "17", "16"]
    for begin in range(0, 20, 4):
        rows = range(begin, begin + 4)
        assert arena.gather([cache[str(row)] for row in rows])["count"].tolist() == list(rows)


def test_a_batch_that_does_not_fit_is_refused_with_the_sizes() -> None:
    arena = arena_of(HIDDEN, 4)
    kept = arena.scatter(rows_of(1, 2))
    with pytest.raises(ArenaFull, match="need 100 more bytes, and the arena has 40 of 80 for them"):
        arena.scatter(rows_of(*range(5)))
    assert arena.gather(kept)["count"].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("tensors", "problem"),
    [
        ({"hidden": torch.zeros(2, 3)}, r"the fields are \['hidden'\]; this arena has \['count', 'hidden'\]"),
        ({**rows_of(1, 2), "more": torch.zeros(2)}, "the fields are"),
        ({**rows_of(1, 2), "hidden": torch.zeros(2, 4)}, r"field 'hidden' has the shape \[2, 4\]; \[2, 3\] is right"),
        ({**rows_of(1, 2), "count": torch.zeros(3)}, "field 'count' has the shape"),
    ],
)
def test_tensors_that_do_not_fit_the_spec_are_refused(tensors: dict[str, torch.Tensor], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        arena_of(HIDDEN, 8).scatter(tensors)


def test_an_arena_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="either all of its fields grow or none does"):
        Arena(context(), HIDDEN | GROWING, most_bytes=1 << 20)
    with pytest.raises(ValueError, match="at least one field"):
        Arena(context(), {}, most_bytes=1 << 20)
    with pytest.raises(ValueError, match="most_bytes=30 holds no state: a unit of this arena has 20 bytes"):
        Arena(context(), HIDDEN, most_bytes=30)
    shared = context()
    Arena(shared, HIDDEN, most_bytes=1 << 10)
    with pytest.raises(ValueError, match="a handler has one Arena"):
        Arena(shared, HIDDEN, most_bytes=1 << 10)
    cached = context()
    SequenceCache(cached)
    with pytest.raises(ValueError, match="make the Arena before the SequenceCache"):
        Arena(cached, HIDDEN, most_bytes=1 << 10)


def test_what_grows_is_appended_to_and_what_does_not_is_replaced() -> None:
    with pytest.raises(ValueError, match="use append"):
        arena_of(GROWING, 4).scatter({})
    with pytest.raises(ValueError, match="use scatter"):
        arena_of(HIDDEN, 4).append([], {})


def entries(*rows: list[int]) -> dict[str, torch.Tensor]:
    """Entries whose values tell them apart."""
    tokens = torch.tensor(rows)
    return {"tokens": tokens, "keys": tokens[:, None, :, None].repeat(1, 2, 1, 4).float()}


def tokens_of(arena: Arena, states: list[ArenaState | None]) -> list[list[int]]:
    """The tokens of each row, after a look at its keys."""
    found, lengths = arena.gather(states), arena.lengths(states).tolist()
    told = []
    for row, length in enumerate(lengths):
        tokens = found["tokens"][row, :length]
        assert torch.equal(found["keys"][row, :, :length], tokens[None, :, None].repeat(2, 1, 4).float())
        told.append(tokens.tolist())
    return told


def test_what_others_have_left_in_the_memory_is_not_seen() -> None:
    arena = arena_of(GROWING, 8)
    nan = {"keys": torch.full((1, 2, 30, 4), torch.nan), "tokens": torch.ones((1, 30), dtype=torch.int64)}
    (spoilt,) = arena.append([None], nan)
    fork = arena.first(spoilt, 3)  # of NaN itself, with NaN of the other one behind it
    del spoilt
    entries = {"keys": torch.ones((2, 2, 20, 4)), "tokens": torch.ones((2, 20), dtype=torch.int64)}
    short, long = arena.append([None, None], entries, [3, 20])
    found = arena.gather([fork, short, long])
    assert found["keys"].isnan().sum() == 3 * 8
    assert found["tokens"].sum(1).tolist() == [3, 3, 20]


def test_a_state_can_be_continued_in_two_ways() -> None:
    arena = arena_of(GROWING, 20)
    (root,) = arena.append([None], entries(list(range(UNIT + 3))))
    left, right = arena.append([root, root], entries([100, 101], [200, 201]))
    (further,) = arena.append([left], entries([102] * UNIT))
    assert tokens_of(arena, [root, left, right, further]) == [
        [*range(UNIT + 3)],
        [*range(UNIT + 3), 100, 101],
        [*range(UNIT + 3), 200, 201],
        [*range(UNIT + 3), 100, 101, *[102] * UNIT],
    ]
    assert arena.used_bytes == 4 * arena.unit_bytes, "the first unit is shared by all, the second by three"


def test_a_state_of_the_first_entries_shares_their_memory() -> None:
    arena = arena_of(GROWING, 20)
    (whole,) = arena.append([None], entries(list(range(2 * UNIT + 5))))
    short, even = arena.first(whole, UNIT + 3), arena.first(whole, UNIT)
    assert arena.used_bytes == 3 * arena.unit_bytes
    branches = arena.append([short, even], entries([100], [200]))
    arena.move_to_host([whole, short, even, *branches])
    assert arena.used_bytes == 0
    assert tokens_of(arena, [whole, short, even, *branches, arena.first(whole, 2)]) == [
        [*range(2 * UNIT + 5)],
        [*range(UNIT + 3)],
        [*range(UNIT)],
        [*range(UNIT + 3), 100],
        [*range(UNIT), 200],
        [0, 1],
    ]
    for length in (0, 2 * UNIT + 6):
        with pytest.raises(ValueError, match="has no first"):
            arena.first(whole, length)


class Model:
    """What each state must have, beside an arena with little room."""

    def __init__(self, units: int) -> None:
        shared = context()
        self.arena, self.cache = arena_of(GROWING, units, shared), cache_of(shared)
        self.states: list[tuple[ArenaState | None, list[int]]] = [(None, [])]
        self.token = self.added = 0

    def new(self, count: int) -> list[int]:
        self.token += count
        return list(range(self.token - count, self.token))

    def add(self, state: ArenaState, tokens: list[int]) -> None:
        self.states.append((state, tokens))
        self.added += 1
        self.cache[str(self.added)] = state

    def append(self, picks: list[int], counts: list[int]) -> None:
        rows = [self.states[pick % len(self.states)] for pick in picks]
        counts = [counts[row % len(counts)] for row in range(len(rows))]
        width = max(counts)
        new = [self.new(width) for _ in rows]
        try:
            grown = self.arena.append([state for state, _ in rows], entries(*new), counts)
        except ArenaFull:
            return
        for (_, before), state, tokens, count in zip(rows, grown, new, counts, strict=True):
            self.add(state, before + tokens[:count])

    def forget(self, pick: int) -> None:
        if len(self.states) > 1:
            forgotten, _ = self.states.pop(1 + pick % (len(self.states) - 1))
            for name in [name for name, state in self.cache.items() if state is forgotten]:
                del self.cache[name]

    def move(self, pick: int) -> None:
        """Write a state and read it again, as a store does."""
        state, tokens = self.states[pick % len(self.states)]
        if state is not None:
            encoding = StateEncoding({ArenaState: (self.arena._encoded, self.arena._decoded)})
            self.add(encoding.decode(encoding.encode(state)), tokens)

    def check(self) -> None:
        for state, tokens in self.states:
            try:
                assert tokens_of(self.arena, [state]) == [tokens]
            except ArenaFull:
                assert -(-len(tokens) // UNIT) > self.arena.capacity


numbers = st.integers(0, 1000)
acts = st.one_of(
    st.tuples(st.just("append"), st.lists(numbers, min_size=1, max_size=4), st.lists(st.integers(1, 40), min_size=1)),
    st.tuples(st.just("forget"), numbers),
    st.tuples(st.just("move"), numbers),
)


@settings(max_examples=examples(75))
@given(st.integers(3, 12), st.lists(acts, max_size=25))
def test_any_order(units: int, done: list[Any]) -> None:
    model = Model(units)
    for name, *arguments in done:
        getattr(model, name)(*arguments)
        model.check()
    model.states.clear()
    model.cache.clear()
    assert model.arena.used_bytes == 0


HANDLER = """
import torch
from ts.sequence.arena import Arena, Field

class Handler:
    def initialize(self, context):
        self.arena = Arena(context, {"total": Field((1,))}, most_bytes=5 * 4)

    def handle(self, data, context):
        rows = range(len(data))
        totals = self.arena.gather([context.state.get(row) for row in rows])["total"]
        bodies = [context.body(row).decode() for row in rows]
        totals = totals + torch.tensor([[float(body.strip("!"))] for body in bodies])
        for row, state in zip(rows, self.arena.scatter({"total": totals})):
            context.state[row] = state
            if bodies[row].endswith("!"):
                context.fail(row, "not this one")
        return [str(int(total)) for total in totals]
"""


@pytest.fixture(params=["memory", "file"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def worker(make_worker: Callable[..., Worker], cache_settings: Callable[..., Any]) -> Worker:
    return make_worker(HANDLER, sequences=True, cache=cache_settings())


def test_a_handler_steps_more_sequences_than_its_arena_holds(worker: Worker) -> None:
    for turn in range(3):
        for pair in range(5):
            rows = [step(f"j{turn}.{pair}.{row}", f"s{2 * pair + row}", str(2 * pair + row)) for row in range(2)]
            assert answered(worker, *rows) == [str((turn + 1) * (2 * pair + row)) for row in range(2)]


def test_a_step_that_fails_leaves_the_state_in_the_arena_as_it_was(worker: Worker) -> None:
    assert answered(worker, step("j1", "s", "5"), step("j2", "t", "7")) == ["5", "7"]
    assert answered(worker, step("j3", "s", "1!"), step("j4", "t", "1")) == [(400, ""), "8"]
    assert answered(worker, step("j5", "s", "1"), step("j6", "t", "1")) == ["6", "9"]


@pytest.mark.parametrize("kind", ["file"])
def test_a_stored_arena_outlives_the_worker(durable_worker: Make) -> None:
    assert answered(durable_worker(HANDLER), step("j1", "s", "5")) == ["5"]
    assert answered(durable_worker(HANDLER), step("j2", "s", "2")) == ["7"]


@pytest.mark.parametrize("kind", ["file"])
def test_what_a_batch_stores_leaves_the_device_in_one_copy(
    durable_worker: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies: list[int] = []
    to_host = arena_module.to_host

    def counted(tensor: torch.Tensor) -> torch.Tensor:
        copies.append(len(tensor))
        return to_host(tensor)

    monkeypatch.setattr(arena_module, "to_host", counted)
    assert answered(durable_worker(HANDLER), step("j1", "s", "5"), step("j2", "t", "7")) == ["5", "7"]
    assert copies == [2]
