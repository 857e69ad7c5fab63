"""numpy's arrays and torch's tensors as bytes and back: each type and layout comes back as it was, or is refused."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ts.sequence.encoding import StateEncoding
from ts.sequence.state_error import StateError

numpy = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]


def there_and_back(state: Any) -> Any:
    return StateEncoding().decode(StateEncoding().encode(state))


TYPES = [
    *("?", "i1", "i2", "<i4", ">i4", "i8", "u1", ">u2", "u4", "u8", "f2", "<f4", ">f4", "f8", "c8", ">c16"),
    *("U3", "U0", "S5", "V7", "M8[ns]", "M8[D]", ">M8[s]", "m8[us]", "M8"),
    [("step", "i4"), ("pose", "f4", (2, 3)), ("name", "U4"), ("inner", [("at", "M8[s]")])],
    {"names": ["a", "b"], "formats": ["u1", "f8"], "offsets": [0, 8], "itemsize": 16},
]
SHAPES: list[Callable[[Any], Any]] = [
    lambda flat: flat,
    lambda flat: flat.reshape(3, 4),
    lambda flat: flat.reshape(3, 4).T,
    lambda flat: flat[::-2],
    lambda flat: flat[3],
    lambda flat: flat[:0].reshape(0, 5),
    lambda flat: numpy.broadcast_to(flat[:1], (4, 2)),
    lambda flat: flat[3:4].reshape(()),
]


@pytest.mark.parametrize("name", TYPES, ids=str)
def test_arrays_of_every_type(name: Any) -> None:
    dtype = numpy.dtype(name)
    noise = numpy.random.default_rng(1).integers(0, 100, 12 * dtype.itemsize, dtype="u1")
    flat = noise.view(dtype) if dtype.itemsize and dtype.kind not in "?U" else numpy.ones(12, dtype)
    for shaped in SHAPES:
        value = shaped(flat)
        back = there_and_back([value])[0]
        assert (type(back), back.dtype, back.shape) == (type(value), value.dtype, value.shape)
        assert repr(back.tolist()) == repr(value.tolist())
        if isinstance(back, numpy.ndarray):
            back[...] = value[...]  # it can be changed in place


def test_masked_arrays_and_matrices() -> None:
    masked = numpy.ma.MaskedArray([1.5, 2, 3], mask=[0, 1, 0], fill_value=-1, hard_mask=True)
    back = there_and_back({"m": masked})["m"]
    assert type(back) is numpy.ma.MaskedArray
    assert back.data.tolist() == masked.data.tolist()
    assert back.mask.tolist() == [False, True, False]
    assert (back.fill_value, back.hardmask) == (-1, True)
    assert there_and_back(numpy.ma.arange(3)).mask is numpy.ma.nomask
    matrix = numpy.matrix([[1, 2], [3, 4]])
    back = there_and_back(matrix)
    assert type(back) is numpy.matrix
    assert (back * back).tolist() == (matrix * matrix).tolist()


class Recording(numpy.ndarray):  # type: ignore[misc]
    pass


@pytest.mark.parametrize(
    "array",
    [
        numpy.array([object()]),
        numpy.zeros(2, [("a", "O")]),
        numpy.zeros(2, numpy.longdouble),
        numpy.zeros(2, numpy.clongdouble),
        numpy.array(["a"], dtype=numpy.dtypes.StringDType()),
        numpy.zeros(2).view(Recording),
        numpy.zeros(2, [("a", "f4")]).view(numpy.recarray),
        numpy.ma.masked,
    ],
    ids=lambda array: f"{type(array).__name__} {array.dtype}",
)
def test_arrays_that_are_refused(array: Any) -> None:
    with pytest.raises(StateError, match=r"^state\['a'\]\[0\] is an? .* which cannot be stored"):
        StateEncoding().encode({"a": [array]})


def all_types() -> list[Any]:
    found = {each for each in vars(torch).values() if isinstance(each, torch.dtype)}
    return sorted((each for each in found if "qint" not in str(each) and "quint" not in str(each)), key=str)


def layouts_of(flat: Any) -> Iterator[Any]:
    yield flat
    yield flat.reshape(3, 4)
    yield flat.reshape(3, 4).t()
    yield flat[::2]
    yield flat[3:]
    yield flat[3]
    yield flat[:0].reshape(0, 5)
    yield flat[:1].expand(4)
    if flat.is_complex():
        yield flat.conj()
    if flat.itemsize > 1 and (flat.is_floating_point() or flat.is_complex()):
        yield torch._neg_view(flat[1:])  # a view with the other sign
    if flat.itemsize > 1 and not str(flat.dtype).startswith("torch.bits"):
        yield torch.ones(2, 3, 4, 4).to(flat.dtype).to(memory_format=torch.channels_last)


def bytes_of(tensor: Any) -> list[Any]:
    plain = tensor.detach().resolve_conj().resolve_neg()
    if plain.is_complex():
        plain = torch.view_as_real(plain)
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return plain.view(integers[plain.itemsize]).tolist()  # type: ignore[no-any-return]


def same(back: Any, tensor: Any) -> None:
    assert type(back) is type(tensor)
    assert (back.dtype, back.shape, back.layout) == (tensor.dtype, tensor.shape, tensor.layout)
    assert (back.requires_grad, back.device) == (tensor.requires_grad, tensor.device)


@pytest.mark.parametrize("dtype", all_types(), ids=str)
def test_tensors_of_every_type(dtype: Any) -> None:
    bits = torch.arange(1, 12 * dtype.itemsize + 1, dtype=torch.uint8) % 64
    flat = bits.view(dtype) if dtype is not torch.bool else bits % 3 == 0
    tensors = list(layouts_of(flat))
    for tensor, back in zip(tensors, there_and_back(tuple(tensors)), strict=True):
        same(back, tensor)
        assert bytes_of(back) == bytes_of(tensor)


def test_tensors_with_gradients() -> None:
    leaf = torch.ones(3, requires_grad=True)
    (leaf * 2).sum().backward()
    parameter = torch.nn.Parameter(torch.arange(2.0))
    fixed = torch.nn.Parameter(torch.arange(3), requires_grad=False)
    for tensor in (leaf, parameter, fixed):
        back = there_and_back({"w": tensor})["w"]
        same(back, tensor)
        assert torch.equal(back, tensor)
        assert (back.grad is None) == (tensor.grad is None)
    assert torch.equal(there_and_back([leaf])[0].grad, leaf.grad)
    with pytest.raises(StateError, match=r"state\[0\] is a tensor that was computed with gradients"):
        StateEncoding().encode([parameter * 2])
    with torch.inference_mode():
        assert there_and_back([parameter * 2])[0].tolist() == [0.0, 2.0]


def sparse_tensors() -> list[Any]:
    dense = torch.tensor([[0, 1.5, 0, 0], [2, 0, 0, 3], [0, 0, 0, 0], [0, 0, 4, 5]])
    twice = torch.sparse_coo_tensor([[0, 0], [1, 1]], [1.0, 2.0], (2, 3))
    compressed = [torch.sparse_csr, torch.sparse_csc]
    return [
        dense.to_sparse(),
        dense.to(torch.complex64).to_sparse(),
        dense.to_sparse().requires_grad_(),
        twice,
        torch.zeros(3, 0, 2).to_sparse(1),
        *(dense.to_sparse(layout=layout) for layout in compressed),
        *(dense.to_sparse(layout=layout, blocksize=(2, 2)) for layout in (torch.sparse_bsr, torch.sparse_bsc)),
    ]


@pytest.mark.parametrize("tensor", sparse_tensors(), ids=lambda tensor: str(tensor.layout))
def test_sparse_tensors(tensor: Any) -> None:
    back = there_and_back({"s": tensor})["s"]
    same(back, tensor)
    assert torch.equal(back.to_dense(), tensor.to_dense())
    if tensor.layout is torch.sparse_coo:
        assert back.is_coalesced() == tensor.is_coalesced()
        assert back._nnz() == tensor._nnz()


class Tagged(torch.Tensor):
    pass


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.empty(2, device="meta"),
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
        lambda: torch.ones(2, 3).to_mkldnn(),
        lambda: torch.ones(3).as_subclass(Tagged),
        lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 3, torch.qint8),
        lambda: torch.quantize_per_channel(torch.randn(3, 4), torch.ones(3), torch.zeros(3), 0, torch.quint4x2),
    ],
)
def test_tensors_that_are_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(StateError, match=r"^state\['t'\] is a .* which cannot be stored"):
        StateEncoding().encode({"t": make()})


def test_what_an_earlier_release_wrote() -> None:
    """The bytes of {"t": torch.arange(3), "a": numpy.arange(2.0), "s": numpy.float32(1.5)}, in safetensors' format."""
    msgpack, safetensors = pytest.importorskip("msgpack"), pytest.importorskip("safetensors.torch")
    of_numpy = pytest.importorskip("safetensors.numpy")
    tree = {
        "t": msgpack.ExtType(11, msgpack.packb(["0", "cpu"])),
        "a": msgpack.ExtType(10, msgpack.packb(["0", False])),
        "s": msgpack.ExtType(10, msgpack.packb(["1", True])),
    }
    arrays = of_numpy.save({"0": numpy.arange(2.0), "1": numpy.array(1.5, "f4")})
    back = StateEncoding().decode(msgpack.packb([tree, arrays, safetensors.save({"0": torch.arange(3)})]))
    assert back["t"].tolist() == [0, 1, 2]
    assert back["a"].tolist() == [0.0, 1.0]
    assert (type(back["s"]), back["s"]) == (numpy.float32, 1.5)
    back["a"][0] = 5
