"""The paths under /v2 that describe: what each answers, and that every refusal has the protocol's shape."""

import json
from dataclasses import replace

import pytest
from openapi_spec_validator import validate
from tests.apis.open_inference.behaviours import INFER, INPUTS
from tests.endpoints.fake_serving import FakeModel, FakeServing, worker_status


async def test_what_the_server_says_of_itself(serving):
    for path in ("/v2", "/v2/", "/v2?verbose=1"):
        answer = await serving.request("GET", path)
        assert answer.status == 200
        assert set(answer.json()) == {"name", "version", "extensions"}
        assert {"model_repository", "binary_tensor_data", "statistics", "generate"} <= set(answer.json()["extensions"])
    assert (await serving.request("GET", "/v2/health/live")).json() == {"live": True}


async def test_repository_is_advertised_only_where_models_may_be_loaded(start):
    serving = await start(enable_model_api=False)
    assert "model_repository" not in (await serving.request("GET", "/v2")).json()["extensions"]
    assert (await serving.request("POST", "/v2/repository/models/noop/load")).status == 405


async def test_readiness(serving):
    answer = await serving.request("GET", "/v2/health/ready")
    assert (answer.status, answer.json()) == (200, {"ready": True})
    answer = await serving.request("GET", "/v2/models/noop/versions/1.0/ready")
    assert (answer.status, answer.json()) == (200, {"name": "noop", "ready": True})
    serving.registry.model.workers = [worker_status(ready=False)]
    answer = await serving.request("GET", "/v2/models/noop/ready")
    assert (answer.status, answer.json()) == (400, {"name": "noop", "ready": False})
    serving.registry.is_startup_ready = False
    answer = await serving.request("GET", "/v2/health/ready")
    assert (answer.status, answer.json()) == (400, {"ready": False})


async def test_a_server_that_drains_is_not_ready(serving):
    serving.endpoints.context.start_draining()
    assert (await serving.request("GET", "/v2/health/ready")).status == 400
    assert (await serving.request("GET", "/v2/health/live")).status == 200


async def test_metadata_show_what_the_model_has_declared(start):
    model = FakeModel(version="2.0")
    model.declared = {"inputs": INPUTS, "outputs": INPUTS, "platform": "mine"}
    serving = await start(FakeServing([FakeModel(version="1.0"), model]))
    assert (await serving.request("GET", "/v2/models/noop")).json() == {
        "name": "noop",
        "versions": ["1.0", "2.0"],
        "platform": "mine",
        "inputs": INPUTS,
        "outputs": INPUTS,
    }
    answer = await serving.request("GET", "/v2/models/noop/versions/1.0")
    assert (answer.json()["versions"], answer.json()["inputs"]) == (["1.0"], [])


async def test_the_configuration_of_a_model(start):
    model = FakeModel()
    model.declared = {"inputs": INPUTS, "max_batch_size": 8, "max_batch_time": 0.5}
    serving = await start(FakeServing([model, FakeModel("stateful", stateful=True)]))
    config = (await serving.request("GET", "/v2/models/noop/config")).json()
    assert config["max_batch_size"] == 8
    assert config["input"] == [{"name": "x", "data_type": "TYPE_FP32", "dims": [2]}]
    assert config["dynamic_batching"] == {"max_queue_delay_microseconds": 500_000}
    assert config["model_transaction_policy"] == {"decoupled": False}
    assert "sequence_batching" not in config
    config = (await serving.request("GET", "/v2/models/stateful/config")).json()
    assert config["sequence_batching"]["max_sequence_idle_microseconds"] == 60_000_000
    assert (config["max_batch_size"], "dynamic_batching" in config) == (0, False)


async def test_a_batch_size_is_told_unless_a_declared_shape_contradicts_it(start):
    model = FakeModel()
    model.declared = {"max_batch_size": 8}
    serving = await start(FakeServing([model]))
    for inputs, size in (([], 8), (INPUTS, 8), ([{"name": "x", "datatype": "FP32", "shape": [2]}], 0)):
        model.declared = {"inputs": inputs, "max_batch_size": 8}
        config = (await serving.request("GET", "/v2/models/noop/config")).json()
        assert (config["max_batch_size"], "dynamic_batching" in config) == (size, size > 0)


async def test_the_servers_own_batches_are_told_without_a_batch_size_for_clients(start):
    model = FakeModel()
    model.config = replace(model.config, batch_size=4, max_batch_delay_ms=50)
    serving = await start(FakeServing([model]))
    config = (await serving.request("GET", "/v2/models/noop/config")).json()
    assert config["max_batch_size"] == 0
    assert config["dynamic_batching"] == {"max_queue_delay_microseconds": 50_000}


async def test_statistics(serving):
    for path in ("/v2/models/stats", "/v2/models/noop/stats", "/v2/models/noop/versions/1.0/stats"):
        [entry] = (await serving.request("GET", path)).json()["model_stats"]
        assert entry["name"] == "noop"


@pytest.mark.parametrize("path", ["/v2/docs/dataplane.json", "/v2/models/noop/docs/dataplane.json"])
async def test_documents_are_openapi(start, path):
    model = FakeModel()
    model.declared = {"inputs": INPUTS}
    serving = await start(FakeServing([model]))
    document = (await serving.request("GET", path, headers={"Accept-Encoding": "identity"})).json()
    validate(document)
    page = await serving.request("GET", path.removesuffix("/dataplane.json"))
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert path.encode() in page.body


@pytest.mark.parametrize(
    ("method", "path", "status", "error"),
    [
        ("GET", "/v2/nothing", 404, "Not Found"),
        ("GET", "/v2/models/noop/what", 404, "Not Found"),
        ("GET", "/v2/repository", 404, "Not Found"),
        ("POST", "/v2", 405, "Method Not Allowed"),
        ("GET", INFER, 405, "Method Not Allowed"),
        ("GET", "/v2/repository/index", 405, "Method Not Allowed"),
        ("GET", "/v2/models/ghost", 404, "Model ghost not found"),
        ("POST", "/v2/models/ghost/infer", 404, "Model ghost not found"),
        ("GET", "/v2/models/noop/versions/9", 404, "Model noop with version 9 not found"),
        ("POST", "/v2/models/noop/versions/9/infer_stream", 404, "Model noop with version 9 not found"),
        ("GET", "/v2/systemsharedmemory/status", 501, "Shared memory"),
        ("POST", "/v2/cudasharedmemory/region/r/register", 501, "Shared memory"),
        ("GET", "/v2/logging", 501, "log"),
        ("POST", "/v2/trace/setting", 501, "Traces"),
        ("POST", "/v2/models/noop/trace/setting", 501, "Traces"),
        ("POST", "/v2/repository/mine/models/noop/load", 501, "one repository"),
    ],
)
async def test_refusals(serving, method, path, status, error):
    answer = await serving.request(method, path)
    assert (answer.status, set(answer.json())) == (status, {"error"})
    assert error in answer.json()["error"]
    assert answer.headers["content-type"] == "application/json"


async def test_a_wrong_token_is_refused_in_the_protocols_shape(start):
    serving = await start(disable_token_authorization=False)
    assert "Token" in (await serving.request("POST", INFER, data=b"x")).json()["error"]
    keys = json.loads(serving.key_file.read_text())
    inference = {"Authorization": f"Bearer {keys['inference']['key']}"}
    management = {"Authorization": f"Bearer {keys['management']['key']}"}
    assert (await serving.request("POST", INFER, data=b"x", headers=inference)).status == 200
    assert (await serving.request("POST", "/v2/repository/index", headers=inference)).status == 401
    assert (await serving.request("POST", "/v2/repository/index", headers=management)).status == 200


async def test_gpu_models_have_a_gpu_group(start):
    model = FakeModel()
    model.config = replace(model.config, device_type="gpu")
    serving = await start(FakeServing([model]))
    config = (await serving.request("GET", "/v2/models/noop/config")).json()
    assert config["instance_group"][0]["kind"] == "KIND_GPU"
