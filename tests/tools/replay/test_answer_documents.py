"""Answers of each protocol as values: what the worker wrote, and what a client gets, are the same."""

import base64
import json
import struct
from typing import Any

import msgpack
import numpy as np
import pytest
from tests.tools.replay.recorded import recorded

from torchserve_py.tools.replay.answer_documents import NotComparable, recorded_documents, replayed_documents
from ts.apis.open_inference.protos.infer_pb2 import ModelInferResponse
from ts.apis.openpi.openpi_rows import _plain

GRPC, REST = "open_inference_grpc", "open_inference_rest"


def answered(protocol: str, *parts: bytes, **changes: Any) -> Any:
    """A record of this answer."""
    answer = {"answer": base64.b64encode(b"".join(parts)).decode(), "answer_form": "base64"}
    return recorded(protocol=protocol, **answer, part_bytes=[len(each) for each in parts], **changes)


def response(datatype: str, data: Any, field: str = "") -> bytes:
    message = ModelInferResponse(model_name="m", model_version="1.0", id="i")
    output = message.outputs.add(name="y", datatype=datatype, shape=[2])
    output.parameters["p"].double_param = 0.5
    if field:
        getattr(output.contents, field).extend(data)
    else:
        message.raw_output_contents.append(data)
    return message.SerializeToString()


@pytest.mark.parametrize(
    ("datatype", "data", "field", "values"),
    [
        ("FP32", [1.5, 2.0], "fp32_contents", [1.5, 2.0]),
        ("FP32", struct.pack("<2f", 1.5, 2), "", [1.5, 2.0]),
        ("FP16", struct.pack("<2e", 1.5, 2), "", [1.5, 2.0]),
        ("BF16", struct.pack("<2f", 1.5, -2)[2:4] + struct.pack("<f", -2)[2:], "", [1.5, -2.0]),
        ("INT64", struct.pack("<2q", -3, 2**60), "", [-3, 2**60]),
        ("BYTES", b"\x01\0\0\0a\0\0\0\0", "", [b"a", b""]),
        ("BYTES", b"\x09\0\0\0a", "", b"\x09\0\0\0a"),
        ("FP32", b"123", "", b"123"),
        ("STRANGE", b"123", "", b"123"),
    ],
)
def test_tensors_over_grpc_are_lists_in_either_form(datatype: str, data: Any, field: str, values: Any) -> None:
    message = response(datatype, data, field)
    (document,) = recorded_documents(answered(GRPC, message))
    assert document["outputs"][0]["data"] == values
    assert (document["id"], document["outputs"][0]["parameters"]) == ("i", {"p": 0.5})
    assert replayed_documents(answered(GRPC), [message], {}) == [document]


def test_each_message_of_a_stream_is_a_document() -> None:
    stream = {"headers": {":endpoint": "infer_stream"}}
    parts = [response("INT8", b"\x01\x02"), response("INT8", b"\x03\x04")]
    assert [each["outputs"][0]["data"] for each in recorded_documents(answered(GRPC, *parts, b"", **stream))] == [
        [1, 2],
        [3, 4],
    ]
    events = [b'{"a": 1}', b'{"a": 2}']
    record = answered(REST, *events, b"", headers={":endpoint": "infer_stream"})
    sent = b"".join(b"data: %s\n\n" % each for each in events)
    assert recorded_documents(record) == replayed_documents(record, [sent], {}) == [{"a": 1}, {"a": 2}]
    record["part_bytes"] = [3]
    with pytest.raises(NotComparable, match="more parts than a journal tells apart"):
        recorded_documents(record)


def test_tensors_behind_json_are_put_into_it() -> None:
    output = {"name": "y", "datatype": "FP32", "shape": [2], "parameters": {"binary_data_size": 8}}
    head = json.dumps({"outputs": [output, {"name": "z", "data": [1]}]}).encode()
    body, headers = head + struct.pack("<2f", 1, 2.5), {"inference-header-content-length": str(len(head))}
    (document,) = recorded_documents(answered(REST, body, answer_headers=headers))
    assert document["outputs"][0]["data"] == [1.0, 2.5]
    assert replayed_documents(answered(REST), [body], headers) == [document]
    assert replayed_documents(answered(REST), [body], {"inference-header-content-length": "5"}) == [body]


def test_actions_are_compared_without_their_timing() -> None:
    actions = {"a": np.arange(4, dtype=">i2").reshape(2, 2), "s": np.float32(0.5), "n": [True], "t": np.array(["x"])}
    worker = msgpack.packb(actions, default=_plain)
    client = msgpack.packb({**actions, "server_timing": {"infer_ms": 3.0}}, default=_plain)
    (document,) = recorded_documents(answered("openpi", worker))
    assert replayed_documents(answered("openpi"), [client], {}) == [document]
    assert document["a"] == {"dtype": ">i2", "shape": [2, 2], "data": [0, 1, 2, 3]}
    assert document["s"] == {"dtype": "<f4", "data": 0.5}


def test_an_answer_that_was_cut_or_spoilt_is_not_compared() -> None:
    with pytest.raises(NotComparable, match="was cut"):
        recorded_documents(recorded(answer_cut=True))
    with pytest.raises(NotComparable, match="cannot be read"):
        recorded_documents(recorded(answer="…", answer_form="base64"))
