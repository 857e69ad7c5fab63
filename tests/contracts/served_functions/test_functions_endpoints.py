"""The server's own path of a model, ``/NAME``, and its refusals: problem details as RFC 9457 has them."""

import json
import time
from typing import Any

import pytest
from tests.endpoints.conftest import Answer, OpenEndpoints, Start
from tests.endpoints.fake_serving import FakeModel, FakeServing, Submitted

from torchserve_py.base.causes import Cause
from torchserve_py.contracts.served_functions.own_path import TAKEN, own_path
from torchserve_py.endpoints.routing import ANY_METHOD, Route
from torchserve_py.plugins import plugins

DOCS = "The page /docs shows the models and their paths."


def function(name: str = "shout") -> FakeModel:
    model = FakeModel(name)
    model.declared = {"function": {}}
    return model


def problem(answer: Answer) -> dict[str, Any]:
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["status"] == answer.status
    return {name: value for name, value in answer.json().items() if name != "status"}


@pytest.fixture
async def serving(start: Start) -> OpenEndpoints:
    return await start(FakeServing([function()]))


async def test_a_model_answers_at_its_name(serving: OpenEndpoints) -> None:
    answer = await serving.request("POST", "/shout", data=b"hello", headers={"content-type": "text/plain"})
    assert (answer.status, answer.body) == (200, b"hello")
    described = await serving.request("OPTIONS", "/shout")
    assert "/predictions/shout" in described.json()["paths"]


async def test_a_session_is_named_in_the_answer(start: Start) -> None:
    serving = await start(FakeServing([FakeModel("count", stateful=True)]))
    answer = await serving.request("POST", "/count", data=b"1", headers={"ts_request_sequence_id": "ada"})
    assert answer.headers["ts_request_sequence_id"] == "ada"


async def test_what_is_not_there_is_a_problem_and_in_torchserves_words_at_its_paths(serving: OpenEndpoints) -> None:
    unknown = await serving.request("POST", "/shoot", data=b"hello")
    assert unknown.status == 404
    assert problem(unknown) == {
        "type": "about:blank",
        "title": "Not Found",
        "detail": f"Nothing has the path '/shoot'. Did you mean /shout? {DOCS}",
    }
    for path, told in (
        ("/shout/now?x=1", "Nothing has the path '/shout/now'. The model shout is at /shout."),
        ("/elsewhere/1", "Nothing has the path '/elsewhere/1'. The models are at /shout."),
    ):
        assert problem(await serving.request("POST", path, data=b"x"))["detail"] == f"{told} {DOCS}"
    wrong = await serving.request("GET", "/shout")
    assert (wrong.status, wrong.headers["Allow"], problem(wrong)["title"]) == (
        405,
        "POST, OPTIONS",
        "Method Not Allowed",
    )
    assert problem(wrong)["detail"].startswith("This path takes POST, OPTIONS.")
    torchserve = await serving.request("POST", "/predictions/shoot", data=b"hello")
    assert torchserve.json() == {"code": 404, "type": "ModelNotFoundException", "message": "Model not found: shoot"}


async def test_a_server_with_torchserves_handlers_only_says_what_torchserve_says(start: Start) -> None:
    serving = await start(FakeServing([FakeModel("noop")]))
    unknown = await serving.request("POST", "/nowhere")
    assert (unknown.status, unknown.json()["type"]) == (404, "ResourceNotFoundException")
    assert (await serving.request("POST", "/noop", data=b"x")).body == b"x"


async def test_a_missing_key_is_a_problem(start: Start) -> None:
    serving = await start(FakeServing([function()]), disable_token_authorization=False)
    refused = await serving.request("POST", "/shout", data=b"hello")
    assert (refused.status, problem(refused)["title"]) == (401, "Unauthorized")
    assert refused.headers["www-authenticate"].startswith("Bearer")
    key = json.loads(serving.key_file.read_text())["inference"]["key"]
    unknown = await serving.request("POST", "/shoot", data=b"hello")
    assert problem(unknown)["detail"] == f"Nothing has the path '/shoot'. {DOCS}", "names of models are not for all"
    allowed = await serving.request("POST", "/shout", data=b"hello", headers={"Authorization": f"Bearer {key}"})
    assert allowed.status == 200


@pytest.mark.parametrize(
    ("status", "message", "kind", "told"),
    [
        (400, "number: Field required", "BadRequestException", (422, "invalid_request", "number: Field required")),
        (500, "ValueError: no", "", (500, "handler_error", "ValueError: no")),
        (
            503,
            "Prediction failed",
            "",
            (500, "handler_error", "The model's code has raised an exception; its log says which."),
        ),
        (404, "no such user", "", (404, "invalid_request", "no such user")),
        (400, "no such day", "", (400, "invalid_request", "no such day")),
        (598, "odd", "", (598, "handler_error", "odd")),
    ],
)
async def test_a_function_that_fails_is_a_problem(
    start: Start, status: int, message: str, kind: str, told: tuple[int, str, str]
) -> None:
    def fail(call: Submitted) -> None:
        call.part(status=status, error=message, reason=kind)

    model = function()
    model.behave = fail
    answer = await (await start(FakeServing([model]))).request("POST", "/shout", data=b"hello")
    assert (answer.status, answer.headers["ts-error-cause"], problem(answer)["detail"]) == told
    assert problem(answer)["type"] == f"urn:torchserve-py:{told[1]}"


@pytest.mark.parametrize(
    ("is_local", "told"), [(True, ": RuntimeError: weights.pt not found"), (False, "; the log says why.")]
)
async def test_a_model_that_cannot_be_loaded_is_told_with_the_reason_where_only_this_machine_asks(
    start: Start, monkeypatch: pytest.MonkeyPatch, is_local: bool, told: str
) -> None:
    if is_local:
        monkeypatch.setenv("TS_DEVELOPMENT", "1")
    model = function()
    model.load_failure = "RuntimeError: weights.pt not found"
    model.behave = lambda call: call.fail(Cause.no_worker)
    serving = await start(FakeServing([model]))
    answer = await serving.request("POST", "/shout", data=b"hello")
    assert (answer.status, answer.headers["ts-error-cause"]) == (503, "no_worker")
    assert problem(answer)["detail"] == f"The model 'shout' cannot be loaded{told}"
    torchserve = await serving.request("POST", "/predictions/shout", data=b"hello")
    assert torchserve.json()["message"].startswith('Model "shout" has no worker to serve inference request.')
    model.starts_at = time.time() + 12.5
    answer = await serving.request("POST", "/shout", data=b"hello")
    again = "Its workers fail; the next one starts in 13 s."
    assert problem(answer)["detail"] == f"The model 'shout' cannot be loaded{told.removesuffix('.')}. {again}"
    assert answer.headers["retry-after"] == "13"
    torchserve = await serving.request("POST", "/predictions/shout", data=b"hello")
    assert torchserve.json()["message"].endswith(f"maxSequenceJobQueueSize. {again}")
    model.starts_at = None
    model.load_failure = ""  # the workers may not have been started yet
    answer = await serving.request("POST", "/shout", data=b"hello")
    assert problem(answer)["detail"].startswith('Model "shout" has no worker')


async def test_who_finds_no_room_for_a_sequence_is_told_the_limit(start: Start) -> None:
    model = FakeModel("count", stateful=True)
    model.behave = lambda call: call.fail(Cause.sequence_capacity)
    serving = await start(FakeServing([model]))
    answer = await serving.request("POST", "/count", data=b"1")
    assert (answer.status, answer.headers["ts-error-cause"]) == (503, "sequence_capacity")
    text = "1 sequence is open, as many as maxNumSequence allows; raise it in model-config.yaml."
    assert problem(answer)["detail"] == text
    torchserve = await serving.request("POST", "/predictions/count", data=b"1")
    assert torchserve.json()["message"].startswith('Model "count" has no worker')


async def test_what_does_not_fit_the_signature_is_listed_at_the_servers_own_path_only(start: Start) -> None:
    errors = [{"type": "missing", "loc": ["number"], "msg": "Field required"}]

    def refuse(call: Submitted) -> None:
        details = json.dumps(errors).encode()
        call.part(details, status=400, error="number: Field required", reason="BadRequestException")

    model = function()
    model.behave = refuse
    serving = await start(FakeServing([model]))
    own = await serving.request("POST", "/shout", data=b"{}")
    assert (own.status, problem(own)["errors"]) == (422, errors)
    torchserve = await serving.request("POST", "/predictions/shout", data=b"{}")
    assert torchserve.json() == {"code": 400, "type": "BadRequestException", "message": "number: Field required"}


async def test_names_that_the_server_means_otherwise_keep_torchserves_path(start: Start) -> None:
    assert own_path("my model") == "/my%20model"
    assert own_path("ping") == "/predictions/ping"
    serving = await start(FakeServing([function()]))
    routes: list[Route] = [
        route
        for plugin in plugins()
        for offer in plugin.endpoints()
        if offer.listener == "inference_address"
        for route in offer.make(serving.endpoints.context).routes()
    ]
    always = {
        route.path[1:]
        for route in routes
        if route.applies is None and set("/{") & set(route.path[1:]) == set() and "POST" in route.methods
    }
    assert always - {""} <= TAKEN
    for name in TAKEN:
        assert (await serving.request("POST", f"/{name}")).status != 404, "it means something"
    assert set(ANY_METHOD) >= {"POST"}
