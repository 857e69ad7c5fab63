"""A new endpoint is a plugin: `shouting_endpoints.py`, which `docs/architecture.md` names."""

import json
from collections.abc import Iterator
from importlib.metadata import EntryPoint

import pytest
from tests.endpoints.conftest import Start
from tests.endpoints.fake_serving import FakeModel, FakeServing

from torchserve_py import plugins


@pytest.fixture
def shouting(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The file, as the plugin of another package."""
    found = EntryPoint("shouting", "tests.endpoints.shouting_endpoints:PLUGIN", plugins.ENTRY_POINTS)
    monkeypatch.setattr(plugins, "entry_points", lambda group: [found])
    plugins.plugins.cache_clear()
    yield
    plugins.plugins.cache_clear()


async def test_an_endpoint_of_one_file_has_what_every_endpoint_has(shouting: None, start: Start) -> None:
    serving = await start(FakeServing([FakeModel("noop")]), disable_token_authorization=False)
    key = json.loads(serving.key_file.read_text())["inference"]["key"]
    authorized = {"Authorization": f"Bearer {key}"}

    answer = await serving.request("POST", "/shout/noop", data=b"hello", headers=authorized)
    assert (answer.status, answer.body) == (200, b"HELLO")
    refused = await serving.request("POST", "/shout/noop", data=b"hello")
    assert (refused.status, refused.body[-1:]) == (401, b"!")
    unknown = await serving.request("POST", "/shout/ghost", headers=authorized)
    assert (unknown.status, unknown.body) == (404, b"Model not found: ghost!")
    wrong = await serving.request("GET", "/shout/noop", headers=authorized)
    assert (wrong.status, wrong.headers["Allow"], wrong.body[-1:]) == (405, "POST", b"!")
    described = (await serving.request("OPTIONS", "/")).json()["paths"]["/shout/{model_name}"]["post"]
    assert described["operationId"] == "shout"
    assert serving.metrics.http_requests["POST", "/shout/{model_name}", 200] == 1
