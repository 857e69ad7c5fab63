"""Data that have not been read are the same, for the model and for its clients, as data that are a list."""

import copy
import json
import math
import pickle
import threading
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlserver.codecs import NumpyCodec, PandasCodec, StringCodec
from mlserver.types import InferenceRequest, InferenceResponse, RequestInput, ResponseOutput, TensorData

from ts.apis.open_inference import grpc
from ts.apis.open_inference.protos.infer_pb2 import ModelInferRequest, ModelInferResponse
from ts.apis.open_inference.receive import receive
from ts.apis.open_inference.tensors import flat_list, raw_bytes, tensor_of
from ts.apis.open_inference.types import Tensor
from ts.contracts.mlserver import unread_data
from ts.contracts.mlserver.batching import merge, split
from ts.contracts.mlserver.conversion import model_request, wire_response
from ts.contracts.mlserver.unread_data import UnreadData, let_numpy_codec_take_memory
from ts.protocol.datatypes import BOUNDS, DATATYPES
from ts.protocol.messages import OPEN_INFERENCE_REST, InferRow

let_numpy_codec_take_memory()
#: MLServer knows no BF16.
KNOWN = sorted(set(DATATYPES) - {"BF16"})


def _elements(datatype: str) -> st.SearchStrategy[Any]:
    if datatype in BOUNDS:
        return st.integers(*BOUNDS[datatype])
    if datatype == "BYTES":
        return st.text().map(str.encode)
    if datatype == "BOOL":
        return st.booleans()
    return st.floats(width={"FP16": 16, "FP32": 32, "FP64": 64}[datatype])


TENSORS = st.sampled_from(KNOWN).flatmap(
    lambda datatype: st.lists(_elements(datatype), max_size=6).map(
        lambda data: Tensor("x", datatype, [len(data), 1], bytes(raw_bytes(Tensor("", datatype, [len(data)], data))))
    )
)


def lazily(tensor: Tensor) -> TensorData:
    return UnreadData.of_tensor(tensor)


def eagerly(tensor: Tensor) -> TensorData:
    return TensorData(flat_list(tensor))


def as_input(tensor: Tensor, data: TensorData) -> RequestInput:
    return RequestInput(name=tensor.name, shape=tensor.shape, datatype=tensor.datatype, data=data)


def same(one: Any, other: Any) -> bool:
    """Whether values are equal, where NaN is equal to itself."""
    return repr(one) == repr(other)


@given(TENSORS)
def test_the_list_is_the_same(tensor: Tensor) -> None:
    wanted = eagerly(tensor)
    assert len(lazily(tensor)) == len(wanted)
    for read in (
        lambda data: data.root,
        list,
        lambda data: [data[place] for place in range(len(data))],
        lambda data: data.model_dump(),
        lambda data: copy.copy(data).root,
        lambda data: copy.deepcopy(data).root,
        lambda data: pickle.loads(pickle.dumps(data)).root,
        lambda data: data.model_copy(deep=True).root,
        lambda data: InferenceRequest(inputs=[as_input(tensor, data)]).model_dump()["inputs"][0]["data"],
        repr,
    ):
        assert same(read(lazily(tensor)), read(wanted))
    if not any(value != value for value in wanted):  # NaN is not equal to itself
        assert lazily(tensor) == wanted
        assert as_input(tensor, lazily(tensor)) == as_input(tensor, wanted)
    if tensor.datatype != "BYTES":
        assert lazily(tensor).model_dump_json() == wanted.model_dump_json()
    assert lazily(tensor) != TensorData([*wanted.root, 1])


@given(TENSORS)
def test_codecs_decode_the_same(tensor: Tensor) -> None:
    if tensor.datatype == "BYTES":
        texts = [StringCodec.decode_input(as_input(tensor, make(tensor))) for make in (lazily, eagerly)]
        assert texts[0] == texts[1]
        return
    fast, slow = (NumpyCodec.decode_input(as_input(tensor, make(tensor))) for make in (lazily, eagerly))
    np.testing.assert_array_equal(fast, slow, strict=True)
    assert fast.flags.writeable
    frames = [
        PandasCodec.decode_request(InferenceRequest(inputs=[as_input(tensor, make(tensor))]))
        for make in (lazily, eagerly)
    ]
    pd.testing.assert_frame_equal(*frames)


def _rest_request(tensor: Tensor, *, binary: bool, binary_out: bool) -> Any:
    item: dict[str, Any] = {"name": "x", "shape": tensor.shape, "datatype": tensor.datatype}
    raw = bytes(raw_bytes(tensor))
    item |= {"parameters": {"binary_data_size": len(raw)}} if binary else {"data": _json_data(tensor)}
    text = json.dumps({"inputs": [item], "parameters": {"binary_data_output": binary_out}}).encode()
    headers = [(b"inference-header-content-length", str(len(text)).encode())] if binary else []
    return receive(InferRow("job", headers, "", text + raw if binary else text, OPEN_INFERENCE_REST, False))


def _json_data(tensor: Tensor) -> list[Any]:
    return [each.decode() if isinstance(each, bytes) else each for each in flat_list(tensor)]


def _grpc_request(tensor: Tensor) -> Any:
    message = ModelInferRequest(model_name="m", raw_input_contents=[bytes(raw_bytes(tensor))])
    message.inputs.add(name="x", datatype=tensor.datatype, shape=tensor.shape)
    return grpc.receive([], message.SerializeToString())


def _answer(received: Any, touch: Callable[[RequestInput], Any]) -> bytes:
    request = model_request(received.request, {})
    outputs = []
    for each in request.inputs:
        touch(each)
        outputs.append(ResponseOutput(name=each.name, shape=each.shape, datatype=each.datatype, data=each.data))
    response = InferenceResponse(model_name="m", outputs=outputs)
    return bytes(received.encode(wire_response(response, request))[1])


@given(TENSORS, st.booleans(), st.booleans())
def test_clients_get_the_same_whether_the_model_reads_or_not(tensor: Tensor, binary: bool, binary_out: bool) -> None:
    requests: list[Callable[[], Any]] = [lambda: _grpc_request(tensor)]
    requests.append(lambda: _rest_request(tensor, binary=binary, binary_out=binary_out))
    for request in requests:
        passed = _answer(request(), lambda each: None)
        read = _answer(request(), lambda each: each.data.root)
        assert passed == read or any(value != value for value in flat_list(tensor))  # whose NaN has lost its bits


@given(st.lists(TENSORS, min_size=2, max_size=3))
def test_batches_are_joined_and_dealt_out_the_same(tensors: list[Tensor]) -> None:
    tensors = [tensor for tensor in tensors if tensor.datatype == tensors[0].datatype]
    joined, dealt = [], []
    for make in (lazily, eagerly):
        requests = [InferenceRequest(inputs=[as_input(tensor, make(tensor))]) for tensor in tensors]
        batch = merge(requests).inputs[0]
        output = ResponseOutput(name="y", shape=batch.shape, datatype=batch.datatype, data=batch.data)
        responses = split(InferenceResponse(model_name="m", outputs=[output]), requests)
        dealt.append([list(response.outputs[0].data.root) for response in responses])
        joined.append(list(batch.data.root))
    assert same(*joined)
    assert same(*dealt)


@pytest.mark.parametrize("datatype", ["FP32", "FP64", "BOOL", "INT32"])
def test_many_typed_numbers_over_grpc(datatype: str) -> None:
    field = {"FP32": "fp32_contents", "FP64": "fp64_contents", "BOOL": "bool_contents", "INT32": "int_contents"}[
        datatype
    ]
    values = [True, False, False] * 1000 if datatype == "BOOL" else [1, -2, 3] * 1000
    message = ModelInferRequest(model_name="m")
    contents = message.inputs.add(name="x", datatype=datatype, shape=[3000]).contents
    getattr(contents, field).extend(values)
    received = grpc.receive([], message.SerializeToString())
    assert flat_list(received.request.inputs[0]) == values
    for touch in (lambda each: None, lambda each: each.data.root):
        (output,) = ModelInferResponse.FromString(_answer(received, touch)).outputs
        assert list(getattr(output.contents, field)) == values
    message.inputs[0].shape[:] = [2999]
    with pytest.raises(Exception, match=r"'x' (has|needs).*2999"):
        grpc.receive([], message.SerializeToString())


def test_data_of_another_datatype_are_converted_or_refused() -> None:
    received = _grpc_request(Tensor("x", "FP32", [2], np.array([1.5, 2], np.float32).tobytes()))

    def answer(datatype: str) -> list[Any]:
        request = model_request(received.request, {})
        output = ResponseOutput(name="y", shape=[2], datatype=datatype, data=request.inputs[0].data)
        response = wire_response(InferenceResponse(model_name="m", outputs=[output]), request)
        (raw,) = ModelInferResponse.FromString(bytes(received.encode(response)[1])).raw_output_contents
        return flat_list(Tensor("y", datatype, [2], raw))

    assert answer("FP64") == [1.5, 2]
    with pytest.raises(Exception, match="'y' holds what is no INT8"):
        answer("INT8")


def test_what_the_model_changes_is_what_the_client_gets() -> None:
    def append(each: RequestInput) -> None:
        each.data.root[0] = 7.0

    def replace(each: RequestInput) -> None:
        each.data.root = [8.0]

    for touch, wanted in ((append, 7.0), (replace, 8.0)):
        raw = np.array([1], np.float32).tobytes()
        answer = ModelInferResponse.FromString(_answer(_grpc_request(Tensor("x", "FP32", [1], raw)), touch))
        assert np.frombuffer(answer.raw_output_contents[0], np.float32).tolist() == [wanted]


def test_nan_is_none_in_the_list_of_an_array_and_nan_in_that_of_a_client() -> None:
    array = np.array([1, math.nan], np.float32)
    assert UnreadData.of_tensor(tensor_of("", array), nan_is_null=True).root == [1.0, None]
    assert math.isnan(lazily(Tensor("x", "FP32", [2], array.tobytes())).root[1])


def test_threads_that_read_at_once_get_one_list(monkeypatch: pytest.MonkeyPatch) -> None:
    data = lazily(Tensor("x", "FP32", [2], np.array([1, 2], np.float32).tobytes()))
    inside: list[Any] = []

    def read_in_between(tensor: Tensor) -> list[Any]:
        if not inside:
            inside.append(None)
            inside[0] = data.root  # as another thread would
        return flat_list(tensor)

    monkeypatch.setattr(unread_data, "flat_list", read_in_between)
    assert data.root is inside[0]
    assert data.root == [1.0, 2.0]


def test_threads_read_many_data_at_once() -> None:
    raw = bytes(4)
    tensors = [lazily(Tensor("x", "FP32", [1], raw)) for _ in range(2000)]
    started = threading.Barrier(4)

    def read() -> list[Any]:
        started.wait(20)
        return [data.root for data in tensors]

    with ThreadPoolExecutor(4) as threads:
        lists = [reading.result(20) for reading in [threads.submit(read) for _ in range(4)]]
    for first, *others in zip(*lists, strict=True):
        assert all(other is first for other in others)


@pytest.mark.parametrize("shape", [[4], [4, 1], [2, 2]])
def test_a_column_of_a_data_frame_is_as_long_whether_its_data_were_read_or_not(shape: list[int]) -> None:
    tensor = Tensor("x", "FP32", shape, np.arange(4, dtype=np.float32).tobytes())
    frames = [
        PandasCodec.decode_request(InferenceRequest(inputs=[as_input(tensor, make(tensor))]))
        for make in (lazily, eagerly)
    ]
    assert frames[0]["x"].tolist() == [0, 1, 2, 3]
    pd.testing.assert_frame_equal(*frames)


def test_memory_of_a_megabyte_that_only_passes_through() -> None:
    tensor = Tensor("x", "FP32", [1 << 18], bytes(1 << 20))
    _answer(_grpc_request(tensor), lambda each: None)
    received = _grpc_request(tensor)
    tracemalloc.start()
    try:
        _answer(received, lambda each: None)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
