"""Large JSON is read into arrays, and what a model and a client see of it is the same as of small JSON."""

import json
import math
import tracemalloc
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from ts.apis.open_inference import json_arrays
from ts.apis.open_inference.json_arrays import parse_with_arrays
from ts.apis.open_inference.json_objects import parse_object
from ts.apis.open_inference.json_request import read_request
from ts.apis.open_inference.receive import receive
from ts.apis.open_inference.tensors import LARGE_TENSOR, flat_list, numpy_of, raw_bytes
from ts.apis.open_inference.types import InferenceResponse, Tensor
from ts.jobs.errors import RowFailure
from ts.protocol.datatypes import BOUNDS, DATATYPES, FLOATS
from ts.protocol.messages import OPEN_INFERENCE_REST, InferRow

MANY = LARGE_TENSOR // 4


def document(data: Any, shape: list[int], datatype: str = "FP32", **members: Any) -> dict[str, Any]:
    return {"inputs": [{"name": "x", "shape": shape, "datatype": datatype, "data": data}], **members}


def received(body: Any) -> Any:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    return receive(InferRow("job", [], "", text, OPEN_INFERENCE_REST, False))


def tensor_or_failure(parsed: Any) -> Any:
    try:
        (tensor,) = read_request(parsed, memoryview(b""), "job").inputs
    except RowFailure as failure:
        return failure.status, failure.message
    return tensor


_ELEMENTS = st.one_of(
    st.integers(-(2**65), 2**65),
    st.integers(-200, 200),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([None, True, "1", [], [1], [[2]], {}]),
)
_NESTED = st.recursive(st.lists(_ELEMENTS, max_size=4), lambda inner: st.lists(inner, max_size=4), max_leaves=12)
_EVEN = st.integers(0, 3).flatmap(
    lambda rows: st.integers(0, 6).flatmap(
        lambda size: st.lists(st.lists(st.integers(0, 100), min_size=size, max_size=size), min_size=rows, max_size=rows)
    )
)


@settings(max_examples=examples(100))
@given(data=st.one_of(_NESTED, _EVEN), datatype=st.sampled_from(sorted(DATATYPES)), parameters=st.booleans())
def test_it_is_read_as_the_ordinary_way_reads_it_or_not_at_all(data: Any, datatype: str, parameters: bool) -> None:
    count = len(list(_leaves(data)))
    members: dict[str, Any] = {"parameters": {"a": [1], "b": {"c": "[d"}}} if parameters else {"id": "7"}
    text = json.dumps(document(data, [count], datatype, **members)).encode()
    parsed = parse_with_arrays(text)
    if parsed is None:
        return
    slow, fast = tensor_or_failure(parse_object(text)), tensor_or_failure(parsed)
    assert isinstance(fast, Tensor) and isinstance(slow, Tensor), slow
    assert flat_list(fast) == [float(each) if datatype in FLOATS else each for each in slow.data]
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(numpy_of(fast), numpy_of(slow))
    assert _raw(fast) == _raw(slow)


_TEXT = json.dumps(document([[1, 2.5], [-3, 4e5]], [2, 2], id='é\u0000"[')).encode()


@settings(max_examples=examples(100))
@given(st.data())
def test_any_bytes_are_read_as_the_ordinary_way_reads_them_or_not_at_all(data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(_TEXT)))
    end = data.draw(st.integers(start, min(start + 4, len(_TEXT))))
    new = data.draw(st.one_of(st.binary(max_size=4), st.sampled_from([b"[", b"]", b'"data":', b"{}", b"1,", b"null"])))
    text = _TEXT[:start] + new + _TEXT[end:]
    parsed = parse_with_arrays(text)
    if parsed is not None:
        fast, slow = tensor_or_failure(parsed), tensor_or_failure(parse_object(text))
        assert isinstance(fast, Tensor) == isinstance(slow, Tensor), slow
        if isinstance(slow, Tensor):
            assert flat_list(fast) == slow.data
            assert (fast.name, fast.datatype, fast.shape) == (slow.name, slow.datatype, slow.shape)
        else:
            assert fast == slow


def _leaves(data: Any) -> Any:
    for each in data:
        yield from _leaves(each) if isinstance(each, list) else (each,)


def _raw(tensor: Tensor) -> bytes | int:
    try:
        return bytes(raw_bytes(tensor))
    except RowFailure as failure:
        return failure.status


@pytest.mark.parametrize("datatype", sorted(DATATYPES.keys() - {"BOOL", "BYTES"}))
@pytest.mark.parametrize("rows", [None, 1, 16])
def test_numbers_of_every_datatype_become_arrays(datatype: str, rows: int | None) -> None:
    low, high = BOUNDS.get(datatype, (-2.5, 3.0))
    flat = [low, high] * (MANY // 2)
    size = len(flat) // (rows or 1)
    data = flat if rows is None else [flat[start : start + size] for start in range(0, len(flat), size)]
    to = received(document(data, [rows or 1, size], datatype, parameters={"binary_data_output": False}))
    (tensor,) = to.request.inputs
    assert isinstance(tensor.data, np.ndarray)
    assert flat_list(tensor) == flat
    _, body = to.encode(InferenceResponse("m", outputs=[Tensor("y", datatype, tensor.shape, tensor.data)]))
    assert json.loads(body)["outputs"][0]["data"] == flat


@pytest.mark.parametrize(
    ("wrong", "datatype", "words"),
    [
        ("a", "FP32", "holds a text, which is no FP32"),
        (True, "FP32", "holds true or false, which is no FP32"),
        ([1], "FP32", "holds a number, which is no FP32|holds a list, which is no FP32|nested unevenly"),
        (1.5, "INT32", "holds a number, which is no INT32"),
        (300, "UINT8", "holds 300; UINT8 goes from 0 to 255"),
        (-1, "UINT64", "holds -1; UINT64 goes from 0"),
        (2**63, "INT64", "INT64 goes from"),
        (None, "INT8", "holds nothing, which is no INT8"),
    ],
)
def test_a_wrong_element_among_many_is_named(wrong: Any, datatype: str, words: str) -> None:
    with pytest.raises(RowFailure, match=words) as caught:
        received(document([1] * MANY + [wrong], [MANY + 1], datatype))
    assert caught.value.status == 400


def test_what_is_no_json_and_what_does_not_fit_is_refused() -> None:
    with pytest.raises(RowFailure, match="no JSON"):
        received(json.dumps(document([0.5] * MANY, [MANY])).encode()[:-1])
    with pytest.raises(RowFailure, match=f"has {MANY} elements; the shape .* needs {MANY + 1}"):
        received(document([0.5] * MANY, [MANY + 1]))
    with pytest.raises(RowFailure, match="'x' holds what is no FP32"):
        raw_bytes(received(document([1e39] * MANY, [MANY])).request.inputs[0])


def test_inputs_that_are_no_list_are_refused_whatever_else_is_there() -> None:
    for inputs in ({}, {"name": "x"}, None, 1, "x"):
        body = {"inputs": inputs, "parameters": {"stop": [], "text": "[" + "a" * LARGE_TENSOR}}
        with pytest.raises(RowFailure, match='must hold the list "inputs"'):
            received(body)


def test_nan_and_infinities_among_many() -> None:
    many = [0.25] * MANY
    (null,) = received(document([*many, None], [MANY + 1])).request.inputs
    (python,) = received(document([*many, math.nan, math.inf], [MANY + 2])).request.inputs
    assert math.isnan(flat_list(null)[-1])
    assert math.isinf(flat_list(python)[-1])
    to = received(document(many, [MANY]))
    raw = np.array([math.nan, math.inf, *many], dtype=np.float32).tobytes()
    _, body = to.encode(InferenceResponse("m", outputs=[Tensor("y", "FP32", [MANY + 2], raw)]))
    assert json.loads(body)["outputs"][0]["data"] == [None, None, *many]


@pytest.mark.parametrize("datatype", sorted(DATATYPES.keys() - {"BYTES"}))
def test_json_has_the_same_digits_for_many_numbers_as_for_few(datatype: str) -> None:
    few = np.array([0.1, 1e-7, 3.0, 100.0]).astype(DATATYPES[datatype].numpy)
    raw = bytes(raw_bytes(Tensor("", datatype, [4], few.tolist())))
    to = received(document([1.0], [1]))

    def written(count: int) -> list[str]:
        tensor = Tensor("y", datatype, [4 * count], raw * count)
        _, body = to.encode(InferenceResponse("m", outputs=[tensor]))
        return str(bytes(body).partition(b'"data":[')[2].partition(b"]")[0], "ascii").split(",")

    count = LARGE_TENSOR // len(raw)
    assert written(count) == written(1) * count
    assert orjson.loads(f"[{','.join(written(1))}]") == flat_list(Tensor("", datatype, [4], raw))


def test_without_the_libraries_the_ordinary_way_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for missing in ("simdjson", "numpy"):
        there = {"simdjson", "numpy"} - {missing}
        with monkeypatch.context() as patched:
            patched.setattr(json_arrays, "installed", {name: json_arrays.installed(name) for name in there}.get)
            assert received(document([0.5] * MANY, [MANY])).request.inputs[0].data == [0.5] * MANY


def test_memory_of_a_large_request() -> None:
    numbers = 256 * 1024
    body = json.dumps(document([0.5] * numbers, [numbers], parameters={"binary_data_output": True})).encode()
    received(body)
    tracemalloc.start()
    try:
        to = received(body)
        _, answer = to.encode(InferenceResponse("m", outputs=to.request.inputs))
        assert len(answer) > 4 * numbers
        assert tracemalloc.get_traced_memory()[1] < 10 * len(body)
    finally:
        tracemalloc.stop()
