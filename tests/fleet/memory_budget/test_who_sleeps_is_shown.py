"""Operators see which models sleep: in the management API and in the console."""

import json
from typing import Any

from tests.endpoints.conftest import OpenEndpoints, Start
from tests.endpoints.fake_serving import FakeModel, FakeServing, worker_status

API = "/console/api"
SINCE = 1795826100.25


async def first_event(serving: OpenEndpoints, target: str) -> Any:
    async with serving.client.get(f"{serving.address('management')}{target}") as response:
        while not (line := await response.content.readline()).startswith(b"data: "):
            assert line
        return json.loads(line[6:])


async def sleeping(start: Start) -> OpenEndpoints:
    registry = FakeServing([FakeModel("a")])
    registry.usage.rests = {worker_status().pid: ("asleep", SINCE)}
    return await start(registry)


async def test_the_description_of_a_model_says_since_when_it_sleeps(start: Start) -> None:
    serving = await sleeping(start)
    described = (await serving.request("GET", "/models/a", endpoint="management")).json()
    (worker,) = described[0]["workers"]
    assert (worker["status"], worker["sleep"]) == ("READY", {"state": "asleep", "since": "2026-11-28T00:35:00.250Z"})


async def test_the_console_says_that_a_model_and_its_worker_sleep(start: Start) -> None:
    serving = await sleeping(start)
    while not (models := (await first_event(serving, f"{API}/overview"))["models"]):
        pass  # the first sample is taken within a second
    assert models[0]["rests"] == "asleep"
    (worker,) = (await first_event(serving, f"{API}/models/a/1.0"))["workers"]
    assert worker["rest"] == {"state": "asleep", "since": SINCE}
