"""States as bytes and back: what comes back is what it was, and nothing is run to read it."""

import subprocess
import sys
import threading
from collections import OrderedDict, deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import msgpack
import pytest
from hypothesis import example, given

from ts.sequence.encoding import MAX_DEPTH, StateEncoding
from ts.sequence.state_error import StateError

BACKEND = Path(__file__).parents[4] / "backend"

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.complex_numbers()
)
hashable = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.binary(),
    lambda inner: st.tuples(inner, inner) | st.frozensets(inner),
    max_leaves=5,
)
states = st.recursive(
    scalars | st.builds(bytearray, st.binary()),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(hashable, inner)
        | st.tuples(inner, inner)
        | st.sets(hashable)
        | st.builds(lambda items: deque(items, 7), st.lists(inner))
        | st.builds(OrderedDict, st.dictionaries(st.text(), inner))
    ),
)


def there_and_back(state: Any, **options: Any) -> Any:
    encoding = StateEncoding(**options)
    return encoding.decode(encoding.encode(state))


def same(first: Any, second: Any) -> bool:
    """Equal, and of the same types all the way down."""
    if type(first) is not type(second):
        return False
    if isinstance(first, dict):
        return [*first] == [*second] and all(same(first[key], second[key]) for key in first)
    if isinstance(first, list | tuple | deque):
        return len(first) == len(second) and all(map(same, first, second))
    return repr(first) == repr(second) if isinstance(first, complex) else bool(first == second)


@given(states)
@example({2**64: 1, -(2**63) - 1: {2**64: None}})
def test_plain_values(state: Any) -> None:
    assert same(there_and_back(state), state)


def test_a_deque_keeps_its_length() -> None:
    assert there_and_back(deque([1, 2], 2)).maxlen == 2


def test_dicts_keep_their_order() -> None:
    assert list(there_and_back({"b": 1, "a": 2, 3: ()})) == ["b", "a", 3]


class Beam:
    def __init__(self, score: float, tokens: list[int]) -> None:
        self.score = score
        self.tokens = tokens


def test_other_classes_by_their_encoders() -> None:
    encoders = {Beam: (lambda beam: (beam.score, beam.tokens), lambda plain: Beam(*plain))}
    (beam,) = there_and_back([Beam(0.5, [1, 2])], encoders=encoders)
    assert (type(beam), beam.score, beam.tokens) == (Beam, 0.5, [1, 2])
    with pytest.raises(StateError, match=r"no decoder here; there are: none"):
        StateEncoding().decode(StateEncoding(encoders).encode(Beam(1.0, [])))


def test_what_cannot_be_read_again_is_not_stored() -> None:
    encoding = StateEncoding({Beam: (lambda beam: [beam.score], lambda plain: Beam(*plain))})
    with pytest.raises(StateError, match=r"what is stored of .*Beam cannot be read again: .* missing 1 required"):
        encoding.encode({"best": Beam(1.0, [])})


def test_what_cannot_be_stored_is_named_with_its_place() -> None:
    with pytest.raises(StateError, match=r"state\['beams'\]\[1\] is a .*Beam, which cannot be stored"):
        StateEncoding().encode({"beams": [None, Beam(1.0, [])]})


def test_a_state_that_contains_itself() -> None:
    state: list[Any] = []
    state.append(state)
    with pytest.raises(StateError, match="contains itself"):
        StateEncoding().encode(state)


class Box:
    def __init__(self, content: Any) -> None:
        self.content = content

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Box) and self.content == other.content

    __hash__ = None  # type: ignore[assignment]


BOXES = {Box: (lambda box: box.content, Box)}
NESTING = {
    "tuples": lambda inner: (inner,),
    "lists": lambda inner: [inner],
    "dicts": lambda inner: {"inner": inner},
    "frozensets": lambda inner: frozenset([inner]),
    "deques": lambda inner: deque([inner]),
    "ordered": lambda inner: OrderedDict(inner=inner),
    "odd keys": lambda inner: {(1, 2): inner},
    "keys": lambda inner: {inner if isinstance(inner, int) else 7: inner, (): 0},
    "custom": Box,
}


@pytest.mark.parametrize("kind", NESTING)
def test_what_is_nested_deep_comes_back_or_is_refused(kind: str) -> None:
    """In a thread with a small stack, as a handler's may be: neither end may need more."""
    nest, encoding = NESTING[kind], StateEncoding(BOXES)

    def nested(depth: int) -> Any:
        state: Any = 1
        for _ in range(depth):
            state = nest(state)
        return state

    def check() -> str:
        most = MAX_DEPTH - ("key" in kind)  # a key that is a container counts, too
        assert encoding.decode(encoding.encode(nested(most))) == nested(most)
        for depth in (MAX_DEPTH + 1, 200, 900):
            with pytest.raises(StateError, match=f"nested more than {MAX_DEPTH} deep"):
                encoding.encode(nested(depth))
        return "checked"

    size = threading.stack_size(256 * 1024)
    try:
        with ThreadPoolExecutor(1) as threads:
            assert threads.submit(check).result() == "checked"
    finally:
        threading.stack_size(size)


def test_bytes_that_are_nested_deep_are_an_error() -> None:
    """As an earlier release wrote them: up to 200 levels are read, and any number more harms nobody."""

    def written(depth: int) -> bytes:
        tree: Any = 1
        for _ in range(depth):
            tree = msgpack.ExtType(1, msgpack.packb([tree]))
        return bytes(msgpack.packb([tree, b"", b""]))

    state = StateEncoding().decode(written(200))
    for _ in range(200):
        (state,) = state
    assert state == 1
    for depth in (202, 5_000):
        with pytest.raises(StateError, match="nested more than 200 deep"):
            StateEncoding().decode(written(depth))


def test_half_characters() -> None:
    state = {"\ud800": ["\udcff", ("\ud800",)]}
    assert there_and_back(state) == state
    assert there_and_back("\ud800") == "\ud800"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x93",
        msgpack.packb(1),
        msgpack.packb([1, b"x"]),
        msgpack.packb([msgpack.ExtType(99, b""), b"", b""]),
    ],
)
def test_what_is_no_state(data: bytes) -> None:
    with pytest.raises(StateError):
        StateEncoding().decode(data)


@pytest.mark.torch
def test_arrays_and_tensors_together() -> None:
    torch, numpy = pytest.importorskip("torch"), pytest.importorskip("numpy")
    back = there_and_back({"a": [numpy.ones(2)], "t": (torch.zeros(1), {1: torch.ones(1)})})
    assert (back["a"][0].sum(), back["t"][0].item(), back["t"][1][1].item()) == (2.0, 0.0, 1.0)


def test_neither_numpy_nor_torch_is_imported_for_plain_states() -> None:
    code = (
        "import sys; from ts.sequence.encoding import StateEncoding as E; E().decode(E().encode({'a': (1, [2])}));"
        "sys.exit(bool({'numpy', 'torch', 'safetensors', 'redis', 'sqlite3'} & set(sys.modules)))"
    )
    ended = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": str(BACKEND)}, check=False)
    assert ended.returncode == 0


def test_a_worker_with_sequences_in_memory_imports_nothing_of_stored_ones() -> None:
    code = (
        "import sys, ts.process.worker, ts.sequences.steps.opening;"
        "stored = 'ts.sequences.steps.stored_steps';"
        "sys.exit(bool({stored, 'ts.metrics.metrics_cache', 'statistics'} & set(sys.modules)))"
    )
    ended = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": str(BACKEND)}, check=False)
    assert ended.returncode == 0
