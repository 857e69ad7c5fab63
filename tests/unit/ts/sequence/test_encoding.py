"""States as bytes and back: what comes back is what it was, and nothing is run to read it."""

import subprocess
import sys
from collections import OrderedDict, deque
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import msgpack
import pytest
from hypothesis import example, given

from ts.sequence.encoding import StateEncoding, StateError

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


def test_what_cannot_be_stored_is_named_with_its_place() -> None:
    with pytest.raises(StateError, match=r"state\['beams'\]\[1\] is a .*Beam, which cannot be stored"):
        StateEncoding().encode({"beams": [None, Beam(1.0, [])]})


def test_a_state_that_contains_itself() -> None:
    state: list[Any] = []
    state.append(state)
    with pytest.raises(StateError, match="contains itself"):
        StateEncoding().encode(state)


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
def test_arrays() -> None:
    numpy = pytest.importorskip("numpy")
    arrays = [
        numpy.arange(6.0).reshape(2, 3),
        numpy.arange(10)[::2],
        numpy.zeros((0, 3), dtype="float16"),
        numpy.array(5),
        numpy.array([True]),
        numpy.arange(3, dtype=">i4"),
    ]
    for array, back in zip(arrays, there_and_back({"arrays": arrays})["arrays"], strict=True):
        assert back.dtype == array.dtype.newbyteorder("=")
        assert back.shape == array.shape
        assert numpy.array_equal(back, array)
        back[...] = 1  # it can be changed in place
    scalar = there_and_back(numpy.float32(1.5))
    assert (type(scalar), scalar) == (numpy.float32, 1.5)
    with pytest.raises(StateError, match="array of type <U1"):
        StateEncoding().encode(numpy.array(["a"]))


@pytest.mark.torch
def test_tensors() -> None:
    torch = pytest.importorskip("torch")
    base = torch.randn(4, 3)
    tensors = [base, base.t(), base[1], torch.tensor(3), torch.zeros(0, 2), torch.ones(2, dtype=torch.bfloat16)]
    for tensor, back in zip(tensors, there_and_back(tuple(tensors)), strict=True):
        assert (back.dtype, back.shape, back.device.type) == (tensor.dtype, tensor.shape, "cpu")
        assert torch.equal(back, tensor)
        back.zero_()
    with pytest.raises(StateError, match=r"state\['h'\] is a tensor"):
        StateEncoding().encode({"h": torch.eye(2).to_sparse()})


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
