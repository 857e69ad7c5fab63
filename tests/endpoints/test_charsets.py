"""The charset of a body of JSON counts wherever the server itself reads it, and an unknown one is 415 there."""

import json
from dataclasses import replace
from typing import Any

import pytest
from tests.endpoints.conftest import OpenEndpoints, Start
from tests.endpoints.fake_serving import FakeModel, FakeServing

from torchserve_py.apis.openai.openai_keys import OpenAIKeys
from torchserve_py.base.settings.schemas.plugin_keys import PluginKeys
from torchserve_py.endpoints.body_charset import MAX_RECODED

CHARSETS = ("latin-1", "utf-16", "UTF-32BE", "cp500")
CHAT = {"model": "münchen", "messages": [{"role": "user", "content": "é"}], "input": "é"}
MANAGEMENT = {"endpoint": "management"}


def content_type(charset: str) -> dict[str, str]:
    return {"Content-Type": f'Application/JSON; Charset="{charset}"'}


def speaks_openai(name: str) -> FakeModel:
    model = FakeModel(name, stateful=True)
    keys = OpenAIKeys.model_validate({"openai": True})
    model.config = replace(model.config, plugin_keys=PluginKeys((keys,)))
    return model


def truss(name: str) -> FakeModel:
    model = FakeModel(name)
    model.contract = "truss"
    return model


async def send(serving: OpenEndpoints, path: str, body: Any, charset: str, endpoint: str = "inference") -> Any:
    data = json.dumps(body, ensure_ascii=False).encode(charset)
    return await serving.request("POST", path, data=data, headers=content_type(charset), endpoint=endpoint)


@pytest.mark.parametrize("charset", CHARSETS)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
async def test_a_body_in_any_charset_names_its_model(start: Start, path: str, charset: str) -> None:
    named, other = speaks_openai("münchen"), speaks_openai("other")
    serving = await start(FakeServing([named, other]))
    answer = await send(serving, path, CHAT, charset)
    assert answer.status == 200, answer.body
    (call,) = named.calls
    assert json.loads(call.body.decode()) == CHAT
    assert call.header_dict["Content-Type"] == call.content_type == "Application/JSON"


async def test_a_truss_passes_a_body_on_to_the_model_that_it_names(start: Start) -> None:
    named = speaks_openai("münchen")
    first, second = truss("first"), truss("second")
    serving = await start(FakeServing([named, first, second]))
    for charset in CHARSETS:
        for model, wanted in ((named, "münchen"), (second, "second")):
            answer = await send(serving, "/v1/chat/completions", CHAT | {"model": wanted}, charset)
            assert answer.status == 200, answer.body
            assert json.loads(model.calls.pop().body.decode()) == CHAT | {"model": wanted}


@pytest.mark.parametrize("charset", CHARSETS)
async def test_the_parameters_of_the_open_inference_protocol_count(start: Start, charset: str) -> None:
    model = FakeModel("m", stateful=True)
    serving = await start(FakeServing([model]))
    body = {"inputs": [], "parameters": {"sequence_id": "é", "sequence_start": True, "priority": 2}}
    assert (await send(serving, "/v2/models/m/infer", body, charset)).status == 200
    (call,) = model.calls
    assert (call.sequence_id, call.starts_sequence, call.priority) == ("é", True, 2)
    assert json.loads(call.body.decode()) == body


@pytest.mark.parametrize("charset", CHARSETS)
async def test_calls_of_the_management_api(serving: OpenEndpoints, charset: str) -> None:
    assert (await send(serving, "/models", {"url": "é.mar"}, charset, **MANAGEMENT)).status == 200
    assert serving.registry.requests[-1].url == "é.mar"


@pytest.mark.parametrize("charset", CHARSETS)
async def test_requests_about_sessions_at_sagemakers_paths(start: Start, charset: str) -> None:
    model = FakeModel("m", stateful=True)
    serving = await start(FakeServing([model]))
    answer = await send(serving, "/models/m/invoke", {"requestType": "NEW_SESSION"}, charset)
    assert (answer.status, "X-Amzn-SageMaker-New-Session-Id" in answer.headers, model.calls) == (200, True, [])


@pytest.mark.parametrize(
    ("path", "endpoint"),
    [
        ("/v1/chat/completions", "inference"),
        ("/v1/responses", "inference"),
        ("/v1/conversations", "inference"),
        ("/v2/models/münchen/infer", "inference"),
        ("/v2/repository/index", "inference"),
        ("/models", "management"),
        ("/workflows", "management"),
    ],
)
async def test_a_charset_that_is_not_known_or_not_kept_to_is_refused(start: Start, path: str, endpoint: str) -> None:
    model = speaks_openai("münchen")
    serving = await start(FakeServing([model]))
    for charset, status, message in (
        ("utf-9", 415, "Header Content-Type: 'Application/JSON; Charset="),
        ("utf-9", 415, "names a charset that is not known; send UTF-8."),
        ("base64", 415, "names a charset that is not known"),
        ("ascii", 400, "The body is not text in the charset of its content type"),
    ):
        body = json.dumps(CHAT | {"url": "é"}, ensure_ascii=False).encode()
        answer = await serving.request("POST", path, data=body, headers=content_type(charset), endpoint=endpoint)
        assert (answer.status, message in answer.body.decode()) == (status, True), answer.body
    assert not model.calls


async def test_a_body_in_another_charset_may_not_be_as_large(start: Start) -> None:
    model = speaks_openai("m")
    serving = await start(FakeServing([model]), max_request_size=2 * MAX_RECODED)
    body = json.dumps({"model": "m", "prompt": "x" * MAX_RECODED}).encode()
    answer = await serving.request("POST", "/v1/completions", data=body, headers=content_type("latin-1"))
    assert (answer.status, f"it may have {MAX_RECODED} here" in answer.body.decode()) == (413, True)
    assert (await serving.request("POST", "/v1/completions", data=body, headers=content_type("utf-8"))).status == 200


async def test_json_with_binary_tensors_behind_it_is_in_utf_8(start: Start) -> None:
    model = FakeModel("m")
    serving = await start(FakeServing([model]))
    head, tensor = b'{"parameters": {"priority": 3}}', b"\xff\xfe"
    headers = {"Content-Type": "application/octet-stream; charset=binary"}
    headers["Inference-Header-Content-Length"] = str(len(head))
    assert (await serving.request("POST", "/v2/models/m/infer", data=head + tensor, headers=headers)).status == 200
    (call,) = model.calls
    assert (call.body, call.priority) == (head + tensor, 3)
