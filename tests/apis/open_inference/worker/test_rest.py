"""The REST form: what comes in as JSON or binary, and what goes back."""

import json
import math
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.apis.open_inference.worker.rest_documents import JOB, LENGTH, answer, fp32, received, refusal

from ts.apis.open_inference.receive import receive
from ts.apis.open_inference.tensors import flat_list, raw_bytes
from ts.apis.open_inference.types import InferenceResponse, RequestedOutput, Tensor
from ts.jobs.errors import RowFailure
from ts.protocol.messages import OPEN_INFERENCE_REST, InferRow


def test_data_may_be_nested_or_flat():
    for data in ([1, 2, 3, 4], [[1, 2], [3, 4]], [[[1], [2]], [[3], [4]]]):
        (tensor,) = received(fp32(data, [2, 2])).request.inputs
        assert (tensor.data, tensor.shape) == ([1, 2, 3, 4], [2, 2])


def test_json_is_decoded_by_the_charset_of_its_content_type():
    body = json.dumps({"inputs": [{"name": "é", "shape": [1], "datatype": "INT8", "data": [1]}]}, ensure_ascii=False)
    for charset in ("latin-1", "utf-16-be"):
        request = received(body.encode(charset), content_type=f"application/json; charset={charset}").request
        assert request.inputs[0].name == "é"
    assert refusal(body.encode(), content_type="application/json; charset=utf-9").status == 415
    failure = refusal(body.encode(), content_type="application/json; charset=ascii")
    assert (failure.status, "'ascii' codec" in failure.message) == (400, True)


def test_a_scalar_has_the_empty_shape_and_an_empty_tensor_no_data():
    assert received(fp32([2.5], [])).request.inputs[0].data == [2.5]
    assert received(fp32(2.5, [])).request.inputs[0].data == [2.5]
    assert received(fp32([], [0, 3])).request.inputs[0].data == []


def test_null_means_absent_at_every_level():
    request = received(
        {
            "id": None,
            "parameters": None,
            "inputs": [
                {"name": "p", "shape": [1], "datatype": "BYTES", "data": ["x"], "parameters": {"content_type": None}}
            ],
            "outputs": None,
            "model_name": "ignored",
        }
    ).request
    assert (request.id, request.parameters, request.outputs) == (JOB, {}, None)
    assert request.inputs[0].parameters == {}


def test_parameters_and_requested_outputs_reach_the_model():
    request = received(
        fp32([1], [1], id="7", parameters={"temperature": 0.5, "x": {"y": [1]}}, outputs=[{"name": "out"}])
    ).request
    assert request.id == "7"
    assert request.parameters == {"temperature": 0.5, "x": {"y": [1]}}
    assert request.outputs == [RequestedOutput("out")]


def test_null_in_floats_is_nan_and_nan_is_null():
    to = received(fp32([None, 1], [2]))
    assert math.isnan(to.request.inputs[0].data[0])
    _, document, _ = answer(to, Tensor("y", "FP64", [3], [math.nan, math.inf, 1.0]))
    assert document["outputs"][0]["data"] == [None, None, 1.0]


def test_what_pythons_json_writes_for_nan_is_understood():
    body = b'{"inputs": [{"name": "x", "shape": [2], "datatype": "FP32", "data": [NaN, -Infinity]}]}'
    data = received(body).request.inputs[0].data
    assert math.isnan(data[0])
    assert data[1] == -math.inf


def test_nan_does_not_keep_a_text_from_having_any_character():
    tensor = rb'{"name": "x", "shape": [1], "datatype": "BYTES", "data": ["\ud83d\ude00"]}'
    body = b'{"parameters": {"x": NaN}, "inputs": [%b]}' % tensor
    assert received(body).request.inputs[0].data == ["\N{GRINNING FACE}"]


def test_an_empty_id_is_no_id():
    assert received(fp32([1], [1], id="")).request.id == JOB


@pytest.mark.parametrize(
    ("document", "status", "says"),
    [
        (b"{", 400, "no JSON"),
        (rb'{"inputs": [{"name": "x", "shape": [1], "datatype": "BYTES", "data": ["\ud800"]}]}', 400, "no JSON"),
        (b"[1]", 422, "JSON object"),
        ({}, 422, '"inputs"'),
        ({"inputs": {}}, 422, "an object"),
        ({"inputs": [7]}, 422, "number 0"),
        (fp32([1], [1], id=7), 422, '"id"'),
        (fp32([1], [1], parameters=[1]), 422, '"parameters"'),
        (fp32([1], [1], outputs=[{}]), 422, '"name"'),
        (fp32([1], [1], parameters={"binary_data_output": 1}), 422, "binary_data_output"),
        (fp32([1], [-1]), 422, '"shape"'),
        (fp32([1], [True]), 422, '"shape"'),
        (fp32(None, [1]), 422, '"data"'),
        ({"inputs": [{"name": "x", "shape": [1], "datatype": "FP99", "data": [1]}]}, 422, "FP99"),
        (fp32([1, 2], [3]), 400, "needs 3"),
        (fp32([[1], 2], [2]), 400, "unevenly"),
        (fp32(["1"], [1]), 400, "no FP32"),
        ({"inputs": [{"name": "x", "shape": [1], "datatype": "INT8", "data": [128]}]}, 400, "-128 to 127"),
        ({"inputs": [{"name": "x", "shape": [1], "datatype": "INT8", "data": [1.5]}]}, 400, "INT8"),
        ({"inputs": [{"name": "x", "shape": [1], "datatype": "BOOL", "data": [2]}]}, 400, "BOOL"),
        ({"inputs": [{"name": "x", "shape": [1], "datatype": "BYTES", "data": [1]}]}, 400, "BYTES"),
        (fp32([1], [1], outputs=[{"name": "y", "parameters": {"classification": 3}}]), 501, "classification"),
        (
            {"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "parameters": {"shared_memory_region": "r"}}]},
            501,
            "shared memory",
        ),
    ],
)
def test_a_request_that_is_wrong_says_what_is_wrong(document: Any, status: int, says: str):
    failure = refusal(document)
    assert (failure.status, says in failure.message) == (status, True), failure.message


def binary_input(size: Any, **more: Any) -> dict[str, Any]:
    return {
        "inputs": [{"name": "x", "shape": [2], "datatype": "FP32", "parameters": {"binary_data_size": size}}],
        **more,
    }


def test_binary_inputs_follow_the_json_in_order():
    document = {
        "inputs": [
            {"name": "a", "shape": [1], "datatype": "INT32", "parameters": {"binary_data_size": 4}},
            {"name": "j", "shape": [1], "datatype": "FP32", "data": [2]},
            {"name": "e", "shape": [0], "datatype": "INT32", "parameters": {"binary_data_size": 0}},
            {"name": "b", "shape": [2], "datatype": "BYTES", "parameters": {"binary_data_size": 12}},
        ]
    }
    inputs = received(document, b"\x01\0\0\0" + b"\x01\0\0\0a\x03\0\0\0b\xc3\xa9").request.inputs
    assert [flat_list(tensor) for tensor in inputs] == [[1], [2], [], [b"a", "bé".encode()]]
    assert all(tensor.parameters == {} for tensor in inputs)


def test_the_golden_request_of_tritons_client_is_understood():
    body = (
        b'{"id":"42","inputs":[{"name":"INPUT0","shape":[1,2],"datatype":"FP32","parameters":{"binary_data_size":8}}],'
        b'"outputs":[{"name":"OUTPUT0","parameters":{"binary_data":true}}]}'
    )
    assert len(body) == 173
    to = received(body, b"\0\0\x80?\0\0\0@")
    assert flat_list(to.request.inputs[0]) == [1.0, 2.0]
    headers, document, binary = answer(to, Tensor("OUTPUT0", "FP32", [1, 2], [3.0, 4.0]))
    assert headers["content-type"] == "application/octet-stream"
    assert document == {
        "model_name": "m",
        "model_version": "1",
        "id": "42",
        "outputs": [{"name": "OUTPUT0", "shape": [1, 2], "datatype": "FP32", "parameters": {"binary_data_size": 8}}],
    }
    assert binary == struct.pack("<2f", 3.0, 4.0)


@pytest.mark.parametrize(
    ("document", "binary", "length", "says"),
    [
        (binary_input(8), b"1234", None, "announces 8 bytes"),
        (binary_input(8), b"123456789", None, "1 bytes behind"),
        (binary_input(4), b"1234", None, "4 bytes"),
        (binary_input(8), b"", None, "announces 8 bytes"),
        (binary_input(8), b"12345678", 10_000, "from 0 to"),
        (binary_input(-8), b"", None, "at least 0"),
        (binary_input("8"), b"", None, "at least 0"),
        (fp32([1], [1]), b"x", None, "1 bytes behind"),
    ],
)
def test_binary_data_that_do_not_fit_are_refused(document: Any, binary: bytes, length: int | None, says: str):
    failure = refusal(document, binary, length=length)
    assert failure.status in (400, 422)
    assert says in failure.message


@pytest.mark.parametrize("length", [b"-1", b"3", b"two", "²".encode(), b"9" * 5000])
def test_a_broken_length_header_is_refused(length: bytes):
    with pytest.raises(RowFailure, match="must be an integer") as refused:
        receive(InferRow(JOB, [(LENGTH, length)], "", b"{}", OPEN_INFERENCE_REST, False))
    assert refused.value.status == 400


def test_the_form_of_each_output_wins_over_the_requests():
    document = fp32(
        [1],
        [1],
        parameters={"binary_data_output": True, "kept": 1},
        outputs=[{"name": "a"}, {"name": "b", "parameters": {"binary_data": False}}],
    )
    to = received(document)
    assert to.request.parameters == {"kept": 1}
    _, answered, binary = answer(to, Tensor("a", "INT8", [1], [5]), Tensor("b", "INT8", [1], [6]))
    assert [output.get("data") for output in answered["outputs"]] == [None, [6]]
    assert binary == b"\x05"


def test_outputs_keep_their_parameters_in_every_form():
    document = fp32([1], [1], outputs=[{"name": "a", "parameters": {"binary_data": True}}, {"name": "b"}])
    outputs = (
        Tensor("a", "BYTES", [1], ["/w=="], {"content_type": "base64"}),
        Tensor("b", "INT8", [1], [6], {"content_type": "np"}),
    )
    _, answered, binary = answer(received(document), *outputs)
    assert [output["parameters"] for output in answered["outputs"]] == [
        {"content_type": "base64", "binary_data_size": 8},
        {"content_type": "np"},
    ]
    assert binary == b"\x04\0\0\0/w=="
    # Triton's client in C++ reads an output that has any parameters as a binary one.
    _, answered, binary = answer(
        received(document, length=len(json.dumps(document)), agent="libcurl-agent/1.0"), *outputs
    )
    assert answered["outputs"][0]["parameters"] == {"content_type": "base64", "binary_data_size": 8}
    assert "parameters" not in answered["outputs"][1]


def test_an_answer_whose_binary_outputs_are_empty_is_plain_json():
    to = received(fp32([1], [1], parameters={"binary_data_output": True}))
    headers, document, binary = answer(to, Tensor("a", "FP32", [0], []))
    assert headers == {"content-type": "application/json"}
    assert document["outputs"][0]["parameters"] == {"binary_data_size": 0}
    assert binary == b""


def test_an_answer_to_mlservers_clients_has_the_parameters_of_outputs():
    to = received(fp32([1], [1], id="7f"))
    headers, body = to.encode(
        InferenceResponse(
            "sum-model", "v1.2.3", None, {}, [Tensor("total", "FP32", [1, 1], [6.0], {"content_type": "np"})]
        )
    )
    assert headers == [("content-type", "application/json")]
    assert body == (
        b'{"model_name":"sum-model","model_version":"v1.2.3","id":"7f","parameters":{},"outputs":[{"name":"total",'
        b'"shape":[1,1],"datatype":"FP32","parameters":{"content_type":"np"},"data":[6.0]}]}'
    )


def test_an_event_is_one_line_without_empty_parameters():
    to = received(fp32([1], [1], id="7f"), endpoint="infer_stream")
    output = Tensor("output", "BYTES", [1, 1], ["What\nnow"], {"content_type": "str"})
    _, body = to.encode(InferenceResponse("text-model", None, None, {"headers": {"Ce-Id": "1"}}, [output]))
    assert body == (
        b'{"model_name":"text-model","id":"7f","outputs":[{"name":"output","shape":[1,1],"datatype":"BYTES",'
        b'"parameters":{"content_type":"str"},"data":["What\\nnow"]}]}'
    )


def test_headers_of_a_response_become_http_headers():
    headers, document, _ = answer(received(fp32([1], [1])), headers={"X-Cost": 3}, usage=2)
    assert headers["x-cost"] == "3"
    assert document["parameters"] == {"usage": 2}


def test_only_the_outputs_that_were_asked_for_come_back():
    to = received(fp32([1], [1], outputs=[{"name": "b"}]))
    _, document, _ = answer(to, Tensor("a", "INT8", [1], [1]), Tensor("b", "INT8", [1], [2]))
    assert [output["name"] for output in document["outputs"]] == ["b"]
    with pytest.raises(RowFailure, match="no output 'b'; its outputs are 'a'") as caught:
        answer(to, Tensor("a", "INT8", [1], [1]))
    assert caught.value.status == 400


def test_bytes_that_are_no_text_cannot_be_json():
    image = Tensor("image", "BYTES", [1], [b"\xff\xd8"])
    with pytest.raises(RowFailure, match=r"'image'.*binary_data") as caught:
        answer(received(fp32([1], [1])), image)
    assert caught.value.status == 400
    _, _, binary = answer(received(fp32([1], [1], parameters={"binary_data_output": True})), image)
    assert binary == b"\x02\0\0\0\xff\xd8"


def test_a_raw_body_is_the_only_input():
    declared = {"inputs": [{"name": "x", "datatype": "INT16", "shape": [2, -1]}]}
    to = received(b"\1\0\2\0\3\0\4\0", length=0, declared=declared)
    (tensor,) = to.request.inputs
    assert (tensor.name, tensor.shape, flat_list(tensor)) == ("x", [2, 2], [1, 2, 3, 4])
    headers, _, binary = answer(to, Tensor("y", "INT8", [1], [7]))
    assert (headers["content-type"], binary) == ("application/octet-stream", b"\7")


def test_a_raw_body_of_bytes_needs_no_length_in_front():
    declared = {"inputs": [{"name": "image", "datatype": "BYTES", "shape": [1]}]}
    (tensor,) = received(b"\xff\xd8", length=0, declared=declared).request.inputs
    assert (tensor.shape, flat_list(tensor)) == ([1], [b"\xff\xd8"])


@pytest.mark.parametrize(
    "inputs",
    [
        [],
        [{"name": "x", "datatype": "INT8", "shape": [-1, -1]}],
        [{"name": "x", "datatype": "INT16", "shape": [3]}],
    ],
)
def test_a_raw_body_that_could_be_anything_is_refused(inputs: list[dict[str, Any]]):
    assert refusal(b"1234", length=0, declared={"inputs": inputs}).status == 400


_VALUES: dict[str, Any] = {
    "BOOL": st.booleans(),
    "UINT8": st.integers(0, 2**8 - 1),
    "UINT16": st.integers(0, 2**16 - 1),
    "UINT32": st.integers(0, 2**32 - 1),
    "UINT64": st.integers(0, 2**64 - 1),
    "INT8": st.integers(-(2**7), 2**7 - 1),
    "INT16": st.integers(-(2**15), 2**15 - 1),
    "INT32": st.integers(-(2**31), 2**31 - 1),
    "INT64": st.integers(-(2**63), 2**63 - 1),
    "FP16": st.floats(width=16, allow_nan=False, allow_infinity=False),
    "FP32": st.floats(width=32, allow_nan=False, allow_infinity=False),
    "FP64": st.floats(allow_nan=False, allow_infinity=False),
    "BYTES": st.text(),
}
_TENSORS = st.sampled_from(sorted(_VALUES)).flatmap(
    lambda datatype: st.lists(_VALUES[datatype], max_size=8).map(lambda data: (datatype, data))
)


@given(tensors=st.lists(_TENSORS, max_size=4), binary_in=st.booleans(), binary_out=st.booleans())
def test_every_tensor_survives_the_way_in_and_out(tensors: list[Any], binary_in: bool, binary_out: bool):
    inputs, blob = [], b""
    for number, (datatype, data) in enumerate(tensors):
        item: dict[str, Any] = {"name": str(number), "shape": [len(data)], "datatype": datatype}
        if binary_in:
            raw = bytes(raw_bytes(Tensor("", datatype, [len(data)], data)))
            item["parameters"] = {"binary_data_size": len(raw)}
            blob += raw
        else:
            item["data"] = data
        inputs.append(item)
    to = received({"inputs": inputs, "parameters": {"binary_data_output": binary_out}}, blob)
    assert [list(map(_text, flat_list(each))) for each in to.request.inputs] == [data for _, data in tensors]
    _, document, binary = answer(to, *to.request.inputs)
    for output, (datatype, data) in zip(document["outputs"], tensors, strict=True):
        if binary_out:
            size = output["parameters"]["binary_data_size"]
            part, binary = binary[:size], binary[size:]
            assert list(map(_text, flat_list(Tensor("", datatype, [len(data)], part)))) == data
        else:
            assert output["data"] == data


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


@given(st.binary(max_size=200), st.integers(0, 220))
def test_any_bytes_are_either_a_request_or_refused(body: bytes, length: int):
    for headers in ([], [(LENGTH, str(length).encode())]):
        try:
            receive(InferRow(JOB, headers, "", body, OPEN_INFERENCE_REST, False))
        except RowFailure as failure:
            assert failure.status in (400, 422)
