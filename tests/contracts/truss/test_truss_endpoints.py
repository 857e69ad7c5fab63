"""Truss's HTTP interface: what reaches the model, and what the client gets."""

import asyncio
from collections.abc import Sequence
from typing import Any

import aiohttp
import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator
from tests.endpoints.conftest import Answer, OpenEndpoints, Start
from tests.endpoints.fake_serving import FakeModel, FakeServing, Submitted, worker_status

from torchserve_py.base.causes import Cause
from torchserve_py.base.logs import access_log
from ts.protocol.messages import TRUSS

PREDICT = "/v1/models/mine:predict"
JSON = [["content-type", "application/json"]]


def truss(name: str = "mine", **declared: Any) -> FakeModel:
    model = FakeModel(name)
    model.contract = "truss"
    model.declared = declared
    return model


def registry(*models: FakeModel) -> FakeServing:
    return FakeServing(registered=list(models))


@pytest.fixture
async def mine(start: Start) -> OpenEndpoints:
    """Open endpoints with one Truss, ``mine``, that answers with what it was sent."""
    return await start(registry(truss()))


def is_error(answer: Answer, status: int, code: str) -> str:
    assert answer.status == status
    assert answer.headers["X-BASETEN-ERROR-SOURCE"] == "04"
    assert answer.headers["X-BASETEN-ERROR-CODE"] == code
    assert answer.headers["content-type"] == "application/json"
    message: str = answer.json()["error"]
    return message


# What reaches the model.


@pytest.mark.parametrize(
    ("path", "endpoint"),
    [
        ("/v1/models/mine:predict", "predict"),
        ("/v1/models/mine:predict_binary", "predict"),
        ("/v1/models/model:predict", "predict"),
        ("/invocations", "predict"),
        ("/invocations?model_name=mine", "predict"),
        ("/models/mine/invoke", "predict"),
        ("/v1/chat/completions", "chat_completions"),
        ("/v1/completions", "completions"),
        ("/v1/embeddings", "embeddings"),
        ("/v1/messages", "messages"),
        ("/v1/responses", "responses"),
        ("/v1/models/mine/chat/completions", "chat_completions"),
        ("/v1/models/mine/v1/messages", "messages"),
    ],
)
async def test_a_post_runs_the_models_endpoint(path: str, endpoint: str, mine: OpenEndpoints) -> None:
    answer = await mine.request("POST", path, data=b"{}", headers={"X-Mine": "1"})
    assert (answer.status, answer.body) == (200, b"{}")
    (call,) = mine.registry.model.calls
    headers = call.header_dict
    assert call.protocol == TRUSS
    assert (headers[":endpoint"], headers[":method"], headers[":path"]) == (endpoint, "POST", path)
    assert (headers[":scheme"], headers[":authority"]) == ("http", headers["Host"])
    assert headers[":client"].startswith("127.0.0.1:")
    assert headers["X-Mine"] == "1"


async def test_what_the_worker_answers_goes_back_as_it_is(mine: OpenEndpoints) -> None:
    headers = [*JSON, ["x-baseten-error-source", "04"], ["set-cookie", "a=1"], ["set-cookie", "b=2"]]
    mine.registry.model.behave = lambda call: call.part(b'{"error": "mine"}', status=422, headers=headers)
    answer = await mine.request("POST", PREDICT)
    assert (answer.status, answer.body) == (422, b'{"error": "mine"}')
    assert answer.headers.getall("set-cookie") == ["a=1", "b=2"]
    assert answer.headers["x-baseten-error-source"] == "04"


async def test_a_model_that_is_called_model_is_not_confused_with_the_only_one(start: Start) -> None:
    serving = await start(registry(truss("model"), truss("mine")))
    await serving.request("POST", "/v1/models/model:predict")
    assert [len(model.calls) for model in serving.registry.registered] == [1, 0]


# Several models.


async def test_other_models_keep_their_paths(start: Start) -> None:
    serving = await start(registry(truss(), FakeModel("noop")))
    serving.registry.registered[1].behave = lambda call: call.part(b"x")
    assert (await serving.request("POST", "/v1/models/noop:predict")).body == b"x"
    assert (await serving.request("POST", "/models/noop/invoke")).body == b"x"
    assert (await serving.request("POST", "/invocations?model_name=noop")).body == b"x"
    assert [call.protocol for call in serving.registry.registered[1].calls] == [None] * 3
    assert (await serving.request("GET", "/ping")).json() == {"status": "Healthy"}
    assert (await serving.request("GET", "/")).json() == {"status": "alive"}
    unknown = await serving.request("POST", "/v1/models/none:predict")
    assert (unknown.status, list(unknown.json())) == (404, ["error"])  # in KServe's shape
    assert (await serving.request("GET", "/nothing")).json()["type"] == "ResourceNotFoundException"


async def test_of_several_trusses_the_body_names_one(start: Start) -> None:
    serving = await start(registry(truss("a"), truss("b")))
    assert (await serving.request("POST", "/v1/chat/completions", json={"model": "b"})).json() == {"model": "b"}
    assert [len(model.calls) for model in serving.registry.registered] == [0, 1]


@pytest.mark.parametrize("body", [b'{"model": "c"}', b'{"model": 1}', b"[]", b"no JSON", b"[" * 100_000])
async def test_where_nothing_names_one_the_client_is_told_how(body: bytes, start: Start) -> None:
    serving = await start(registry(truss("a"), truss("b")))
    message = is_error(await serving.request("POST", "/v1/completions", data=body), 404, "700")
    assert "a, b" in message
    assert "/v1/models/{model}/" in message


async def test_a_name_that_no_model_has_is_answered_in_truss_s_shape(start: Start) -> None:
    alone, among_others = await start(registry(truss())), await start(registry(truss(), FakeModel("noop")))
    for method, path in (("GET", "/loaded"), ("POST", "/v1/chat/completions"), ("GET", "")):
        for serving in (alone, among_others):
            assert "'none'" in is_error(await serving.request(method, f"/v1/models/none{path}"), 404, "700")
    for path in ("/v1/models/none:predict", "/models/none/invoke"):
        assert "'none'" in is_error(await alone.request("POST", path), 404, "700")
    unknown = await among_others.request("POST", "/v1/models/none:predict")
    assert (unknown.status, list(unknown.json())) == (404, ["error"])  # in KServe's shape
    assert (await among_others.request("POST", "/models/none/invoke")).json()["type"] == "ModelNotFoundException"
    assert (await among_others.request("GET", "/v1/models/noop/loaded")).json()["type"] == "ResourceNotFoundException"


async def test_who_may_not_ask_is_not_told_which_models_there_are(start: Start) -> None:
    serving = await start(registry(truss()), disable_token_authorization=False)
    assert (await serving.request("POST", "/v1/models/none:predict")).status == 401


async def test_without_a_truss_its_paths_do_not_exist(serving: OpenEndpoints) -> None:
    for path in ("/v1/chat/completions", "/v1/models/noop/loaded", "/metrics"):
        assert (await serving.request("POST", path)).status == 404


# Methods and paths.


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", PREDICT, "POST"),
        ("GET", PREDICT, "POST"),
        ("HEAD", "/v1/models/mine", "GET"),
        ("HEAD", "/", "GET"),
        ("POST", "/v1/models/mine/loaded", "GET"),
        ("POST", "/ping", "GET"),
        ("POST", "/metrics/", "GET"),
    ],
)
async def test_a_wrong_method_is_answered_as_truss_does(
    method: str, path: str, allowed: str, mine: OpenEndpoints
) -> None:
    answer = await mine.request(method, path)
    assert (answer.status, answer.headers["allow"]) == (405, allowed)
    assert method == "HEAD" or answer.body == b'{"detail":"Method Not Allowed"}'
    assert "X-BASETEN-ERROR-CODE" not in answer.headers


async def test_an_unknown_path_is_answered_as_truss_does(mine: OpenEndpoints) -> None:
    for path in ("/nothing", "/v1/nothing", "/v1", "/v1/models/mine/nothing"):
        answer = await mine.request("GET", path)
        assert (answer.status, answer.body) == (404, b'{"detail":"Not Found"}')


async def test_options_of_the_root_still_describes_the_api(mine: OpenEndpoints) -> None:
    assert "openapi" in (await mine.request("OPTIONS", "/")).json()


# Probes.

PROBES = ("/v1/models/mine", "/v1/models/model", "/v1/models/mine/loaded", "/ping")


async def test_probes_of_a_model_that_is_well(mine: OpenEndpoints) -> None:
    for path in PROBES:
        answer = await mine.request("GET", path)
        assert (answer.status, answer.json()) == (200, {})
    assert (await mine.request("GET", "/")).body == b"true"


async def test_while_a_model_is_loading_it_is_not_ready_but_the_server_lives(mine: OpenEndpoints) -> None:
    mine.registry.model.workers = [worker_status(ready=False)]
    for path in ("/v1/models/model", "/v1/models/model/loaded", "/ping", "/v1/models/model/schema"):
        message = is_error(await mine.request("GET", path), 503, "600")
        assert message == "Model with name model is not ready."
    for path in (PREDICT, "/v1/chat/completions"):
        is_error(await mine.request("POST", path, data=b"no JSON"), 503, "600")
    assert (await mine.request("GET", "/")).status == 200
    assert mine.registry.model.calls == []


async def test_a_model_that_says_it_is_ill_is_loaded_but_not_ready(mine: OpenEndpoints) -> None:
    mine.registry.model.is_well = False
    is_error(await mine.request("GET", "/v1/models/mine"), 503, "600")
    assert (await mine.request("GET", "/v1/models/mine/loaded")).status == 200
    assert (await mine.request("POST", PREDICT, data=b"1")).status == 200


async def test_the_schema_is_what_the_model_declares(start: Start) -> None:
    schema = {"input_schema": None, "output_schema": None, "supports_streaming": True}
    serving = await start(registry(truss(schema=schema)))
    assert (await serving.request("GET", "/v1/models/mine/schema")).json() == schema


async def test_a_model_without_a_schema(mine: OpenEndpoints) -> None:
    assert is_error(await mine.request("GET", "/v1/models/mine/schema"), 404, "600") == "No schema found"


SCHEMA = {
    "input_schema": {
        "$defs": {"Tag": {"properties": {"next": {"$ref": "#/$defs/Tag"}}, "title": "Tag", "type": "object"}},
        "properties": {"text": {"type": "string"}, "tags": {"items": {"$ref": "#/$defs/Tag"}, "type": "array"}},
        "required": ["text"],
        "title": "In",
        "type": "object",
    },
    "output_schema": {"properties": {"n": {"type": "integer"}}, "title": "Out", "type": "object"},
    "supports_streaming": False,
}


@pytest.mark.parametrize(
    ("path", "predict", "chat"),
    [
        ("/openapi.json", "/v1/models/model:predict", "/v1/chat/completions"),
        ("/v1/models/mine/openapi.json", "/v1/models/mine:predict", "/v1/models/mine/v1/chat/completions"),
    ],
)
async def test_the_openapi_document(path: str, predict: str, chat: str, start: Start) -> None:
    serving = await start(registry(truss(schema=SCHEMA, endpoints=["predict", "chat_completions"])))
    document = (await serving.request("GET", path)).json()
    assert [error.message for error in OpenAPIV31SpecValidator(document).iter_errors()] == []
    about = predict.removesuffix(":predict")
    assert list(document["paths"]) == [predict, chat, about, f"{about}/loaded", f"{about}/schema", f"{about}/metrics"]
    taken = document["paths"][predict]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert taken == {"$ref": "#/components/schemas/Input"}
    schemas = document["components"]["schemas"]
    assert schemas["Input"]["required"] == ["text"]
    assert schemas["Input"]["properties"]["tags"]["items"] == {"$ref": "#/components/schemas/Input-Tag"}
    assert schemas["Input-Tag"]["properties"]["next"] == {"$ref": "#/components/schemas/Input-Tag"}
    assert schemas["Output"]["title"] == "Out"


async def test_the_openapi_document_of_a_model_that_tells_nothing(start: Start) -> None:
    serving = await start(registry(truss(schema=None, endpoints=["messages"])))
    document = (await serving.request("GET", "/openapi.json")).json()
    assert [error.message for error in OpenAPIV31SpecValidator(document).iter_errors()] == []
    assert next(iter(document["paths"])) == "/v1/messages"
    serving.registry.model.workers = [worker_status(ready=False)]
    is_error(await serving.request("GET", "/openapi.json"), 503, "600")


async def test_probes_are_not_in_the_access_log(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    serving = await start(registry(truss()), access_log=True)
    access_log.flush()  # what other tests have left
    with caplog.at_level("INFO", "ACCESS_LOG"):
        await serving.request("GET", "/v1/models/mine")
        await serving.request("GET", "/")
        await serving.request("POST", PREDICT)
        await serving.request("GET", "/v1/models/mine/schema")
        access_log.flush()
    lines = [record.getMessage() for record in caplog.records if record.name == "ACCESS_LOG"]
    assert ["mine:predict" in line for line in lines[:1]] == [True]
    assert not any("mine " in line or '"GET / ' in line for line in lines)


# Hot reload.


async def test_hot_reload_is_off_unless_the_model_declares_it(start: Start) -> None:
    serving = await start(registry(truss("off"), truss("on", hot_reload=True)))
    off, on = serving.registry.registered
    is_error(await serving.request("POST", "/v1/models/off/hot-reload"), 404, "700")
    assert (await serving.request("POST", "/v1/models/on/hot-reload")).status == 200
    assert (len(off.calls), on.calls[0].header_dict[":endpoint"]) == (0, "hot_reload")
    on.max_workers = 2
    is_error(await serving.request("POST", "/v1/models/on/hot-reload"), 409, "700")
    assert (await serving.request("POST", "/hot-reload")).status == 404  # of which?


# Metrics.


async def test_metrics_are_the_models_own(mine: OpenEndpoints) -> None:
    mine.registry.model.exposed = {"9000": "counted_total 1.0\n"}
    for path in ("/metrics/", "/v1/models/mine/metrics"):
        answer = await mine.request("GET", path)
        assert (answer.status, answer.body) == (200, b"counted_total 1.0\n")
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    redirect = await mine.request("GET", "/metrics", allow_redirects=False)
    assert (redirect.status, redirect.headers["location"]) == (307, "/metrics/")
    assert mine.registry.model.calls == []  # nothing that waits behind requests


async def test_metrics_that_cannot_be_collected(mine: OpenEndpoints) -> None:
    mine.registry.model.exposed = None
    is_error(await mine.request("GET", "/metrics/"), 500, "600")


# Failures.


@pytest.mark.parametrize(
    ("cause", "status", "code"),
    [
        (Cause.queue_full, 503, "600"),
        (Cause.no_worker, 503, "600"),
        (Cause.draining, 503, "600"),
        (Cause.worker_died, 500, "500"),
        (Cause.response_timeout, 504, "500"),
        (Cause.client_timeout, 408, "700"),
    ],
)
async def test_a_job_without_an_answer(cause: Cause, status: int, code: str, mine: OpenEndpoints) -> None:
    mine.registry.model.behave = lambda call: call.fail(cause)
    answer = await mine.request("POST", PREDICT)
    is_error(answer, status, code)
    assert answer.headers["ts-error-cause"] == cause.value
    assert ("Retry-After" in answer.headers) == (status == 503)


async def test_a_full_queue_names_its_limit(mine: OpenEndpoints) -> None:
    mine.registry.model.behave = lambda call: call.fail(Cause.queue_full)
    assert "100 requests waiting already (jobQueueSize)" in (await mine.request("POST", PREDICT)).json()["error"]


async def test_an_error_of_the_worker_itself(mine: OpenEndpoints) -> None:
    mine.registry.model.behave = lambda call: call.part(status=507, error="too large")
    assert is_error(await mine.request("POST", PREDICT), 507, "500") == "too large"


async def test_a_body_that_is_too_large(start: Start) -> None:
    serving = await start(registry(truss()), max_request_size=10)
    assert "max_request_size" in is_error(await serving.request("POST", PREDICT, data=b"x" * 11), 413, "700")


async def test_a_header_that_http_forbids(mine: OpenEndpoints) -> None:
    mine.registry.model.behave = lambda call: call.part(headers=[["bad name", "x"]])
    assert "bad name" in is_error(await mine.request("POST", PREDICT), 500, "500")


# Streams.


def stream(chunks: Sequence[bytes], *, error: str | None = None) -> Any:
    def behave(call: Submitted) -> None:
        call.part(b"", more=True, headers=[["content-type", "application/octet-stream"]])
        for chunk in chunks:
            call.part(chunk, more=True)
        call.part(error=error, status=500 if error else 200)

    return behave


async def test_a_stream_has_one_chunk_for_each_part(mine: OpenEndpoints) -> None:
    mine.registry.model.behave = stream([b"0", b"1", b"2"])
    connection = await mine.raw(f"POST {PREDICT} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n".encode())
    head = await connection.head()
    assert head.startswith("http/1.1 200 ")
    assert "transfer-encoding: chunked" in head
    assert "ts_stream_next" not in head
    async with asyncio.timeout(60):
        assert await connection.reader.readexactly(23) == b"1\r\n0\r\n1\r\n1\r\n1\r\n2\r\n0\r\n\r\n"
    await connection.close()


async def test_a_stream_that_fails_midway_never_looks_complete(mine: OpenEndpoints) -> None:
    mine.registry.model.behave = stream([b"0", b"1"], error="it failed")
    with pytest.raises(aiohttp.ClientPayloadError):
        await mine.request("POST", PREDICT)
