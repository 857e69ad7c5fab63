"""OpenAI's interface for models that declare it, with OpenAI's own client."""

import json
from collections.abc import AsyncIterator
from dataclasses import replace

import openai
import pytest
from openai import AsyncOpenAI
from tests.endpoints.conftest import OpenEndpoints, Start
from tests.endpoints.fake_serving import FakeModel, FakeServing, Submitted

from torchserve_py.apis.openai.openai_keys import OpenAIKeys
from torchserve_py.base.causes import Cause
from torchserve_py.base.settings.schemas.plugin_keys import PluginKeys

CHUNK = {"id": "1", "object": "chat.completion.chunk", "created": 0, "model": "llm"}


def model_of(name: str = "llm", *names: str, stateful: bool = False) -> FakeModel:
    model = FakeModel(name, stateful=stateful)
    keys = OpenAIKeys.model_validate({"openai": True, "openaiModels": [*names]})
    model.config = replace(model.config, plugin_keys=PluginKeys((keys,)))
    model.behave = answer
    return model


def answer(call: Submitted) -> None:
    """Say which path was asked, and what."""
    asked = json.loads(call.body)
    if asked.get("stream"):
        for text in ("Hal", "lo"):
            call.part(event(text), more=True)
        call.part(b"data: [DONE]\n\n")
        return
    path = call.header_dict["url_path"]
    text = f"{path} of {asked['model']}"
    body = {
        "v1/chat/completions": {"choices": [{"index": 0, "message": {"role": "assistant", "content": text}}]},
        "v1/completions": {"choices": [{"index": 0, "text": text}]},
        "v1/embeddings": {"object": "list", "data": [{"object": "embedding", "index": 0, "embedding": [0.5, 1.0]}]},
    }[path]
    call.part(json.dumps(body).encode(), headers=[("content-type", "application/json")])


def event(text: str) -> bytes:
    chunk = CHUNK | {"choices": [{"index": 0, "delta": {"content": text}}]}
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


@pytest.fixture
async def serving(start: Start) -> OpenEndpoints:
    return await start(FakeServing([model_of(), FakeModel("noop")]))


@pytest.fixture
async def client(serving: OpenEndpoints) -> AsyncIterator[AsyncOpenAI]:
    async with client_of(serving) as client:
        yield client


def client_of(serving: OpenEndpoints) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{serving.address()}/v1", api_key="none", max_retries=0, timeout=180)


async def test_chat_completions_and_embeddings(serving: OpenEndpoints, client: AsyncOpenAI) -> None:
    chat = await client.chat.completions.create(model="llm", messages=[{"role": "user", "content": "hi"}])
    assert chat.choices[0].message.content == "v1/chat/completions of llm"
    assert (await client.completions.create(model="llm", prompt="hi")).choices[0].text == "v1/completions of llm"
    embedded = await client.embeddings.create(model="llm", input="hi", encoding_format="float")
    assert embedded.data[0].embedding == [0.5, 1.0]
    assert [each.id for each in (await client.models.list()).data] == ["llm"]
    assert all(call.by_default for call in serving.registry.model.calls)


async def test_streams(client: AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(model="llm", messages=[], stream=True)
    assert stream.response.headers["content-type"].startswith("text/event-stream")
    assert [chunk.choices[0].delta.content async for chunk in stream] == ["Hal", "lo"]


async def test_a_failure_within_a_stream_is_raised(serving: OpenEndpoints, client: AsyncOpenAI) -> None:
    serving.registry.model.behave = lambda call: call.part(event("Hal"), more=True)
    stream = await client.chat.completions.create(model="llm", messages=[], stream=True)
    assert (await anext(stream)).choices[0].delta.content == "Hal"
    serving.registry.model.calls[0].fail(Cause.worker_died)
    with pytest.raises(openai.APIError, match="The worker that ran the request"):
        await anext(stream)


async def test_a_model_gets_the_names_that_it_says_are_its_own(start: Start) -> None:
    models = [
        model_of("llm", "adapter", "other", "taken"),
        model_of("other"),
        model_of("last", "taken"),
        FakeModel("noop"),
    ]
    serving = await start(FakeServing(models))
    async with client_of(serving) as client:
        for name, model in (("llm", 0), ("adapter", 0), ("other", 1), ("taken", 2), ("last", 2)):
            before = len(models[model].calls)
            answer = await client.completions.create(model=name, prompt="")
            assert (answer.choices[0].text, len(models[model].calls)) == (f"v1/completions of {name}", before + 1)
        assert {each.id for each in (await client.models.list()).data} == {"llm", "adapter", "other", "taken", "last"}


@pytest.mark.parametrize("name", ["noop", "typo"])
async def test_other_names_are_not_answered_by_the_only_model(client: AsyncOpenAI, name: str) -> None:
    with pytest.raises(openai.NotFoundError, match=rf"'{name}' does not .*: llm\.") as unknown:
        await client.completions.create(model=name, prompt="")
    assert unknown.value.code == "model_not_found"


async def test_a_model_may_take_any_name_that_no_other_has(start: Start) -> None:
    serving = await start(FakeServing([model_of("llm", "*"), FakeModel("noop")]))
    async with client_of(serving) as client:
        answer = await client.completions.create(model="adapter", prompt="")
        assert answer.choices[0].text == "v1/completions of adapter"
        with pytest.raises(openai.NotFoundError, match="'noop' does not answer OpenAI's requests"):
            await client.completions.create(model="noop", prompt="")
        assert [each.id for each in (await client.models.list()).data] == ["llm"]


async def test_what_is_refused_looks_as_it_does_at_openai(start: Start) -> None:
    serving = await start(FakeServing([model_of("one"), model_of("two")]))
    async with client_of(serving) as client:
        with pytest.raises(openai.NotFoundError, match=r"'ghost' does not exist\. .*: one, two") as unknown:
            await client.completions.create(model="ghost", prompt="")
        assert unknown.value.code == "model_not_found"
        serving.registry.registered[1].behave = lambda call: call.fail(Cause.queue_full)
        with pytest.raises(openai.InternalServerError) as full:
            await client.completions.create(model="two", prompt="")
        assert (full.value.status_code, full.value.response.headers["retry-after"]) == (503, "1")
        serving.registry.registered[1].behave = lambda call: call.part(status=400, error="too long")
        with pytest.raises(openai.BadRequestError, match="too long"):
            await client.completions.create(model="two", prompt="")
    refused = await serving.request("GET", "/v1/completions")
    assert (refused.status, refused.headers["Allow"], list(refused.json())) == (405, "POST", ["error"])


async def test_without_such_a_model_the_client_is_told_what_is_missing(start: Start) -> None:
    serving = await start()
    answer = await serving.request("POST", "/v1/chat/completions", data=b'{"model": "noop"}')
    error = answer.json()["error"]
    assert (answer.status, error["code"]) == (404, "model_not_found")
    assert "openai: true" in error["message"]
    assert (await serving.request("GET", "/v1/chat/completions")).status == 405


async def test_a_request_to_a_model_with_sequences_belongs_to_one(start: Start) -> None:
    model = model_of(stateful=True)
    serving = await start(FakeServing([model]))
    async with client_of(serving) as client:
        for headers in ({}, {}, {"ts_request_sequence_id": "ada"}):
            await client.completions.create(model="llm", prompt="", extra_headers=headers)
    made_up, other, named = (call.sequence_id for call in model.calls)
    assert made_up != other
    assert (named, model.calls[2].header_dict["ts_request_sequence_id"]) == ("ada", "ada")
    # Nobody could continue those without a name, and they would take the place of others until they are idle for long.
    assert [call.ends_sequence for call in model.calls] == [True, True, False]


async def test_who_finds_no_room_for_a_sequence_is_told_the_limit(start: Start) -> None:
    model = model_of(stateful=True)
    model.known_sequences = {"ada"}
    model.behave = lambda call: call.fail(Cause.sequence_capacity)
    async with client_of(await start(FakeServing([model]))) as client:
        with pytest.raises(openai.InternalServerError) as refused:
            await client.completions.create(model="llm", prompt="")
    assert refused.value.code == "sequence_capacity"
    assert "2 sequences are open, as many as maxNumSequence allows" in refused.value.message


async def test_trusses_have_the_same_paths(start: Start) -> None:
    truss = FakeModel("shouting")
    truss.contract = "truss"
    serving = await start(FakeServing([model_of(), truss]))
    async with client_of(serving) as client:
        assert (await client.completions.create(model="llm", prompt="")).choices[0].text == "v1/completions of llm"
    body = b'{"model": "shouting"}'
    assert (await serving.request("POST", "/v1/chat/completions", data=body)).body == body
    assert truss.calls[0].protocol == "truss"
