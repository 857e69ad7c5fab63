"""Fields with a window: whatever happens, a state has the first entries that are pinned and the last ones, and no more.

The reference keeps all entries of each state and cuts.
"""

from collections.abc import Callable
from itertools import accumulate, chain, pairwise
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
from ts.sequence.arena import Arena, ArenaFull, ArenaState, Field
from ts.sequence.arena_window import Units, Window
from ts.sequence.encoding import StateEncoding
from ts.sequence.state_error import StateError

Tensors = dict[str, torch.Tensor]


def context(**config: Any) -> Context:
    return Context("model", "/model", None, 8, None, "1.0", model_yaml_config=config)


def fields(keys: Window, tokens: Window) -> dict[str, Field]:
    return {
        "keys": Field((2, 4), grows=1, window=keys.size, pinned=keys.pinned),
        "tokens": Field((), torch.int64, grows=0, window=tokens.size, pinned=tokens.pinned),
    }


def entries(*rows: list[int]) -> Tensors:
    """Entries whose values tell them apart."""
    tokens = torch.tensor(rows, dtype=torch.int64)
    return {"tokens": tokens, "keys": tokens[:, None, :, None].repeat(1, 2, 1, 4).float()}


def cut(tokens: list[int], window: Window) -> tuple[list[int], list[int]]:
    """What the reference has: the kept tokens and their positions, with zeros and -1 before a short row."""
    places = range(len(tokens))
    kept = [place for place in places if place < window.pinned or place >= len(tokens) - window.size]
    missing = window.width - len(kept)
    return [0] * missing + [tokens[place] for place in kept], [-1] * missing + kept


def check_rows(
    arena: Arena, windows: dict[str, Window], states: list[ArenaState | None], rows: list[list[int]]
) -> None:
    found, positions = arena.gather(states), arena.positions(states)
    assert arena.lengths(states).tolist() == list(map(len, rows))
    for row, tokens in enumerate(rows):
        kept, places = cut(tokens, windows["tokens"])
        assert (found["tokens"][row].tolist(), positions["tokens"][row].tolist()) == (kept, places)
        kept, places = cut(tokens, windows["keys"])
        assert torch.equal(found["keys"][row], torch.tensor(kept)[None, :, None].repeat(2, 1, 4).float())
        assert positions["keys"][row].tolist() == places


WINDOWS = st.builds(Window, st.sampled_from([1, 2, 5, 16, 17, 40, 150]), st.sampled_from([0, 1, 3, 16, 20]))


class Model:
    """States in an arena, and all the tokens that each has had."""

    def __init__(self, keys: Window, tokens: Window, room: int) -> None:
        shared = context(maxNumSequence=room, batchSize=1)
        self.windows = {"keys": keys, "tokens": tokens}
        self.arena = Arena(shared, fields(keys, tokens))
        self.encoding = StateEncoding({ArenaState: (self.arena._encoded, self.arena._decoded)})
        shared.cache_settings = {"capacity": 1000}
        self.cache = SequenceCache(shared)
        self.states: list[tuple[ArenaState | None, list[int]]] = [(None, [])]
        self.token = self.added = 0

    def new(self, count: int) -> list[int]:
        self.token += count
        return list(range(self.token - count, self.token))

    def add(self, state: ArenaState, tokens: list[int]) -> None:
        self.states.append((state, tokens))
        self.added += 1
        self.cache[str(self.added)] = state

    def pick(self, pick: int) -> tuple[ArenaState | None, list[int]]:
        return self.states[pick % len(self.states)]

    def append(self, picks: list[int], counts: list[int]) -> None:
        """A step of a batch; a state that is picked twice is forked, and one that was continued before is undone."""
        rows = [self.pick(pick) for pick in picks]
        counts = [counts[row % len(counts)] for row in range(len(rows))]
        new = [self.new(max(counts)) for _ in rows]
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

    def store(self, pick: int) -> None:
        """A checkpoint: the state is written whole and read by another worker."""
        state, tokens = self.pick(pick)
        if state is not None:
            self.add(self.encoding.decode(self.encoding.encode(state)), tokens)

    def log(self, picks: list[int], counts: list[int]) -> None:
        """Steps are written to logs, from which states are made again."""
        rows = [self.pick(pick) for pick in picks]
        new = [[self.new(count) for count in counts[row:]] for row in range(len(rows))]
        logs = [[{name: each[0] for name, each in entries(tokens).items()} for tokens in row] for row in new]
        logs = self.encoding.decode(self.encoding.encode(logs))
        try:
            made = self.arena.rebuild([state for state, _ in rows], logs)
        except ArenaFull:
            return
        for (_, before), state, tokens in zip(rows, made, new, strict=True):
            self.add(state, [*before, *chain(*tokens)])

    def to_host(self, pick: int) -> None:
        state, _ = self.pick(pick)
        if state is not None and state.units:
            self.arena.move_to_host([state])

    def first(self, pick: int, length: int) -> None:
        state, tokens = self.pick(pick)
        if state is None or not tokens:
            return
        length = 1 + length % len(tokens)
        has_forgotten = any(len(tokens) > window.width for window in self.windows.values())
        if length < len(tokens) and has_forgotten:
            with pytest.raises(ValueError, match="keep the state that it was then"):
                self.arena.first(state, length)
        else:
            self.add(self.arena.first(state, length), tokens[:length])

    def check(self) -> None:
        for state, tokens in self.states:
            check_rows(self.arena, self.windows, [state], [tokens])


numbers = st.integers(0, 1000)
picks = st.lists(numbers, min_size=1, max_size=4)
counts = st.lists(st.one_of(st.integers(0, 4), st.integers(0, 100)), min_size=1, max_size=4)
acts = st.one_of(
    *(st.tuples(st.just(name), picks, counts) for name in ("append", "append", "log")),
    *(st.tuples(st.just(name), numbers) for name in ("forget", "store", "to_host")),
    st.tuples(st.just("first"), numbers, numbers),
)


@settings(max_examples=examples(60))
@given(WINDOWS, WINDOWS, st.integers(1, 8), st.lists(acts, max_size=25))
def test_any_order(keys: Window, tokens: Window, room: int, done: list[Any]) -> None:
    model = Model(keys, tokens, room)
    for name, *arguments in done:
        getattr(model, name)(*arguments)
        model.check()
    model.states.clear()
    model.cache.clear()
    assert model.arena.used_bytes == 0


@given(st.integers(1, 16), WINDOWS, st.lists(st.integers(0, 60), max_size=12))
def test_a_state_has_the_units_of_what_it_keeps(size: int, window: Window, steps: list[int]) -> None:
    layout = Units(size, window)

    def units_of(length: int) -> list[int]:
        pinned, first, end = -(-window.pinned // size), max(0, length - window.size) // size, -(-length // size)
        return [unit for unit in range(end) if unit < pinned or unit >= first]

    for before, after in pairwise([0, *accumulate(steps)]):
        old, new = units_of(before), units_of(after)
        assert layout.kept(tuple(old), before, after) == tuple(unit for unit in new if unit in old)
        assert layout.count(after) == len(new) <= (layout.most or 0)
        written = [*layout.written(before, after)]
        assert all(position // size == new[unit] for positions, unit in written for position in positions)
        kept = {*range(min(after, window.pinned)), *range(max(0, after - window.size), after)}
        assert [position for positions, _ in written for position in positions] == sorted(
            position for position in kept if position >= before
        )


def test_rows_of_different_lengths_end_at_the_same_place() -> None:
    windows = {"keys": Window(3, 0), "tokens": Window(4, 2)}
    arena = Arena(context(maxNumSequence=8), fields(**windows))
    long, short = arena.append([None, None], entries(list(range(10, 30)), list(range(50, 70))), [20, 1])
    assert arena.gather([long, short, None])["tokens"].tolist() == [
        [10, 11, 26, 27, 28, 29],
        [0, 0, 0, 0, 0, 50],
        [0, 0, 0, 0, 0, 0],
    ]
    assert arena.positions([long, short, None])["tokens"].tolist() == [
        [0, 1, 16, 17, 18, 19],
        [-1, -1, -1, -1, -1, 0],
        [-1, -1, -1, -1, -1, -1],
    ]
    assert arena.gather([long, short, None])["keys"][:, 0, :, 0].tolist() == [[27, 28, 29], [0, 0, 50], [0, 0, 0]]
    assert arena.lengths([long, short, None]).tolist() == [20, 1, 0]


def test_what_others_have_left_in_the_memory_is_not_seen() -> None:
    windows = {"keys": Window(5, 1), "tokens": Window(5, 1)}
    arena = Arena(context(maxNumSequence=3), fields(**windows))
    nan = {"keys": torch.full((4, 2, 40, 4), torch.nan), "tokens": torch.ones((4, 40), dtype=torch.int64)}
    spoilt = arena.append([None] * 4, nan)
    del spoilt
    states: list[ArenaState | None] = list(arena.append([None, None], entries(list(range(9)), [1] * 9), [9, 2]))
    check_rows(arena, windows, [*states, None], [list(range(9)), [1, 1], []])


def test_a_stream_without_end_takes_the_memory_of_a_window() -> None:
    windows = {"keys": Window(40, 4), "tokens": Window(40, 4)}
    arena = Arena(context(maxNumSequence=2), fields(**windows))
    states: list[ArenaState | None] = [None, None]
    used = set()
    tokens: list[list[int]] = [[], []]
    for turn in range(2_000):
        new = [[turn], [-turn]]
        states = list(arena.append(states, entries(*new)))
        tokens = [row + more for row, more in zip(tokens, new, strict=True)]
        if turn > 100:
            used.add(arena.used_bytes)
    check_rows(arena, windows, states, tokens)
    assert max(used) - min(used) <= 2 * arena.unit_bytes
    assert max(used) <= 2 * 44 * 40 * 1.4, "entries of 40 bytes, and less than a half more for units that are not full"


def streamed(arena: Arena, inputs: torch.Tensor, counts: list[tuple[int, int]], step: Any) -> list[torch.Tensor]:
    """The outputs of a model for each of two rows [n, size] that arrive in pieces of different lengths."""
    states: list[ArenaState | None] = [None, None]
    starts, outputs = [0, 0], [[torch.empty(0, inputs.shape[-1])] for _ in range(2)]
    for piece in counts:
        new = torch.zeros(2, max(piece), inputs.shape[-1])
        for row, (start, count) in enumerate(zip(starts, piece, strict=True)):
            new[row, :count] = inputs[row, start : start + count]
        out, entries = step(states, new)
        states = list(arena.append(states, entries, piece))
        for row, count in enumerate(piece):
            outputs[row].append(out[row, :count])
            starts[row] += count
    return [torch.cat(row) for row in outputs]


PIECES = [(1, 3), (0, 2), (5, 1), (20, 0), (1, 30), (7, 2), (1, 1), (6, 3)]


def test_a_convolution_over_pieces_is_that_over_the_whole() -> None:
    arena = Arena(context(maxNumSequence=2, batchSize=2), {"sound": Field((4,), grows=1, window=2)})
    inputs, kernel = torch.randn(2, 50, 4), torch.randn(4, 4, 3)

    def step(states: list[ArenaState | None], new: torch.Tensor) -> tuple[torch.Tensor, Tensors]:
        sound = torch.cat([arena.gather(states)["sound"], new.mT], 2)
        return torch.nn.functional.conv1d(sound, kernel).mT, {"sound": new.mT}

    whole = torch.nn.functional.conv1d(torch.nn.functional.pad(inputs.mT, (2, 0)), kernel).mT
    for row, found in enumerate(streamed(arena, inputs, PIECES, step)):
        torch.testing.assert_close(found, whole[row, : len(found)])


def turned(values: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Rotary positions."""
    angles = positions[..., None] * 10.0 ** -torch.arange(0, 4, 2)
    return torch.view_as_real(torch.view_as_complex(values.unflatten(-1, (-1, 2))) * torch.exp(1j * angles)).flatten(-2)


def seen(keys: torch.Tensor, queries: torch.Tensor, window: Window) -> torch.Tensor:
    """Which keys a query attends to, by their positions."""
    keys, queries = keys[..., None, :], queries[..., None]
    return (keys >= 0) & (keys <= queries) & ((keys >= queries - window.size) | (keys < window.pinned))


@pytest.mark.parametrize("window", [Window(6, 0), Window(6, 2), Window(1, 3)])
def test_attention_over_pieces_is_that_over_the_whole(window: Window) -> None:
    field = Field((4,), grows=0, window=window.size, pinned=window.pinned)
    arena = Arena(context(maxNumSequence=2, batchSize=2), {"keys": field, "values": field})
    inputs = torch.randn(2, 50, 4)

    def attended(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)

    def step(states: list[ArenaState | None], new: torch.Tensor) -> tuple[torch.Tensor, Tensors]:
        before = arena.gather(states)
        own = arena.lengths(states)[:, None] + torch.arange(new.shape[1])
        entries = {"keys": turned(new, own), "values": new * 2}
        keys, values = (torch.cat([before[name], entries[name]], 1) for name in ("keys", "values"))
        places = torch.cat([arena.positions(states)["keys"], own], 1)
        return attended(entries["keys"], keys, values, seen(places, own, window)), entries

    places = torch.arange(50)
    keys = turned(inputs, places)
    whole = attended(keys, keys, inputs * 2, seen(places, places, window))
    for row, found in enumerate(streamed(arena, inputs, PIECES, step)):
        torch.testing.assert_close(found, whole[row, : len(found)])


@pytest.mark.parametrize(
    ("field", "problem"),
    [
        (Field((3,), grows=0, window=0), "field 'x' has window=0 and pinned=0; from 1 and from 0 are right"),
        (Field((3,), grows=0, window=8, pinned=-1), "window=8 and pinned=-1"),
        (Field((3,), grows=0, pinned=4), "pinned=4 without a window, which keeps all entries"),
        (Field((3,), window=8), "window=8, which needs a dimension that grows, such as grows=0"),
    ],
)
def test_windows_that_make_no_sense_are_refused(field: Field, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Arena(context(), {"x": field})


def test_fields_that_keep_all_do_not_go_with_windows() -> None:
    with pytest.raises(ValueError, match=r"all fields of an arena have a window or none has; \['y'\] have none"):
        Arena(context(), {"x": Field((3,), grows=0, window=8), "y": Field((3,), grows=0)}, most_bytes=1 << 20)
    grown = Arena(context(), {"y": Field((3,), grows=0)}, most_bytes=1 << 20)
    with pytest.raises(ValueError, match="have no window"):
        grown.positions([None])


def test_an_arena_without_room_for_a_window_is_refused() -> None:
    with pytest.raises(ValueError, match="holds no state: a state of this arena has up to 9 units of 12 bytes"):
        Arena(context(), {"x": Field((3,), grows=0, window=8, pinned=1)}, most_bytes=9 * 12)
    Arena(context(), {"x": Field((3,), grows=0, window=8, pinned=1)}, most_bytes=10 * 12)


def test_a_state_stored_with_another_window_is_refused_by_name() -> None:
    stored = []
    for window in (8, 6):
        arena = Arena(context(), {"x": Field((), grows=0, window=window, pinned=2)})
        encoding = StateEncoding({ArenaState: (arena._encoded, arena._decoded)})
        if not stored:
            (short,) = arena.append([None], {"x": torch.arange(5.0)[None]})
            (long,) = arena.append([None], {"x": torch.arange(20.0)[None]})
            stored = [encoding.encode(short), encoding.encode(long)]
    assert arena.gather([encoding.decode(stored[0])])["x"].tolist() == [[0, 0, 0, 0, 1, 2, 3, 4]]
    with pytest.raises(StateError, match="field 'x' is stored with 10 entries of 20, and window=6 and pinned=2 keep 8"):
        encoding.decode(stored[1])


#: Returns the sum of the last three numbers of a sequence and of its first one. A number that ends in "!" fails.
HANDLER = """
import torch
from ts.sequence.arena import Arena, Field

class Handler:
    def initialize(self, context):
        self.arena = Arena(context, {"number": Field((), grows=0, window=3, pinned=1)})
        self.rebuilt = 0

    def handle(self, data, context):
        rows = range(len(data))
        bodies = [context.body(row).decode() for row in rows]
        states = [context.state.get(row) for row in rows]
        new = {"number": torch.tensor([[float(body.strip("!"))] for body in bodies])}
        states = self.arena.append(states, new)
        for row, state in zip(rows, states):
            context.state[row] = state
            self.log(context, row, new)
            if bodies[row].endswith("!"):
                context.fail(row, "not this one")
        return [str(int(total)) for total in self.arena.gather(states)["number"].sum(1)]

    def log(self, context, row, new):
        pass
"""
LOGGED = (
    HANDLER.replace("        pass\n", "        context.state.append(row, {'number': new['number'][row]})\n")
    + """
    def rebuild(self, states, entries):
        self.rebuilt += sum(map(len, entries))
        return self.arena.rebuild(states, entries)
"""
)


#: The window stands in a dict, beside the sum of all numbers.
IN_A_DICT = """
import torch
from ts.sequence.arena import Arena, Field

class Handler:
    def initialize(self, context):
        self.arena = Arena(context, {"number": Field((), grows=0, window=3, pinned=1)})

    def handle(self, data, context):
        return [self.step(row, context) for row in range(len(data))]

    def step(self, row, context):
        before = context.state.get(row) or {"window": None, "sum": 0}
        number = float(context.body(row).decode().strip("!"))
        (window,) = self.arena.append([before["window"]], {"number": torch.tensor([[number]])})
        before["sum"] += int(number)  # in place
        context.state[row] = {"window": window, "sum": before["sum"]}
        if context.body(row).decode().endswith("!"):
            context.fail(row, "not this one")
        return f"{self.arena.gather([window])['number'].sum():g} {before['sum']}"
"""


@pytest.fixture(params=["memory", "file", "redis"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def worker(make_worker: Callable[..., Worker], cache_settings: Callable[..., Any]) -> Worker:
    return make_worker(HANDLER, sequences=True, cache=cache_settings())


def test_a_step_that_fails_leaves_the_window_as_it_was(worker: Worker) -> None:
    totals = [answered(worker, step(f"j{number}", "s", str(number)))[0] for number in range(1, 7)]
    assert totals == ["1", "3", "6", "10", "13", "16"]  # 1 + 4 + 5 + 6
    for number in range(4):
        assert answered(worker, step(f"f{number}", "s", "100!")) == [(400, "")]
    assert answered(worker, step("j7", "s", "7")) == ["19"]


@pytest.mark.parametrize("kind", ["file", "redis"])
@pytest.mark.parametrize("handler", [HANDLER, LOGGED], ids=["whole", "logged"])
def test_a_stored_window_outlives_its_workers(durable_worker: Make, handler: str) -> None:
    for number in range(1, 30):
        expected = sum({1, *range(max(1, number - 2), number + 1)})
        made = durable_worker(handler, checkpoint_steps=4)
        assert answered(made, step(f"j{number}", "s", str(number))) == [str(expected)]


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_a_window_can_stand_in_a_state_beside_other_values(
    make_worker: Callable[..., Worker], cache_settings: Callable[..., Any], kind: str
) -> None:
    worker = make_worker(IN_A_DICT, model_name="beside", sequences=True, cache=cache_settings())
    for number in range(1, 9):
        assert answered(worker, step(f"f{number}", "s", "100!")) == [(400, "")]
        kept, whole = {1, *range(max(1, number - 2), number + 1)}, range(1, number + 1)
        assert answered(worker, step(f"j{number}", "s", str(number))) == [f"{sum(kept)} {sum(whole)}"]
        if kind == "file":
            worker = make_worker(IN_A_DICT, model_name="beside", sequences=True, cache=cache_settings())


@pytest.mark.parametrize("kind", ["file"])
def test_a_step_with_a_log_stores_what_it_appends(durable_worker: Make) -> None:
    for number in range(1, 12):
        made = durable_worker(LOGGED, checkpoint_steps=4)
        answered(made, step(f"j{number}", "s", str(number)))
        assert made.service.entry_point.__self__.rebuilt <= 4
