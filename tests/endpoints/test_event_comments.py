"""Streams of events whose first one is late: comments show proxies that the connection is alive."""

import asyncio
import json
from dataclasses import replace

import pytest
from tests.endpoints.conftest import OpenEndpoints, Start
from tests.endpoints.fake_serving import FakeModel, FakeServing, Submitted

from torchserve_py.apis.openai.openai_keys import OpenAIKeys
from torchserve_py.base.causes import Cause
from torchserve_py.base.settings.schemas.plugin_keys import PluginKeys

CHAT = ("/v1/chat/completions", {"model": "noop", "messages": [], "stream": True})
RESPONSE = ("/v1/responses", {"model": "noop", "input": "hi", "stream": True})
GENERATE = ("/v2/models/noop/generate_stream", {"text_input": "hi"})
INFER = ("/v2/models/noop/infer_stream", {"inputs": []})
STREAMS = pytest.mark.parametrize(("path", "body"), [CHAT, RESPONSE, GENERATE, INFER])


@pytest.fixture
async def serving(start: Start) -> OpenEndpoints:
    model = FakeModel("noop")
    keys = OpenAIKeys.model_validate({"openai": True})
    model.config = replace(model.config, plugin_keys=PluginKeys((keys,)))
    model.behave = lambda call: None  # answers when the test says so
    return await start(FakeServing([model]), event_comment_interval=0.2)


async def asked(serving: OpenEndpoints) -> Submitted:
    calls = serving.registry.model.calls
    async with asyncio.timeout(60):
        while not calls:
            await asyncio.sleep(0.01)
    return calls[0]


@STREAMS
async def test_comments_come_until_the_first_event(serving: OpenEndpoints, path: str, body: dict[str, object]) -> None:
    async with serving.client.post(f"{serving.address()}{path}", json=body) as response:
        call = await asked(serving)
        assert response.status == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["x-accel-buffering"] == "no"
        for _ in range(2):
            assert [await response.content.readline() for _ in range(2)] == [b":\n", b"\n"]
        call.part(b"data: first\n\n", more=True)
        call.part(b"data: last\n\n")
        rest = await response.read()
    assert rest.count(b"first") == rest.count(b"last") == 1
    assert b":\n\n" not in rest.partition(b"first")[2]


@STREAMS
async def test_a_whole_answer_and_a_failure_are_events_then(
    serving: OpenEndpoints, path: str, body: dict[str, object]
) -> None:
    async with serving.client.post(f"{serving.address()}{path}", json=body) as response:
        (await asked(serving)).part(b"data: only\n\n")
        assert (await response.read()).endswith(b"data: only\n\n" if "/v1/" in path else b"data: only\n\n\n\n")
    serving.registry.model.calls.clear()
    async with serving.client.post(f"{serving.address()}{path}", json=body) as response:
        assert response.status == 200
        (await asked(serving)).fail(Cause.response_timeout)
        rest = await response.read()
    while rest.startswith(b":\n\n"):
        rest = rest.removeprefix(b":\n\n")
    assert rest.startswith(b"data: {")
    assert "error" in json.loads(rest.removeprefix(b"data: "))


async def test_other_requests_wait_for_their_status(serving: OpenEndpoints) -> None:
    body = {"model": "noop", "messages": []}
    answer = asyncio.ensure_future(serving.request("POST", CHAT[0], json=body))
    call = await asked(serving)
    await asyncio.sleep(0.5)
    call.fail(Cause.response_timeout)
    assert (await answer).status == 504


async def test_a_client_that_leaves_ends_them(serving: OpenEndpoints) -> None:
    async with serving.client.post(f"{serving.address()}{CHAT[0]}", json=CHAT[1]) as response:
        await asked(serving)
        assert await response.content.readline() == b":\n"
    async with asyncio.timeout(60):
        await serving.registry.model.cancelled.wait()


async def test_a_stream_whose_first_event_is_there_at_once_gets_none(serving: OpenEndpoints) -> None:
    serving.registry.model.behave = lambda call: call.part(b"data: first\n\n", more=True)
    async with serving.client.post(f"{serving.address()}{CHAT[0]}", json=CHAT[1]) as response:
        call = await asked(serving)
        await asyncio.sleep(0.5)
        call.part(b"data: last\n\n")
        assert await response.read() == b"data: first\n\ndata: last\n\n"
