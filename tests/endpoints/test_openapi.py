"""The OpenAPI documents: valid, and with TorchServe's paths, operations and parameters."""

import pytest
from openapi_spec_validator import OpenAPIV30SpecValidator
from tests.endpoints.fake_serving import FakeModel, FakeServing

from torchserve_py.version import __version__

METHODS = {"options", "get", "post", "put", "delete"}


async def fetch(serving, path, *, endpoint="inference", method="OPTIONS"):
    answer = await serving.request(method, path, endpoint=endpoint, headers={"Accept-Encoding": "identity"})
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    document = answer.json()
    assert [error.message for error in OpenAPIV30SpecValidator(document).iter_errors()] == []
    assert list(document) == ["openapi", "info", "paths"]
    assert document["openapi"] == "3.0.1"
    assert document["info"]["description"] == (
        "TorchServe is a flexible and easy to use tool for serving deep learning models"
    )
    return document


def operations(document):
    """Path and method to operation."""
    return {(path, method): each for path, methods in document["paths"].items() for method, each in methods.items()}


PREDICT = {"200", "400", "404", "408", "409", "410", "500", "503"}
LISTENERS = {
    "inference": {
        ("/", "options"): ("apiDescription", {"200", "500"}),
        ("/", "get"): ("live", {"200"}),
        ("/v1/models", "get"): ("v1_models", {"200", "500"}),
        ("/v1/models/{model_name}", "get"): ("v1_model", {"200", "404", "500", "503"}),
        ("/api-description", "get"): ("api-description", {"200", "500"}),
        ("/ping", "get"): ("ping", {"200", "500"}),
        ("/live", "get"): ("liveness", {"200"}),
        ("/healthz", "get"): ("healthz", {"200"}),
        ("/ready", "get"): ("readiness", {"200", "503"}),
        ("/health", "get"): ("health", {"200", "503"}),
        ("/predictions/{model_name}", "post"): ("predictions", PREDICT),
        ("/v1/models/{model_name}:predict", "post"): ("v1_predictions", PREDICT),
        ("/v2/models/{model_name}/infer", "post"): ("v2_predictions", PREDICT | {"422", "501"}),
        ("/predictions/{model_name}/{model_version}", "post"): ("version_predictions", PREDICT),
        ("/explanations/{model_name}", "post"): ("explanations", PREDICT),
        ("/explanations/{model_name}/{model_version}", "post"): ("version_explanations", PREDICT),
        ("/v1/models/{model_name}:explain", "post"): ("v1_explanations", PREDICT),
        ("/v2/models/{model_name}/explain", "post"): ("v2_explanations", PREDICT),
        ("/v1/chat/completions", "post"): ("openai_chat_completions", {"200", "default"}),
        ("/v1/completions", "post"): ("openai_completions", {"200", "default"}),
        ("/v1/embeddings", "post"): ("openai_embeddings", {"200", "default"}),
        ("/v1/responses", "post"): ("openai_create_response", {"200", "default"}),
        ("/v1/responses/{response_id}", "get"): ("openai_get_response", {"200", "204", "default"}),
        ("/v1/responses/{response_id}", "delete"): ("openai_delete_response", {"200", "default"}),
        ("/v1/responses/{response_id}/input_items", "get"): ("openai_list_input_items", {"200", "default"}),
        ("/v1/responses/{response_id}/cancel", "post"): ("openai_cancel_response", {"200", "default"}),
        ("/v1/responses/compact", "post"): ("openai_compact_response", {"200", "default"}),
        ("/v1/responses/input_tokens", "post"): ("openai_count_input_tokens", {"200", "default"}),
        ("/v1/conversations", "post"): ("openai_create_conversation", {"200", "default"}),
        ("/v1/conversations/{conversation_id}", "get"): ("openai_get_conversation", {"200", "default"}),
        ("/v1/conversations/{conversation_id}", "post"): ("openai_update_conversation", {"200", "default"}),
        ("/v1/conversations/{conversation_id}", "delete"): ("openai_delete_conversation", {"200", "default"}),
        ("/v1/conversations/{conversation_id}/items", "get"): ("openai_list_items", {"200", "default"}),
        ("/v1/conversations/{conversation_id}/items", "post"): ("openai_create_items", {"200", "default"}),
        ("/v1/conversations/{conversation_id}/items/{item_id}", "get"): ("openai_get_item", {"200", "default"}),
        ("/v1/conversations/{conversation_id}/items/{item_id}", "delete"): ("openai_delete_item", {"200", "default"}),
        ("/wfpredict/{workflow_name}", "post"): (
            "workflow_predictions",
            {"200", "400", "404", "408", "409", "410", "500", "503"},
        ),
    },
    "management": {
        ("/", "options"): ("apiDescription", {"200", "500"}),
        ("/api-description", "get"): ("api-description", {"200", "500"}),
        ("/drain", "post"): ("drain", {"202"}),
        ("/sequences/{model_name}/{sequence_id}", "get"): ("showSequence", {"200", "400", "404", "500", "501", "503"}),
        ("/sequences/{model_name}/{sequence_id}/fork", "post"): (
            "forkSequence",
            {"200", "400", "403", "404", "409", "500", "501", "503"},
        ),
        ("/sequences/{model_name}/{sequence_id}/rewind", "post"): (
            "rewindSequence",
            {"200", "400", "404", "409", "500", "501", "503"},
        ),
        ("/sequences/{model_name}/{sequence_id}/export", "get"): (
            "exportSequence",
            {"200", "400", "404", "413", "500", "501", "503"},
        ),
        ("/sequences/{model_name}/{sequence_id}/import", "put"): (
            "importSequence",
            {"200", "400", "404", "409", "413", "500", "501", "503"},
        ),
        ("/models/{model_name}/traffic", "delete"): ("clearTraffic", {"200", "400", "404", "409"}),
        ("/models/{model_name}/traffic", "get"): ("traffic", {"200", "404"}),
        ("/models/{model_name}/traffic", "put"): ("setTraffic", {"200", "400", "404", "409"}),
        ("/models/{model_name}/traffic/shadow", "delete"): ("clearShadow", {"200", "404"}),
        ("/models/{model_name}/traffic/shadow", "get"): ("shadow", {"200", "404"}),
        ("/models/{model_name}/traffic/shadow", "put"): ("setShadow", {"200", "400", "404"}),
        ("/models/{model_name}/rollout", "get"): ("rollout", {"200", "404"}),
        ("/models/{model_name}/{model_version}/rollout", "put"): (
            "rollOut",
            {"200", "400", "404", "409", "500", "507"},
        ),
        ("/models/{model_name}/{model_version}/restart", "put"): (
            "restartWorkers",
            {"200", "400", "404", "409", "500", "507"},
        ),
        ("/models", "get"): ("listModels", {"200", "400", "500"}),
        ("/models", "post"): ("registerModel", {"200", "202", "206", "400", "404", "405", "409", "500", "507"}),
        ("/models/{model_name}", "get"): ("describeModel", {"200", "400", "404", "500", "503"}),
        ("/models/{model_name}", "put"): ("setAutoScale", {"200", "202", "206", "400", "404", "500", "507"}),
        ("/models/{model_name}", "delete"): ("unregisterModel", {"200", "403", "404", "405", "408", "500"}),
        ("/models/{model_name}/{model_version}", "get"): (
            "version_describeModel",
            {"200", "400", "404", "500", "503"},
        ),
        ("/models/{model_name}/{model_version}", "put"): (
            "version_setAutoScale",
            {"200", "202", "206", "400", "404", "500", "507"},
        ),
        ("/models/{model_name}/{model_version}", "delete"): (
            "version_unregisterModel",
            {"200", "403", "404", "405", "408", "500"},
        ),
        ("/models/{model_name}/{model_version}/set-default", "put"): (
            "setDefault",
            {"200", "400", "404", "409", "500"},
        ),
        ("/v1/models/{model_name}", "get"): ("v1_model_readiness", {"200", "404", "500"}),
        ("/token", "get"): ("rotateToken", {"200", "400"}),
        ("/workflows", "get"): ("listWorkflows", {"200", "400", "500"}),
        ("/workflows", "post"): ("registerWorkflow", {"200", "400", "404", "405", "409", "500", "503"}),
        ("/workflows/{workflow_name}", "get"): ("describeWorkflow", {"200", "404", "500"}),
        ("/workflows/{workflow_name}", "delete"): ("unregisterWorkflow", {"200", "404", "500"}),
    },
    "metrics": {
        ("/", "options"): ("apiDescription", {"200", "500"}),
        ("/api-description", "get"): ("api-description", {"200", "500"}),
        ("/metrics", "get"): ("metrics", {"200", "500"}),
    },
}


@pytest.mark.parametrize("endpoint", LISTENERS)
@pytest.mark.parametrize(
    ("path", "method"), [("/", "OPTIONS"), ("/api-description", "GET"), ("/api-description", "POST")]
)
async def test_the_document_of_a_listener(start, endpoint, path, method):
    serving = await start(disable_token_authorization=False)
    document = await fetch(serving, path, endpoint=endpoint, method=method)
    assert (document["info"]["title"], document["info"]["version"]) == ("TorchServe APIs", "0.12.0")
    assert document["info"]["x-torchserve-py"] == __version__
    described = {where: (each["operationId"], set(each["responses"])) for where, each in operations(document).items()}
    assert described == LISTENERS[endpoint]


async def test_operations_say_what_they_take_and_give(serving):
    found = operations(await fetch(serving, "/"))
    predict = found[("/predictions/{model_name}", "post")]
    binary = {"*/*": {"schema": {"type": "string", "format": "binary"}}}
    assert predict["parameters"] == [
        {
            "in": "path",
            "name": "model_name",
            "description": "Name of the model",
            "required": True,
            "schema": {"type": "string"},
        }
    ]
    assert predict["requestBody"] == {"content": binary, "required": False}
    assert predict["responses"]["200"]["content"] == binary
    assert list(predict["responses"]["404"]["content"]["application/json"]["schema"]["properties"]) == [
        "code",
        "type",
        "message",
    ]
    assert found[("/api-description", "get")]["deprecated"] is True
    assert "deprecated" not in predict
    metrics = operations(await fetch(serving, "/", endpoint="metrics"))[("/metrics", "get")]
    assert list(metrics["responses"]["200"]["content"]) == ["text/plain; version=0.0.4; charset=utf-8"]
    assert metrics["parameters"][0]["name"] == "name[]"


async def test_where_the_events_of_a_response_begin(serving):
    found = operations(await fetch(serving, "/"))[("/v1/responses/{response_id}", "get")]
    places = [("path", "response_id"), ("query", "stream"), ("query", "starting_after"), ("header", "Last-Event-ID")]
    assert [(each["in"], each["name"]) for each in found["parameters"]] == places
    assert found["parameters"][-1]["schema"] == {"type": "integer", "minimum": 0}
    assert "content" not in found["responses"]["204"], "nothing comes after the last event"


async def test_the_parameters_of_a_registration(serving):
    found = operations(await fetch(serving, "/", endpoint="management"))
    parameters = {each["name"]: each for each in found[("/models", "post")]["parameters"]}
    assert list(parameters) == [
        "url",
        "model_name",
        "handler",
        "runtime",
        "batch_size",
        "max_batch_delay",
        "response_timeout",
        "startup_timeout",
        "initial_workers",
        "synchronous",
        "s3_sse_kms",
    ]
    assert [name for name, each in parameters.items() if each["required"]] == ["url"]
    assert parameters["runtime"]["schema"]["enum"] == ["PYTHON", "PYTHON3"]
    assert {each["in"] for each in parameters.values()} == {"query"}
    assert parameters["max_batch_delay"]["schema"] == {
        "type": "integer",
        "minimum": 0,
        "maximum": 2**31 - 1,
        "default": 100,
    }
    scale = found[("/models/{model_name}/{model_version}", "put")]["parameters"]
    assert [(each["in"], each["name"]) for each in scale] == [
        ("path", "model_name"),
        ("path", "model_version"),
        ("query", "min_worker"),
        ("query", "max_worker"),
        ("query", "number_gpu"),
        ("query", "synchronous"),
        ("query", "timeout"),
    ]


@pytest.mark.parametrize(
    "path",
    [
        "/predictions/noop",
        "/predictions/noop/1.0",
        "/explanations/noop",
        "/v1/models/noop:predict",
        "/v2/models/noop/infer",
        "/models/noop/invoke",
        "/invocations?model_name=noop",
        "/noop/predict",
    ],
)
async def test_options_on_a_predict_path_describes_the_model(serving, path):
    document = await fetch(serving, path)
    assert (document["info"]["title"], document["info"]["version"]) == ("RESTful API for: noop", "1.0.0")
    assert {where: each["operationId"] for where, each in operations(document).items()} == {
        ("/predictions/noop", "post"): "noop",
        ("/v1/models/noop:predict", "post"): "v1_noop",
        ("/v2/models/noop/infer", "post"): "v2_noop",
    }
    assert serving.registry.model.calls == []


@pytest.mark.parametrize("path", ["/models/noop", "/models/noop/2.0"])
async def test_options_on_a_managed_model_describes_its_management(start, path):
    serving = await start(FakeServing([FakeModel(), FakeModel("noop", "2.0")]))
    document = await fetch(serving, path, endpoint="management")
    assert document["info"]["title"] == "RESTful Management API for: noop"
    assert document["info"]["version"] == "0.12.0"
    assert list(document["paths"]) == [
        "/models/{model_name}",
        "/models/{model_name}/{model_version}",
        "/models/{model_name}/{model_version}/set-default",
    ]


@pytest.mark.parametrize(
    ("endpoint", "path", "kind"),
    [
        ("inference", "/predictions/ghost", "ModelNotFoundException"),
        ("inference", "/predictions/noop/9", "ModelVersionNotFoundException"),
        ("management", "/models/ghost", "ModelNotFoundException"),
        ("management", "/models/noop/9", "ModelVersionNotFoundException"),
    ],
)
async def test_what_is_not_registered_is_not_described(serving, endpoint, path, kind):
    answer = await serving.request("OPTIONS", path, endpoint=endpoint)
    assert (answer.status, answer.json()["type"]) == (404, kind)


@pytest.mark.parametrize("endpoint", LISTENERS)
async def test_the_root_is_for_options_and_for_kserves_clients(serving, endpoint):
    for method in ("DELETE", "POST") if endpoint == "inference" else ("GET", "POST"):
        answer = await serving.request(method, "/", endpoint=endpoint)
        assert (answer.status, answer.json()["type"]) == (405, "MethodNotAllowedException")


ANY_METHOD = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"


@pytest.mark.parametrize(
    ("endpoint", "method", "path", "allow"),
    [
        ("inference", "TRACE", "/", "GET, HEAD, OPTIONS"),
        ("inference", "TRACE", "/ping", ANY_METHOD),
        ("inference", "TRACE", "/api-description", ANY_METHOD),
        ("inference", "TRACE", "/predictions/noop", ANY_METHOD),
        ("inference", "TRACE", "/v1/models/noop:predict", ANY_METHOD),
        ("inference", "DELETE", "/v2/models/noop/infer", "POST, OPTIONS"),
        ("management", "PATCH", "/models", "GET, POST"),
        ("management", "TRACE", "/models/noop", "GET, PUT, DELETE, OPTIONS"),
        ("management", "GET", "/models/noop/1.0/set-default", "PUT"),
        ("management", "POST", "/v1/models/noop", "GET"),
        ("metrics", "POST", "/metrics", "GET, HEAD"),
    ],
)
async def test_a_method_that_a_path_lacks_is_told_which_it_has(serving, endpoint, method, path, allow):
    answer = await serving.request(method, path, endpoint=endpoint)
    assert (answer.status, answer.headers.get("allow")) == (405, allow)
    assert serving.registry.model.calls == []


async def test_a_models_name_that_is_no_word_of_a_url_still_gives_a_valid_document(start):
    serving = await start(FakeServing([FakeModel("v1_predictions {x}")]))
    document = (await serving.request("OPTIONS", "/predictions/v1_predictions%20%7Bx%7D")).json()
    assert len(document["paths"]) == 3
    assert [each.message for each in OpenAPIV30SpecValidator(document).iter_errors()] == []
