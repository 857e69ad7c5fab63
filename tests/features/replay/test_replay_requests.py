"""What is sent for a record of each kind."""

import base64
import json
from typing import Any

import pytest
from tests.features.replay.recorded import recorded, step

from torchserve_py.features.replay.replay_requests import NotReplayable, ReplayRequest, request_of
from ts.features.forms.form_bodies import parse_form
from ts.features.open_inference.protos.infer_pb2 import InferParameter, ModelInferRequest


def form_of(body: bytes) -> dict[str, Any]:
    return {"body": base64.b64encode(body).decode(), "body_form": "base64"}


def call(sequence_id: Any = None, **more: Any) -> dict[str, Any]:
    """What the record of a call of the Open Inference Protocol has."""
    message = ModelInferRequest(model_name="m", model_version="1.0", id="7")
    message.inputs.add(name="x", datatype="INT32", shape=[1]).contents.int_contents.append(5)
    if sequence_id is not None:
        message.parameters["sequence_id"].CopyFrom(sequence_id)
        message.parameters["sequence_start"].bool_param = True
    kept = {"via": "grpc", "protocol": "open_inference_grpc", "path": "", "route": ""}
    return {**kept, **form_of(message.SerializeToString()), **more}


def message_in(request: ReplayRequest) -> ModelInferRequest:
    return ModelInferRequest.FromString(request.body)


@pytest.mark.parametrize("named", [InferParameter(int64_param=9), InferParameter(string_param="s")])
def test_a_call_names_the_version_and_the_fresh_sequence(named: InferParameter) -> None:
    request = request_of(step(1, "9", **call(named)), "2.0", "replay-1")
    sent = message_in(request)
    assert (request.door, request.path) == ("grpc", "/inference.GRPCInferenceService/ModelInfer")
    assert (sent.model_version, sent.parameters["sequence_id"].string_param) == ("2.0", "replay-1")
    assert (sent.id, sent.parameters["sequence_start"].bool_param) == ("7", True)
    assert list(sent.inputs[0].contents.int_contents) == [5]
    assert request.headers == {}


def test_a_call_for_the_default_version_names_none() -> None:
    assert message_in(request_of(recorded(**call()), None, None)).model_version == ""


def test_a_call_whose_metadata_name_its_sequence_does_so_again() -> None:
    request = request_of(step(1, "s", **call()), "2.0", "replay-1")
    assert request.headers == {"ts_request_sequence_id": "replay-1"}
    assert "sequence_id" not in message_in(request).parameters


def test_a_stream_asks_for_bare_messages_and_metadata_have_only_what_grpc_takes() -> None:
    headers = {":endpoint": "infer_stream", "x-tenant": "a", "content-type": "application/grpc", "x-name": "é"}
    request = request_of(recorded(**call(headers=headers)), "2.0", None)
    assert request.path.endswith("/ModelStreamInfer")
    assert request.headers == {"x-tenant": "a", "x-stream-envelope": "mlserver"}


@pytest.mark.parametrize("protocol", ["openai_responses", "truss", "custom"])
def test_a_header_names_the_version_where_the_path_cannot(protocol: str) -> None:
    record = step(1, "s", protocol=protocol, method="GET", path="/v1/responses/resp_1?limit=2", route="/v1/responses")
    request = request_of(record, "2.0", "replay-1")
    assert (request.method, request.path) == ("GET", "/v1/responses/resp_1?limit=2")
    assert request.headers["x-model-version"] == "2.0"
    assert ("ts_request_sequence_id" in request.headers) == (protocol != "openai_responses")
    assert "x-model-version" not in request_of(record, None, "replay-1").headers


def test_an_observation_goes_to_a_socket_of_the_version() -> None:
    record = step(1, "openpi-1", **form_of(b"\x80"), protocol="openpi", via="websocket", path="/", route="/")
    request = request_of(record, "2.0", "replay-1")
    assert (request.door, request.path, request.body) == ("openpi", "/openpi/m/2.0", b"\x80")
    assert request_of(record, None, "replay-1").path == "/openpi/m"


def test_what_a_node_of_a_workflow_got_is_sent_to_its_model() -> None:
    record = recorded(model="line__loud", via="workflow", method="", path="", route="", body="hi")
    request = request_of(record, "2.0", None)
    assert (request.method, request.path, request.headers) == ("POST", "/predictions/line__loud/2.0", {})


def test_parameters_become_a_form_with_the_same_fields() -> None:
    fields = [("length", None, "3"), ('a "name" \\ é', "", ""), ("picture", "image/png", "\r\n--")]
    body = [{"name": name, "content_type": kind, "value": value, "form": "text"} for name, kind, value in fields]
    request = request_of(recorded(body=body, body_form="parameters", via="grpc"), "2.0", None)
    read = parse_form(request.headers["content-type"], request.body)
    assert read == [(name, kind or "", value.encode()) for name, kind, value in fields]


def test_a_request_over_rest_names_the_fresh_sequence_in_a_header_only() -> None:
    body = {"parameters": {"sequence_id": 4, "priority": 1}, "inputs": []}
    record = step(1, "4", protocol="open_inference_rest", body=json.dumps(body))
    request = request_of(record, "2.0", "replay-1")
    assert json.loads(request.body) == {"parameters": {"priority": 1}, "inputs": []}
    assert (request.path, request.headers["ts_request_sequence_id"]) == ("/v2/models/m/versions/2.0/infer", "replay-1")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"body_cut": True}, "its body was cut"),
        ({"more_input": True}, "its call has several inputs"),
        ({"body_form": "base64", "body": "?"}, "its body cannot be read"),
        ({"body": None}, "its body cannot be read"),
        ({"body_form": "parameters", "body": [{}]}, "its body cannot be read"),
        (call(body="redacted", body_form="text"), "its body cannot be read"),
        ({"protocol": "truss", "via": "websocket"}, "its protocol needs a connection of its own (truss, websocket)"),
    ],
)
def test_what_cannot_be_sent_again_says_why(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(NotReplayable) as refused:
        request_of(recorded(**changes), "2.0", None)
    assert said in str(refused.value)
