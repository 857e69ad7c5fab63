"""What is sent for a record of each kind."""

import base64
import json
from typing import Any

import pytest
from tests.endpoints.conftest import Start
from tests.tools.replay.recorded import recorded, step

from torchserve_py.endpoints import routing
from torchserve_py.endpoints.path_templates import read_template
from torchserve_py.tools.replay.recorded_paths import OWN_SEGMENTS, NotReplayable
from torchserve_py.tools.replay.replay_requests import ReplayRequest, request_of
from ts.apis.open_inference.protos.infer_pb2 import InferParameter, ModelInferRequest
from ts.contracts.forms.form_bodies import parse_form


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
    assert (request.endpoint, request.path) == ("grpc", "/inference.GRPCInferenceService/ModelInfer")
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


@pytest.mark.parametrize(
    ("protocol", "method", "path"),
    [
        ("openai_responses", "GET", "/v1/responses/resp_1?limit=2"),
        ("truss", "POST", "/v1/models/m:predict"),
        ("truss", "POST", "/production/sync/v1/chat/completions?a=%20b"),
        ("custom", "DELETE", "/items/a%2Fb?limit=2"),
    ],
)
def test_a_header_names_the_version_where_the_path_cannot(protocol: str, method: str, path: str) -> None:
    record = step(1, "s", protocol=protocol, method=method, path=path, route="/{path:path}")
    request = request_of(record, "2.0", "replay-1")
    assert (request.method, request.path) == (method, path)
    assert request.headers["x-model-version"] == "2.0"
    assert ("ts_request_sequence_id" in request.headers) == (protocol != "openai_responses")
    assert "x-model-version" not in request_of(record, None, "replay-1").headers


def test_an_observation_goes_to_a_socket_of_the_version() -> None:
    record = step(1, "openpi-1", **form_of(b"\x80"), protocol="openpi", via="websocket", path="/", route="/")
    request = request_of(record, "2.0", "replay-1")
    assert (request.endpoint, request.path, request.body) == ("openpi", "/openpi/m/2.0", b"\x80")
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


_LEAVES = "its path leads out of its route"
_NOT_OF_ROUTE = "its method and path are none of its protocol"
_OTHER_MODEL = "its body calls the model by another name"
_OTHER_SEQUENCE = "its headers name another sequence"


@pytest.mark.parametrize(
    ("changes", "version", "reason"),
    [
        # What a client wrote behind a prediction's path.
        ({"method": "DELETE", "headers": {"url_path": "../../../models/other"}}, "2.0", _LEAVES),
        ({"headers": {"url_path": "a/%2e%2E/b"}}, "2.0", _LEAVES),
        ({"headers": {"url_path": "a/%252e%252e/b"}}, "2.0", _LEAVES),
        ({"headers": {"url_path": "a/..\\b"}}, "2.0", _LEAVES),
        ({"model": ".."}, None, _LEAVES),
        ({"model": "m/../../models/other"}, None, _LEAVES),
        ({"headers": {"url_path": "v1/models/other"}}, None, "its path names a version; name one with --model"),
        # What a line says of its path, whoever wrote it.
        ({"protocol": "custom", "method": "DELETE", "path": "/models/other"}, None, _NOT_OF_ROUTE),
        ({"protocol": "custom", "method": "PUT", "path": "/%6dodels/other"}, None, _NOT_OF_ROUTE),
        ({"protocol": "custom", "method": "PUT", "path": "/models%2Fother"}, None, _NOT_OF_ROUTE),
        ({"protocol": "custom", "path": "/drain"}, None, _NOT_OF_ROUTE),
        ({"protocol": "custom", "path": "/mine/..%2fmodels"}, None, _LEAVES),
        ({"protocol": "custom", "path": "@127.0.0.1:1/x"}, None, _LEAVES),
        ({"protocol": "custom", "path": ".evil.example/"}, None, _LEAVES),
        ({"protocol": "custom", "path": "http://evil.example/"}, None, _LEAVES),
        ({"protocol": "custom", "path": "//evil.example/x"}, None, _NOT_OF_ROUTE),
        ({"protocol": "custom", "method": "GET / HTTP/1.1\r\nHost: evil", "path": "/mine"}, None, _NOT_OF_ROUTE),
        ({"protocol": "truss", "method": "DELETE", "path": "/v1/models/m:predict"}, None, _NOT_OF_ROUTE),
        ({"protocol": "truss", "path": "/models"}, None, _NOT_OF_ROUTE),
        ({"protocol": "truss", "path": "/v1/models/other:predict"}, None, _NOT_OF_ROUTE),
        ({"protocol": "openai_responses", "method": "PUT", "path": "/v1/responses"}, None, _NOT_OF_ROUTE),
        ({"protocol": "openai_responses", "path": "/v1/responses/../../models"}, None, _LEAVES),
        ({"protocol": "open_inference_rest", "headers": {":endpoint": "load"}}, None, _NOT_OF_ROUTE),
        ({"method": "CONNECT"}, None, _NOT_OF_ROUTE),
        # Another model, or another client's sequence.
        ({"headers": {"url_path": "v1/completions"}, "body": '{"model": "other"}'}, None, _OTHER_MODEL),
        (
            {"protocol": "openai_responses", "path": "/v1/responses", "body": '{"model": "other"}'},
            "2.0",
            _OTHER_MODEL,
        ),
        ({"sequence": "s", "sequence_headers": {"id": "theirs", "x": "s"}}, "2.0", _OTHER_SEQUENCE),
        ({"sequence": "s", "sequence_headers": {"authorization": "s"}}, "2.0", _OTHER_SEQUENCE),
        ({"headers": {"x-a": "1\r\nx-b: 2"}}, None, "one of its headers is none"),
        ({"headers": {"x a": "1"}}, None, "one of its headers is none"),
        ({"protocol": "openpi", "body": "x"}, None, "it is of no episode"),
        ({"body": [{"name": 5}], "body_form": "parameters"}, None, "its body cannot be read"),
        (
            {"body": [{"name": "a", "value": 5, "form": "text"}], "body_form": "parameters"},
            None,
            "its body cannot be read",
        ),
    ],
)
def test_what_leads_elsewhere_is_not_sent(changes: dict[str, Any], version: str | None, reason: str) -> None:
    with pytest.raises(NotReplayable) as refused:
        request_of(recorded(**changes), version, "replay-1" if "sequence" in changes else None)
    assert str(refused.value) == reason


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"headers": {"url_path": "a b/c?d#e"}}, "/predictions/m/2.0/a%20b/c%3Fd%23e"),
        ({"headers": {"url_path": "v1/models/other"}}, "/predictions/m/2.0/v1/models/other"),
        ({"route": "/{model_name}/predict", "path": "@evil/predict?a=1 2#&b=\u202e%20"}, None),
        ({"route": "/{model_name}/predict", "path": "/m/predict?a=1 2#&b=%20"}, "/m/2.0/predict?a=1%202%23&b=%20"),
        ({"protocol": "custom", "path": "/mine/@evil:80/%41?x=\n"}, "/mine/@evil:80/A?x=%0A"),
    ],
)
def test_a_path_is_quoted_segment_by_segment(changes: dict[str, Any], path: str | None) -> None:
    if path is None:
        with pytest.raises(NotReplayable):
            request_of(recorded(**changes), "2.0", None)
    else:
        assert request_of(recorded(**changes), "2.0", None).path == path


def test_headers_for_others_are_not_sent() -> None:
    names = ("Host", "Authorization", "cookie", "x-forwarded-for", "x-model-version", "ts_request_sequence_id", "te")
    headers = {**dict.fromkeys(names, "evil"), "x-tenant": "a"}
    assert request_of(recorded(headers=headers), None, None).headers == {"x-tenant": "a"}


def test_a_call_is_for_the_recorded_model_whatever_its_message_says() -> None:
    record = recorded(**call(), model="other")
    assert message_in(request_of(record, "2.0", None)).model_name == "other"
    record = recorded(**call(InferParameter(string_param="theirs")))
    with pytest.raises(NotReplayable, match="its parameters name a sequence, and its record names none"):
        request_of(record, "2.0", None)


def test_an_open_inference_request_names_no_sequence_that_its_record_does_not() -> None:
    body = json.dumps({"parameters": {"sequence_id": "theirs", "sequence_start": True}, "inputs": []})
    sent = request_of(recorded(protocol="open_inference_rest", body=body), "2.0", None)
    assert json.loads(sent.body) == {"parameters": {}, "inputs": []}


async def test_no_path_of_the_servers_own_can_be_a_models(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    firsts: set[str | None] = set()
    made = routing.Router.__init__

    def watched(self: Any, routes: Any) -> None:
        routes = list(routes)
        firsts.update(read_template(each.path).first for each in routes)
        made(self, routes)

    monkeypatch.setattr(routing.Router, "__init__", watched)
    await start(disable_token_authorization=True)
    assert firsts - {None} - OWN_SEGMENTS == set()
    assert len(firsts) > 10
