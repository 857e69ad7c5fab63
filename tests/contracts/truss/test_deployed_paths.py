"""The paths by which clients of Baseten, the platform for Trusses, call a model."""

import pytest
from tests.contracts.truss.test_truss_endpoints import is_error, mine, registry, truss
from tests.endpoints.conftest import OpenEndpoints, Start
from tests.endpoints.fake_serving import FakeModel

__all__ = ["mine"]


@pytest.mark.parametrize(
    ("path", "endpoint"),
    [
        ("/production/predict", "predict"),
        ("/development/predict?model_name=mine", "predict"),
        ("/environments/staging/predict", "predict"),
        ("/deployment/abc123/predict", "predict"),
        ("/environments/production/sync/v1/chat/completions", "chat_completions"),
    ],
)
async def test_a_post_runs_the_only_trusss_endpoint(path: str, endpoint: str, mine: OpenEndpoints) -> None:
    answer = await mine.request("POST", path, data=b"{}")
    assert (answer.status, answer.body) == (200, b"{}")
    (call,) = mine.registry.model.calls
    assert (call.header_dict[":endpoint"], call.header_dict[":path"]) == (endpoint, path)


async def test_the_paths_of_deployments_mean_trusses_alone(start: Start) -> None:
    serving = await start(registry(truss(), FakeModel("noop")))
    assert (await serving.request("POST", "/production/predict", json=[1])).json() == [1]
    assert is_error(await serving.request("POST", "/production/predict?model_name=noop"), 404, "700")
    serving = await start(registry(truss("a"), truss("b")))
    assert (await serving.request("POST", "/production/predict?model_name=b", json=[2])).json() == [2]
    assert "several models (a, b)" in is_error(await serving.request("POST", "/production/predict"), 404, "700")
    path = "/deployment/1/sync/v1/chat/completions"
    assert (await serving.request("POST", path, json={"model": "a"})).json() == {"model": "a"}
    serving = await start(registry(truss(), FakeModel("production")))
    await serving.request("POST", "/production/predict")
    assert [len(model.calls) for model in serving.registry.registered] == [0, 1]
    serving = await start(registry(FakeModel("noop")))
    answer = await serving.request("POST", "/production/predict")
    assert answer.json()["type"] == "ModelNotFoundException"


@pytest.mark.parametrize(("path", "told"), [("async_predict", "answered later"), ("run_remote", "Chains")])
async def test_what_the_platform_does_itself_is_refused(mine: OpenEndpoints, path: str, told: str) -> None:
    assert told in is_error(await mine.request("POST", f"/environments/production/{path}"), 501, "700")
