"""Looking for the fields of a message finds those that protobuf finds."""

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from ts.apis.open_inference import grpc
from ts.apis.open_inference.protos.infer_pb2 import InferParameter, ModelInferRequest
from ts.apis.open_inference.tensors import flat_list
from ts.apis.open_inference.wire_fields import LARGE_MESSAGE, fields_of
from ts.jobs.errors import RowFailure


@given(
    st.text(max_size=300),
    st.lists(st.binary(max_size=300), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(0, 2**63 - 1), max_size=3),
)
def test_fields_of_a_message(name, raw, parameters):
    message = ModelInferRequest(model_name=name, raw_input_contents=raw)
    for key, value in parameters.items():
        message.parameters[key].int64_param = value
    body = message.SerializeToString()
    fields = fields_of(body)
    assert b"".join(body[field.start : field.end] for field in fields) == body
    assert [body[field.value : field.end] for field in fields if field.number == 7] == raw
    assert [body[field.value : field.end].decode() for field in fields if field.number == 1] == [name] * bool(name)


@pytest.mark.parametrize(
    "parameter", [InferParameter(int64_param=2**62), InferParameter(double_param=0.5), InferParameter(bool_param=True)]
)
def test_fields_of_every_type(parameter):
    (field,) = fields_of(parameter.SerializeToString())
    assert field.end == parameter.ByteSize()


@given(st.binary(max_size=100))
def test_what_is_no_message_is_refused(body):
    try:
        fields_of(body)
    except ValueError as error:
        if "the unknown type 3" in str(error):
            return  # a group: proto3 has none, protobuf passes over them all the same
        with pytest.raises(DecodeError):
            ModelInferRequest.FromString(body)


@pytest.mark.parametrize("body", [b"\x0a", b"\x0a\x05abc", b"\x0b", b"\xff" * 20, b"\x09\x00", b"\x08"])
def test_a_message_that_is_cut_off(body):
    with pytest.raises(ValueError, match="byte"):
        fields_of(body)


def test_large_tensors_are_left_where_they_are():
    contents = bytes(range(256)) * (LARGE_MESSAGE // 256)
    message = ModelInferRequest(model_name="m", id="7", raw_input_contents=[contents, b"\x01"])
    message.inputs.add(name="x", datatype="UINT8", shape=[len(contents)])
    message.inputs.add(name="y", datatype="BOOL", shape=[1])
    body = message.SerializeToString()
    request = grpc.receive([], body).request
    assert (request.model_name, request.id) == ("m", "7")
    assert bytes(flat_list(request.inputs[0])) == contents
    assert request.inputs[0].data.obj is body
    assert flat_list(request.inputs[1]) == [True]
    with pytest.raises(RowFailure, match="no inference"):
        grpc.receive([], body[:-1])
