"""The console's endpoint: the page without a key, everything else with the management key, and an off switch."""

import asyncio
import json
from typing import Any

import pytest
from tests.endpoints.conftest import OpenEndpoints, Start
from tests.endpoints.fake_serving import FakeModel, FakeServing

from torchserve_py.base.settings.model_spec import ModelSpec
from torchserve_py.tools.console.history import COLUMNS

API = "/console/api"
#: Seconds without a word, after which the page turns grey.
SILENCE = 6
BEHIND_THE_KEY = (
    ("GET", f"{API}/server"),
    ("GET", f"{API}/overview"),
    ("GET", f"{API}/store"),
    ("GET", f"{API}/models/noop/1.0"),
    ("GET", f"{API}/logs/9000"),
    ("GET", f"{API}/sequences/noop/1.0"),
    ("DELETE", f"{API}/sequences/noop/1.0?id=a"),
    ("POST", "/console/predictions/noop/1.0"),
    ("GET", "/console/sequences/noop/1.0"),
)


async def ask(serving: OpenEndpoints, target: str, method: str = "GET", **more: Any) -> Any:
    return await serving.request(method, target, endpoint="management", **more)


async def events(serving: OpenEndpoints, target: str, count: int, **more: Any) -> list[tuple[str, Any]]:
    """Return the first events of a stream."""
    found: list[tuple[str, Any]] = []
    async with serving.client.get(f"{serving.address('management')}{target}", **more) as response:
        assert response.status == 200, await response.text()
        assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        while len(found) < count and (line := await response.content.readline()):
            if line.startswith(b"event: "):
                data = await response.content.readline()
                found.append((line[7:].decode().strip(), json.loads(data[6:])))
    return found


async def test_the_page_needs_no_key_and_brings_its_policy(start: Start) -> None:
    serving = await start(disable_token_authorization=False)
    for target, kind in (
        ("/console/", "text/html"),
        ("/console/main.js", "text/javascript"),
        ("/console/base.css", "text/css"),
        ("/console/vendor/uPlot.iife.min.js", "text/javascript"),
        ("/console/live-session.js", "text/javascript"),
    ):
        answer = await ask(serving, target)
        assert answer.status == 200
        assert answer.headers["Content-Type"].startswith(kind)
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
    moved = await ask(serving, "/console", allow_redirects=False)
    assert (moved.status, moved.headers["Location"]) == (307, "console/")


@pytest.mark.parametrize(
    "target", ["/console/nothing.js", "/console/../setup.cfg", "/console/%2e%2e/console_endpoints.py"]
)
async def test_the_page_has_its_own_files_only(serving: OpenEndpoints, target: str) -> None:
    head = (await serving.raw(f"GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode(), endpoint="management")).head
    assert (await head()).startswith("http/1.1 404")


@pytest.mark.parametrize(("method", "target"), BEHIND_THE_KEY)
async def test_everything_else_needs_the_management_key(start: Start, method: str, target: str) -> None:
    serving = await start(disable_token_authorization=False)
    inference_key = json.loads(serving.key_file.read_text())["inference"]["key"]
    for headers in ({}, {"Authorization": f"Bearer {inference_key}"}):
        refused = await ask(serving, target, method, headers=headers)
        assert (refused.status, refused.json()["type"]) == (400, "InvalidKeyException")


async def test_the_off_switch_leaves_nothing(start: Start) -> None:
    serving = await start(enable_console=False)
    for method, target in (("GET", "/console/"), *BEHIND_THE_KEY):
        assert (await ask(serving, target, method)).status == 404


async def test_the_overview_has_every_version_and_goes_on_each_second(start: Start) -> None:
    serving = await start(FakeServing([FakeModel("a"), FakeModel("a", "2.0"), FakeModel("b", stateful=True)]))
    while True:  # the first sample is taken within a second
        (_, first), (name, second) = await events(serving, f"{API}/overview", 2)
        if first["models"]:
            break
    rows = {(row["name"], row["version"]): row for row in first["models"]}
    assert rows.keys() == {("a", "1.0"), ("a", "2.0"), ("b", "1.0")}
    assert [rows[key]["default"] for key in sorted(rows)] == [True, False, True]
    assert rows["b", "1.0"]["stateful"]
    assert first["history"]["seconds"]["columns"]["workers"][-1] == 3
    assert (name, second["gone"]) == ("second", [])
    assert len(second["point"]) == len(COLUMNS)


async def test_a_burst_before_the_first_look_is_shown(start: Start) -> None:
    registry = FakeServing([FakeModel("a")])
    registry.model.metrics.outcomes.failures["handler_error"] = 3
    serving = await start(registry)
    while True:  # the first sample is taken within a second
        [(_, first)] = await events(serving, f"{API}/overview", 1)
        if first["models"]:
            break
    assert sum(each or 0 for each in first["history"]["seconds"]["columns"]["failures"]) == 3
    [(_, model)] = await events(serving, f"{API}/models/a/1.0", 1)
    assert model["failures"] == {"handler_error": 3}


async def test_models_that_could_not_be_loaded_are_named(start: Start) -> None:
    registry = FakeServing([FakeModel("a")], not_loaded=[ModelSpec("broken", "broken.mar")])
    serving = await start(registry)
    [(_, first)] = await events(serving, f"{API}/overview", 1)
    assert first["problems"] == ['The start-up model "broken" could not be loaded; the log says why.']


async def test_a_model_is_shown_until_it_is_gone(start: Start) -> None:
    registry = FakeServing([FakeModel("a")])
    serving = await start(registry)
    (_, model), (name, second) = await events(serving, f"{API}/models/a/1.0", 2)
    assert (model["name"], model["config"]["batch_size"], name) == ("a", 1, "second")
    assert [worker["id"] for worker in second["workers"]] == ["9000"]
    assert (await ask(serving, f"{API}/models/a/7.0")).status == 404


async def test_streams_end_when_the_key_is_replaced(start: Start) -> None:
    serving = await start(disable_token_authorization=False)
    keys = json.loads(serving.key_file.read_text())
    authorized = {"Authorization": f"Bearer {keys['management']['key']}"}
    async with serving.client.get(f"{serving.address('management')}{API}/overview", headers=authorized) as response:
        assert await response.content.readline() == b"event: overview\n"
        replace = {"Authorization": f"Bearer {keys['API']['key']}"}
        assert (await ask(serving, "/token?type=management", headers=replace)).status == 200
        assert b"event: expired\n" in await response.content.read()


async def test_sequences_are_searched_and_ended(start: Start) -> None:
    registry = FakeServing([FakeModel("a", stateful=True)])
    registry.model.known_sequences |= {"x-1", "x-2", "y-1"}
    serving = await start(registry)
    page = (await ask(serving, f"{API}/sequences/a/1.0?text=x&limit=1")).json()
    assert (page["open"], page["found"], [each["id"] for each in page["sequences"]]) == (3, 2, ["x-1"])
    assert (await ask(serving, f"{API}/sequences/a/1.0?id=x-1", "DELETE")).status == 200
    assert registry.model.known_sequences == {"x-2", "y-1"}


@pytest.mark.parametrize("query", ["limit=0", "limit=201", "limit=many", "order=best"])
async def test_a_wrong_parameter_is_named(start: Start, query: str) -> None:
    serving = await start(FakeServing([FakeModel("a", stateful=True)]))
    refused = await ask(serving, f"{API}/sequences/a/1.0?{query}")
    assert (refused.status, query.partition("=")[0] in refused.json()["message"]) == (400, True)


async def test_a_request_of_the_page_is_one_to_the_model(serving: OpenEndpoints) -> None:
    answer = await ask(serving, "/console/predictions/noop/1.0", "POST", data=b"hello")
    assert (answer.status, answer.body) == (200, b"hello")


async def test_a_worker_without_lines_has_an_empty_log(serving: OpenEndpoints) -> None:
    assert await events(serving, f"{API}/logs/9000", 1) == [("lines", [])]


@pytest.mark.parametrize("target", ["overview", "events", "machine", "models/noop/1.0", "logs/9000"])
async def test_a_page_hears_something_before_it_takes_the_server_for_gone(serving: OpenEndpoints, target: str) -> None:
    async with serving.client.get(f"{serving.address('management')}{API}/{target}") as response:
        while (await response.content.readline()).strip():  # the first event
            continue
        assert await asyncio.wait_for(response.content.readline(), SILENCE)
