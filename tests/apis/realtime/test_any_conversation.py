"""Whatever a client of a conversation sends is carried out or refused with an error, and the session goes on."""

import asyncio
import base64
import json
import random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.apis.realtime.conftest import Open
from tests.apis.realtime.conversing import answered, ask, chat_model, listener, sound, speaker, writer
from tests.apis.realtime.test_any_event import SCALARS
from tests.endpoints.conftest import Start
from tests.endpoints.fake_serving import FakeModel, FakeServing
from tests.ops.keys.test_given_keys import write

from torchserve_py.apis.realtime.client_events import BadEvent, read_event
from torchserve_py.apis.realtime.conversation_config import ConversationConfig, read_response
from torchserve_py.apis.realtime.conversation_items import as_messages, read_item
from torchserve_py.apis.realtime.realtime_pipeline import Pipeline

MEMBERS = [
    *("type", "instructions", "output_modalities", "audio", "tools", "tool_choice", "max_output_tokens", "reasoning"),
    *("input", "output", "format", "voice", "speed", "transcription", "turn_detection", "threshold", "eagerness"),
    *("prefix_padding_ms", "silence_duration_ms", "create_response", "conversation", "metadata", "name", "effort"),
    *("id", "role", "content", "text", "transcript", "call_id", "arguments", "parallel_tool_calls", "rate"),
]
WORDS = st.sampled_from(
    ["realtime", "server_vad", "semantic_vad", "audio", "text", "user", "assistant", "message", "function_call", "none"]
)
VALUES = st.recursive(
    SCALARS | WORDS | st.sampled_from([["audio"], ["text"], 1e400, -1, 10**30]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(MEMBERS), inner, max_size=6),
    max_leaves=25,
)
PIPELINE = Pipeline(*(each.served for each in (FakeModel("chat"), listener(), writer(), speaker())))


@given(st.dictionaries(st.sampled_from(MEMBERS), VALUES, max_size=8))
def test_any_settings(settings: dict[str, Any]) -> None:
    try:
        event = read_event(json.dumps({"type": "session.update", "session": settings}).encode())
    except BadEvent:
        return  # a number that JSON does not have
    data = event.session
    assert isinstance(data, msgspec.Raw)
    config = ConversationConfig.of(PIPELINE)
    try:
        config = config.updated(data, PIPELINE)
    except BadEvent as error:
        assert str(error)
    msgspec.json.encode(config.described("sess", PIPELINE))
    msgspec.json.encode(config.answer.options())
    try:
        request = read_response(data, config.answer, PIPELINE)
    except BadEvent as error:
        assert str(error)
    else:
        msgspec.json.encode(request.answer.options())


@pytest.mark.parametrize("depth", [500, 1000, 100_000])
@pytest.mark.parametrize("name", ["tools", "tool_choice", "reasoning", "audio", "tracing"])
async def test_any_depth(listen: Open, depth: int, name: str) -> None:
    client = await listen(chat_model(lambda asked: ["Yes."]), query="?model=chat")
    nested = '{"x":' * depth + "1" + "}" * depth
    await client.socket.send(f'{{"type": "session.update", "session": {{"{name}": [{nested}]}}}}')
    assert (await client.receive())["type"] in ("error", "session.updated")
    await client.socket.send(f'{{"type": "conversation.item.create", "item": {{"content": [{nested}]}}}}')
    assert (await client.receive())["type"] == "error"
    await ask(client, "hello")
    assert (await answered(client))["status"] == "completed"


@given(st.dictionaries(st.sampled_from(MEMBERS), VALUES, max_size=8))
def test_any_item(given_item: dict[str, Any]) -> None:
    try:
        item = read_item(msgspec.json.decode(json.dumps(given_item)))
    except (BadEvent, msgspec.DecodeError):
        return
    msgspec.json.encode(item.shown())
    msgspec.json.encode(as_messages("", [item]))


def events(dice: random.Random) -> list[dict[str, Any]]:
    """Return some events, in any order."""
    user = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hello"}]}
    speech = base64.b64encode(sound(dice.choice([b"a", b"\0"]), dice.choice([0.1, 0.7, 3]))[dice.choice([0, 1]) :])
    turns = dice.choice([None, {"type": "server_vad", "interrupt_response": dice.random() < 0.5}])
    some: list[dict[str, Any]] = [
        {"type": "input_audio_buffer.append", "audio": speech.decode()},
        {"type": "input_audio_buffer.append", "audio": speech.decode()},
        {"type": "input_audio_buffer.commit"},
        {"type": "input_audio_buffer.clear"},
        {"type": "response.create"},
        {"type": "response.create", "response": {"conversation": "none", "input": []}},
        {"type": "response.cancel"},
        {"type": "conversation.item.create", "item": user, "previous_item_id": dice.choice([None, "root", "x"])},
        {"type": "conversation.item.delete", "item_id": "x"},
        {"type": "session.update", "session": {"type": "realtime", "audio": {"input": {"turn_detection": turns}}}},
        {"type": "session.update", "session": {"audio": {"input": {"format": {"type": "audio/pcmu"}}}}},
        {"type": "session.update", "session": {"output_modalities": [dice.choice(["text", "audio"])]}},
        {"type": "nonsense"},
    ]
    return dice.sample(some, 8)


@pytest.mark.parametrize("seed", range(12))
async def test_any_order_of_events(listen: Open, seed: int) -> None:
    dice = random.Random(seed)
    pipeline = {"voiceActivity": "listener", "transcriber": "ears", "synthesizer": "voice"}
    chat = chat_model(lambda asked: ["Well. ", "Yes."], **pipeline)
    client = await listen(chat, listener(), writer(), speaker(), query="?model=chat")
    for event in events(dice):
        await client.socket.send(json.dumps(event))
        if dice.random() < 0.3:
            await asyncio.sleep(0.02)
    for kind in ("response.cancel", "input_audio_buffer.clear"):
        await client.send(kind)
    await client.events("input_audio_buffer.cleared")
    await client.send("session.update", session={"audio": {"input": {"turn_detection": None}}})
    await client.events("session.updated")
    await asyncio.sleep(0.1)
    await ask(client, "still there?")
    while (await answered(client))["status"] != "completed":
        pass


async def test_a_key_must_be_for_all_models(start: Start, tmp_path: Any) -> None:
    entries = [
        {"key": "some", "name": "some", "models": ["chat"]},
        {"key": "all", "name": "all", "models": ["chat", "voice"]},
    ]
    keys = write(tmp_path / "keys.json", *entries)
    models = [chat_model(lambda asked: ["Yes."], synthesizer="voice"), speaker()]
    endpoints = await start(FakeServing(models), disable_token_authorization=False, keys_file=keys)
    upgrade = {
        **{"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"},
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    }
    for key, status in (("some", 403), ("none", 401), ("all", 101)):
        headers = {**upgrade, "Authorization": f"Bearer {key}"}
        address = endpoints.address()
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        raw = await endpoints.raw(
            f"GET /v1/realtime?model=chat HTTP/1.1\r\nHost: {address.host}\r\n{head}\r\n".encode()
        )
        line = await asyncio.wait_for(raw.reader.readline(), 20)
        assert int(line.split()[1]) == status, (key, line)
        raw.writer.close()


async def test_a_client_that_leaves_ends_all_that_runs(listen: Open) -> None:
    chat = chat_model(lambda asked: [], voiceActivity="listener", transcriber="ears", synthesizer="voice")
    ear, pen, voice = listener(), writer(), speaker()
    chat.behave = lambda call: call.part(b": wait\n\n", more=True)
    client = await listen(chat, ear, pen, voice, query="?model=chat")
    await client.append(sound(b"a", 0.5) + sound(b"\0", 1))
    await client.events("response.created")
    await asyncio.wait_for(chat.submitted.wait(), 20)
    await client.socket.close()
    await asyncio.wait_for(chat.cancelled.wait(), 20)
    assert (len(ear.released), len(pen.released)) == (1, 1)
