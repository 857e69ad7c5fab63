"""The gRPC form: what a client sends is what the model gets, and the other way round."""

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ts.apis.open_inference import grpc
from ts.apis.open_inference.protos.infer_pb2 import ModelInferRequest, ModelInferResponse
from ts.apis.open_inference.tensors import flat_list, numpy_of, raw_bytes, tensor_of
from ts.apis.open_inference.types import InferenceResponse, RequestedOutput, Tensor
from ts.jobs.errors import RowFailure

#: What tritonclient 2.73 sends for a request of a sequence.
GOLDEN = bytes.fromhex(
    "0a016d1a013722120a0c73657175656e63655f656e641202080022120a0b73657175656e63655f6964120310e90722140a0e73657175656e"
    "63655f737461727412020801220e0a0174120921000000000000e03f2a120a06494e505554301204465033321a02010232090a074f555450"
    "5554303a080000803f00000040"
)

NUMBERS: dict[str, tuple[str, st.SearchStrategy[Any]]] = {
    "BOOL": ("bool_contents", st.booleans()),
    "INT8": ("int_contents", st.integers(-(2**7), 2**7 - 1)),
    "INT16": ("int_contents", st.integers(-(2**15), 2**15 - 1)),
    "INT32": ("int_contents", st.integers(-(2**31), 2**31 - 1)),
    "INT64": ("int64_contents", st.integers(-(2**63), 2**63 - 1)),
    "UINT8": ("uint_contents", st.integers(0, 2**8 - 1)),
    "UINT16": ("uint_contents", st.integers(0, 2**16 - 1)),
    "UINT32": ("uint_contents", st.integers(0, 2**32 - 1)),
    "UINT64": ("uint64_contents", st.integers(0, 2**64 - 1)),
    "FP32": ("fp32_contents", st.floats(width=32, allow_nan=False)),
    "FP64": ("fp64_contents", st.floats(allow_nan=False)),
    "BYTES": ("bytes_contents", st.binary(max_size=20)),
}


@st.composite
def tensors(draw: st.DrawFn) -> tuple[str, str, list[Any]]:
    """A datatype, the field of its typed form, and elements."""
    datatype = draw(st.sampled_from(sorted(NUMBERS)))
    field, elements = NUMBERS[datatype]
    return datatype, field, draw(st.lists(elements, min_size=1, max_size=8))


def typed(datatype: str, field: str, elements: list[Any], **more: Any) -> ModelInferRequest:
    request = ModelInferRequest(model_name="m", **more)
    sent = request.inputs.add(name="x", datatype=datatype, shape=[len(elements)])
    getattr(sent.contents, field).extend(elements)
    return request


def receive(request: ModelInferRequest) -> grpc.GrpcRequest:
    return grpc.receive([("k", "v")], request.SerializeToString())


def answer(received: grpc.GrpcRequest, *outputs: Tensor, **more: Any) -> ModelInferResponse:
    _, body = received.encode(InferenceResponse("m", outputs=list(outputs), **more))
    return ModelInferResponse.FromString(bytes(body))


def refusal(request: ModelInferRequest) -> RowFailure:
    with pytest.raises(RowFailure) as refused:
        receive(request)
    return refused.value


def test_a_request_of_tritonclient():
    received = grpc.receive([], GOLDEN)
    request = received.request
    assert (request.model_name, request.model_version, request.id) == ("m", "", "7")
    assert request.parameters == {"sequence_id": 1001, "sequence_start": True, "sequence_end": False, "t": 0.5}
    assert request.outputs == [RequestedOutput("OUTPUT0")]
    (tensor,) = request.inputs
    assert (tensor.name, tensor.datatype, tensor.shape) == ("INPUT0", "FP32", [1, 2])
    assert numpy_of(tensor).tolist() == [[1.0, 2.0]]
    assert received.answers_raw


@given(tensors())
def test_typed_there_and_back(tensor):
    datatype, field, elements = tensor
    received = receive(typed(datatype, field, elements))
    (given_input,) = received.request.inputs
    assert flat_list(given_input) == elements
    response = answer(received, Tensor("y", datatype, [len(elements)], elements))
    assert list(getattr(response.outputs[0].contents, field)) == elements
    assert not response.raw_output_contents


@given(tensors())
def test_raw_there_and_back(tensor):
    datatype, _, elements = tensor
    raw = bytes(raw_bytes(Tensor("x", datatype, [len(elements)], elements)))
    request = ModelInferRequest(model_name="m", raw_input_contents=[raw])
    request.inputs.add(name="x", datatype=datatype, shape=[len(elements)])
    received = receive(request)
    (given_input,) = received.request.inputs
    assert flat_list(given_input) == elements
    response = answer(received, Tensor("y", datatype, [len(elements)], elements))
    assert list(response.raw_output_contents) == [raw]
    assert not response.outputs[0].HasField("contents")


@given(st.lists(st.binary(max_size=300), max_size=4))
def test_each_output_has_one_raw_entry_of_whatever_size(contents):
    received = receive(ModelInferRequest(model_name="m"))
    response = answer(received, *(Tensor(f"y{i}", "UINT8", [len(each)], each) for i, each in enumerate(contents)))
    assert list(response.raw_output_contents) == contents
    assert [list(output.shape) for output in response.outputs] == [[len(each)] for each in contents]


def test_arrays_of_numpy_are_sent_as_they_are():
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    response = answer(receive(ModelInferRequest(model_name="m")), tensor_of("y", array))
    assert np.frombuffer(response.raw_output_contents[0], np.float32).reshape(2, 3).tolist() == array.tolist()


@pytest.mark.parametrize(
    ("request_", "raw"),
    [
        (typed("FP32", "fp32_contents", [1.0]), False),
        (typed("FP32", "fp32_contents", [1.0], parameters={"content_type": {"string_param": "np"}}), False),
        (typed("FP32", "fp32_contents", [1.0], parameters={"sequence_id": {"int64_param": 1}}), True),
        (typed("FP32", "fp32_contents", [1.0], parameters={"timeout": {"int64_param": 1}}), True),
        (typed("FP32", "fp32_contents", [1.0], parameters={"triton_x": {"bool_param": True}}), True),
        (ModelInferRequest(model_name="m"), True),
        (typed("FP32", "fp32_contents", []), True),
    ],
)
def test_the_form_of_the_answer(request_, raw):
    response = answer(receive(request_), Tensor("y", "FP32", [1], [0.5]))
    assert bool(response.raw_output_contents) is raw
    assert list(response.outputs[0].contents.fp32_contents) == ([] if raw else [0.5])


@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
def test_half_precision_makes_the_whole_answer_raw(datatype):
    received = receive(typed("FP32", "fp32_contents", [1.0]))
    response = answer(received, Tensor("a", "INT32", [1], [7]), Tensor("b", datatype, [1], [1.5]))
    bits = struct.pack("<e", 1.5) if datatype == "FP16" else struct.pack("<f", 1.5)[2:]
    assert list(response.raw_output_contents) == [struct.pack("<i", 7), bits]
    assert not response.outputs[0].HasField("contents")


@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
def test_half_precision_in(datatype):
    bits = struct.pack("<e", 1.5) if datatype == "FP16" else struct.pack("<f", 1.5)[2:]
    request = ModelInferRequest(model_name="m", raw_input_contents=[bits])
    request.inputs.add(name="x", datatype=datatype, shape=[1])
    assert numpy_of(receive(request).request.inputs[0]).tolist() == [1.5]


def test_text_and_bytes_are_elements_of_bytes():
    received = receive(typed("BYTES", "bytes_contents", [b"\xff"]))
    assert flat_list(received.request.inputs[0]) == [b"\xff"]
    response = answer(received, Tensor("y", "BYTES", [2], ["é", b"\xff"]))
    assert list(response.outputs[0].contents.bytes_contents) == ["é".encode(), b"\xff"]


def test_the_id_is_echoed_and_empty_where_there_was_none():
    assert answer(receive(ModelInferRequest(model_name="m", id="ü 1"))).id == "ü 1"
    without = receive(ModelInferRequest(model_name="m"))
    assert without.request.id is None
    assert answer(without).id == ""


def test_parameters_of_every_type():
    values = {"b": True, "i": -5, "u": 2**63, "f": 0.25, "s": "text"}
    response = answer(receive(ModelInferRequest(model_name="m")), parameters={**values, "none": None, "list": [1]})
    assert {name: each.WhichOneof("parameter_choice") for name, each in response.parameters.items()} == {
        "b": "bool_param",
        "i": "int64_param",
        "u": "uint64_param",
        "f": "double_param",
        "s": "string_param",
    }
    sent = ModelInferRequest(model_name="m", parameters=response.parameters)
    sent.parameters["unset"].SetInParent()
    assert receive(sent).request.parameters == values


def test_headers_become_metadata():
    received = receive(ModelInferRequest(model_name="m"))
    headers, body = received.encode(InferenceResponse("m", parameters={"headers": {"X-Answer": "42"}}))
    assert headers == [("x-answer", "42")]
    assert not ModelInferResponse.FromString(bytes(body)).parameters


def test_only_the_outputs_asked_for():
    request = ModelInferRequest(model_name="m")
    for name in ("b", "a"):
        request.outputs.add(name=name)
    outputs = [Tensor(name, "INT32", [1], [number]) for number, name in enumerate("abc")]
    response = answer(receive(request), *outputs)
    assert [output.name for output in response.outputs] == ["a", "b"]
    assert list(response.raw_output_contents) == [struct.pack("<i", 0), struct.pack("<i", 1)]
    with pytest.raises(RowFailure, match=r"no output 'b'.*'a'") as refused:
        answer(receive(request), outputs[0])
    assert refused.value.status == 400


def _raw(datatype: str, shape: list[int], *contents: bytes, **more: Any) -> ModelInferRequest:
    request = ModelInferRequest(model_name="m", raw_input_contents=contents)
    request.inputs.add(name="x", datatype=datatype, shape=shape, **more)
    return request


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (_raw("FP32", [2], b"1234"), "'x' has 4 bytes; FP32 with the shape .2. needs 8"),
        (_raw("FP32", [-1], b"1234"), "no dimension may be negative"),
        (_raw("FP32", [1], b"1234", b"1234"), "2 entries for 1 inputs"),
        (_raw("FP32", [1], b"1234", contents={"fp32_contents": [1.0]}), "has contents, and .* raw_input_contents"),
        (_raw("FLOAT", [1], b"1234"), "FLOAT"),
        (_raw("BYTES", [1], b"\x05\x00\x00\x00ab"), "'x'"),
        (typed("INT32", "fp32_contents", [1.0]), "fp32_contents; INT32 belongs in int_contents"),
        (typed("FP16", "bytes_contents", [b"12"]), "FP16 has no typed contents; use raw_input_contents"),
        (typed("FLOAT", "fp32_contents", [1.0]), "FLOAT"),
    ],
)
def test_what_is_wrong_is_said(request_, says):
    failure = refusal(request_)
    assert failure.status == 400
    with pytest.raises(RowFailure, match=says):
        raise failure


@pytest.mark.parametrize("name", ["shared_memory_region", "classification"])
def test_what_is_not_supported_is_said(name):
    request = ModelInferRequest(model_name="m")
    request.outputs.add(name="y").parameters[name].int64_param = 3
    assert refusal(request).status == 501


def test_bytes_that_are_no_message():
    with pytest.raises(RowFailure, match=r"no inference\.ModelInferRequest") as refused:
        grpc.receive([], b"\xff\xff")
    assert refused.value.status == 400


@given(st.binary(max_size=200))
def test_no_bytes_do_harm(body):
    try:
        grpc.receive([], body)
    except RowFailure as failure:
        assert failure.status in (400, 501)


def test_an_answer_that_cannot_be_said():
    received = receive(typed("FP32", "fp32_contents", [1.0]))
    with pytest.raises(RowFailure) as failed:
        answer(received, Tensor("y", "INT32", [1], ["a"]))
    assert failed.value.status == 500
    assert answer(received, Tensor("y", "FP32", [1], [None])).outputs[0].contents.fp32_contents[0] != 0  # NaN
