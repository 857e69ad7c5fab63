"""How many bytes a state holds: what Python holds for it, in whatever it is kept."""

import dataclasses
from collections import OrderedDict, deque
from typing import Any

import pytest

from ts.sequence.state_size import size_of

MEGABYTE = 2**20
LIMIT = 2**40


class Slotted:
    __slots__ = ("__data", "other")

    def __init__(self, data: Any) -> None:
        self.__data = data


@dataclasses.dataclass(slots=True)
class Record(Slotted):
    frames: Any

    def __init__(self, frames: Any) -> None:
        self.frames = frames


class Named(dict[str, Any]):
    def __init__(self, data: Any) -> None:
        super().__init__()
        self.data = data


class LikeAList(deque[Any]):
    pass


@pytest.mark.parametrize(
    "keep",
    [
        lambda data: deque([data]),
        lambda data: LikeAList([[data]]),
        lambda data: {"a": {(1, data): None}},
        lambda data: OrderedDict(a=(frozenset([data]),)),
        Slotted,
        Record,
        Named,
        bytearray,
        lambda data: memoryview(data)[5:6],
        lambda data: [data, data, {"again": data}],
    ],
)
def test_it_counts_what_is_kept(keep: Any) -> None:
    size = size_of(keep(bytes(MEGABYTE)), LIMIT)
    assert MEGABYTE <= size < MEGABYTE + 2_000


def test_it_counts_no_further_than_the_limit() -> None:
    assert size_of([bytes(1_000)] * 5 + [bytes(1_000 + each) for each in range(1_000)], 10_000) < 13_000


@pytest.mark.torch
def test_arrays_count_once_and_with_all_that_they_keep() -> None:
    numpy = pytest.importorskip("numpy")
    whole = numpy.zeros(MEGABYTE, "u1")
    states = {
        "whole": whole,
        "a part, which keeps the whole": whole[:5],
        "both": [whole, whole[3:], whole.reshape(2, -1)],
        "of bytes": numpy.frombuffer(bytes(MEGABYTE), "u1")[:3],
        "masked": numpy.ma.MaskedArray(whole),
        "matrix": numpy.asmatrix(whole),
        "objects": numpy.array([bytes(MEGABYTE), None], dtype=object),
    }
    for name, state in states.items():
        assert MEGABYTE <= size_of(state, LIMIT) < MEGABYTE + 3_000, name


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")
def test_tensors_of_every_layout_count() -> None:
    torch = pytest.importorskip("torch")
    whole = torch.zeros(MEGABYTE, dtype=torch.uint8)
    dense = torch.ones(512, 512)
    states = {
        "whole": whole,
        "a part, which keeps the whole": [whole[:5]],
        "both": (whole, whole[3:], whole.view(2, -1)),
        "as an array": whole.numpy()[1:],
        "parameter": torch.nn.Parameter(whole, requires_grad=False),
    }
    for name, state in states.items():
        assert MEGABYTE <= size_of(state, LIMIT) < MEGABYTE + 3_000, name
    for layout in (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc):
        assert size_of({"s": dense.to_sparse(layout=layout)}, LIMIT) > 2 * MEGABYTE
    assert size_of(dense.to_sparse().requires_grad_(), LIMIT) > 2 * MEGABYTE
    with_gradient = torch.zeros(MEGABYTE // 4, requires_grad=True)
    with_gradient.sum().backward()
    assert size_of(with_gradient, LIMIT) >= MEGABYTE
    for odd in (torch.ones(2, 3).to_mkldnn(), torch.nested.nested_tensor([torch.ones(2)], layout=torch.jagged)):
        assert size_of([odd], LIMIT) > 0
