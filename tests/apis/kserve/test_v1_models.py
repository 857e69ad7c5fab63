"""Models listed and probed as clients of KServe v1 and OpenAI's own client do."""

from dataclasses import replace

import pytest
from openai import AsyncOpenAI, NotFoundError
from tests.endpoints.conftest import OpenEndpoints, Start
from tests.endpoints.fake_serving import CONFIG, FakeModel, FakeServing, worker_status

from torchserve_py.apis.openai.openai_keys import OpenAIKeys
from torchserve_py.base.settings.schemas.plugin_keys import PluginKeys


def client(serving: OpenEndpoints) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{serving.address()}/v1", api_key="none", max_retries=0)


async def test_openais_client_lists_the_models_that_it_can_use(start: Start) -> None:
    chat, truss = FakeModel("chat"), FakeModel("truss")
    chat.config = replace(CONFIG, plugin_keys=PluginKeys((OpenAIKeys(openai=True),)))
    truss.contract = "truss"
    serving = await start(FakeServing([chat, FakeModel("noop"), truss]))
    async with client(serving) as openai:
        models = (await openai.models.list()).data
        assert [(model.id, model.object, model.owned_by) for model in models] == [
            ("chat", "model", "torchserve-py"),
            ("truss", "model", "torchserve-py"),
        ]
        assert (await openai.models.retrieve("noop")).id == "noop"
        with pytest.raises(NotFoundError):
            await openai.models.retrieve("ghost")


async def test_every_name_that_is_listed_can_be_asked_for(start: Start) -> None:
    chat = FakeModel("chat")
    chat.config = replace(CONFIG, plugin_keys=PluginKeys((OpenAIKeys(openai=True, openai_models=["adapter"]),)))
    async with client(await start(FakeServing([chat]))) as openai:
        names = [model.id for model in (await openai.models.list()).data]
        assert names == ["chat", "adapter"]
        assert [(await openai.models.retrieve(name)).id for name in names] == names


async def test_health_is_the_same_as_ready(serving: OpenEndpoints) -> None:
    assert (await serving.request("GET", "/health")).json() == (await serving.request("GET", "/ready")).json()


async def test_kserves_client_v1_finds_the_server_alive(serving: OpenEndpoints) -> None:
    answer = await serving.request("GET", "/")  # is_server_live: the base URL
    assert (answer.status, answer.json()) == (200, {"status": "alive"})
    assert (await serving.request("GET", "/", endpoint="management")).status == 405


async def test_kserves_client_v1_asks_whether_a_model_is_ready(serving: OpenEndpoints) -> None:
    answer = await serving.request("GET", "/v1/models/noop")
    assert (answer.status, answer.json()["name"], answer.json()["ready"]) == (200, "noop", True)
    serving.registry.model.workers = [worker_status(ready=False)]
    assert (await serving.request("GET", "/v1/models/noop")).status == 503  # which is_model_ready takes for false
    assert (await serving.request("GET", "/v1/models/ghost")).status == 404
    assert (await serving.request("GET", "/v1/models")).json()["models"] == ["noop"]


@pytest.mark.parametrize(
    ("path", "allowed"), [("/", "GET, HEAD, OPTIONS"), ("/v1/models", "GET, HEAD"), ("/v1/models/noop", "GET, HEAD")]
)
async def test_other_methods(serving: OpenEndpoints, path: str, allowed: str) -> None:
    answer = await serving.request("DELETE", path)
    assert (answer.status, answer.headers["Allow"]) == (405, allowed)


async def test_models_are_listed_for_those_with_a_token(start: Start) -> None:
    serving = await start(disable_token_authorization=False)
    assert (await serving.request("GET", "/v1/models")).status == 400
    assert (await serving.request("GET", "/")).status == 200
