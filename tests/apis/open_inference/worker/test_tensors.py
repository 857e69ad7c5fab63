"""A tensor's data, from one form to another."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ts.apis.open_inference.tensors import check, flat_list, numpy_of, raw_bytes, tensor_of
from ts.apis.open_inference.types import Tensor
from ts.jobs.errors import RowFailure
from ts.protocol.datatypes import DATATYPES


@pytest.mark.parametrize("datatype", [name for name in DATATYPES if name != "BYTES"])
def test_numbers_go_through_every_form(datatype: str):
    data = [True, False] if datatype == "BOOL" else [0, 1, 2, 100]
    tensor = Tensor("x", datatype, [2, len(data) // 2], data)
    raw = Tensor("x", datatype, tensor.shape, raw_bytes(tensor))
    assert raw.is_raw
    check(raw)
    assert flat_list(raw) == data
    assert numpy_of(raw).shape == (2, len(data) // 2)
    again = tensor_of("x", numpy_of(tensor), datatype)
    assert (again.datatype, bytes(raw_bytes(again))) == (datatype, bytes(raw_bytes(tensor)))


def test_bytes_go_through_every_form():
    tensor = Tensor("x", "BYTES", [2], ["é", b"\xff"])
    raw = Tensor("x", "BYTES", [2], raw_bytes(tensor))
    check(raw)
    assert flat_list(raw) == ["é".encode(), b"\xff"]
    assert numpy_of(raw).tolist() == ["é".encode(), b"\xff"]
    assert tensor_of("x", np.array(["a", "b"])).data == ["a", "b"]
    assert tensor_of("x", np.array([b"a", "b"], dtype=object)).data == [b"a", "b"]


def test_arrays_of_another_byte_order_and_without_elements():
    assert flat_list(tensor_of("x", np.array([1, 2], dtype=">i4"))) == [1, 2]
    empty = tensor_of("x", np.zeros((0, 3), dtype=np.float32))
    assert (empty.shape, flat_list(empty)) == ([0, 3], [])
    assert flat_list(tensor_of("x", np.arange(6).reshape(2, 3).T)) == [0, 3, 1, 4, 2, 5]


@given(st.floats(width=32))
def test_bf16_is_rounded_alike_with_and_without_numpy(value: float):
    slowly = flat_list(Tensor("x", "BF16", [1], raw_bytes(Tensor("x", "BF16", [1], [value]))))
    fast = flat_list(tensor_of("x", np.array([value], dtype=np.float32), "BF16"))
    assert math.isnan(slowly[0]) == math.isnan(value) == math.isnan(fast[0])
    assert math.isnan(value) or slowly == fast
    assert math.isnan(value) or math.isinf(slowly[0]) or abs(slowly[0] - value) <= abs(value) / 128 + 1e-38


@pytest.mark.parametrize(
    "tensor",
    [
        Tensor("x", "FP32", [2], b"1234"),
        Tensor("x", "FP32", [2], [1.0]),
        Tensor("x", "BYTES", [1], b"\x05\0\0\0ab"),
        Tensor("x", "BYTES", [1], b"\x05\0"),
        Tensor("x", "FP99", [1], [1]),
    ],
)
def test_data_that_do_not_fit_are_refused(tensor: Tensor):
    with pytest.raises(RowFailure, match="'x'"):
        check(tensor)


def test_values_of_another_type_are_refused():
    with pytest.raises(RowFailure, match="INT8"):
        raw_bytes(Tensor("x", "INT8", [1], [300]))
    with pytest.raises(RowFailure, match="INT8"):
        numpy_of(Tensor("x", "INT8", [1], ["a"]))
    with pytest.raises(RowFailure, match="complex"):
        tensor_of("x", np.zeros(1, dtype=np.complex64))
