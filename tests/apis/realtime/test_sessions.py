"""Sessions of the realtime API: their settings, in each shape, what is refused, and how they end."""

import asyncio
import json
from typing import Any

import pytest
from tests.apis.realtime.conftest import Open, open_socket, transcriber
from tests.endpoints.conftest import Start
from tests.endpoints.fake_serving import FakeModel, FakeServing
from websockets.exceptions import InvalidStatus

BETA = {"additional_headers": {"OpenAI-Beta": "realtime=v1"}}


def update(**heard: Any) -> dict[str, Any]:
    return {"session": {"type": "transcription", "audio": {"input": heard}}}


async def test_settings_in_their_present_shape(listen: Open) -> None:
    model = transcriber()
    client = await listen(model)
    created = client.created
    assert created["type"] == "session.created"
    heard = created["session"]["audio"]["input"]
    assert heard == {
        "format": {"type": "audio/pcm", "rate": 24000},
        "transcription": {"model": "ears"},
        "noise_reduction": None,
        "turn_detection": None,
    }
    hints = {"model": "gpt-4o-transcribe", "language": "en", "prompt": "Näherung", "delay": None}
    wanted = {"format": {"type": "audio/pcmu"}, "transcription": hints, "turn_detection": None}
    await client.send("session.update", **update(**wanted))
    updated = await client.receive()
    heard = {
        "format": {"type": "audio/pcmu"},
        "transcription": {"model": "ears", "language": "en", "prompt": "Näherung"},
        "noise_reduction": None,
        "turn_detection": None,
    }
    assert updated["type"] == "session.updated"
    assert updated["session"] == {**created["session"], "audio": {"input": heard}}
    await client.append(b"123")
    await client.receive()
    headers = model.calls[0].header_dict
    assert (headers["realtime_encoding"], headers["realtime_rate"]) == ("g711_ulaw", "8000")
    assert json.loads(headers["realtime_transcription"]) == {"language": "en", "prompt": "Näherung"}
    assert model.calls[0].body == b"123"
    await client.send("session.update", **update(transcription={"language": "de"}), event_id="later")
    assert (await client.receive())["session"]["audio"]["input"]["transcription"] == {"model": "ears", "language": "de"}


async def test_settings_in_the_shape_of_the_beta(listen: Open) -> None:
    client = await listen(transcriber(), **BETA)
    assert client.created["type"] == "transcription_session.created"
    assert client.created["session"]["input_audio_format"] == "pcm16"
    session = {"input_audio_format": "g711_alaw", "input_audio_transcription": {"model": "whisper-1"}}
    await client.send("transcription_session.update", session=session)
    updated = await client.receive()
    assert updated["type"] == "transcription_session.updated"
    told = updated["session"]
    assert (told["input_audio_format"], told["input_audio_transcription"]) == ("g711_alaw", {"model": "ears"})
    await client.append(b"1")
    await client.commit()
    kinds = [event["type"] for event in await client.events("conversation.item.input_audio_transcription.completed")]
    assert "conversation.item.created" in kinds


@pytest.mark.parametrize(
    ("event", "code", "param"),
    [
        ({"type": "session.update"}, "missing_required_parameter", "session"),
        ({"type": "session.update", "session": 5}, "invalid_value", "session"),
        ({"type": "session.update", "session": {"type": "realtime"}}, "invalid_value", "session.type"),
        (update(turn_detection={"type": "server_vad"}), "invalid_value", "turn_detection"),
        (update(format={"type": "audio/mp3"}), "invalid_value", "format"),
        (update(format={"type": "audio/pcm", "rate": 1}), "invalid_value", "format.rate"),
        (update(format={"type": "audio/pcm", "rate": 0}), "invalid_value", "format.rate"),
        (update(format={"type": "audio/pcmu", "rate": 16000}), "invalid_value", "format.rate"),
        (update(transcription={"model": 3}), "invalid_value", "transcription.model"),
        (update(transcription={"prompt": "x" * 20_000}), "invalid_value", "transcription"),
        ({"type": "input_audio_buffer.append"}, "missing_required_parameter", "audio"),
        ({"type": "input_audio_buffer.append", "audio": "=="}, "invalid_audio", "audio"),
        ({"type": "input_audio_buffer.append", "audio": "YW Jj"}, "invalid_audio", "audio"),
        ({"type": "input_audio_buffer.append", "audio": "\u00e4"}, "invalid_audio", "audio"),
        ({"type": "input_audio_buffer.append", "audio": 7}, "invalid_event", None),
        ({"type": "input_audio_buffer.commit"}, "input_audio_buffer_commit_empty", None),
        ({"type": "input_audio_buffer.commit", "final": True}, "model_not_validated", "final"),
        ({"type": "response.create"}, "unknown_event", "type"),
        ({"type": "x" * 5000}, "unknown_event", "type"),
        ({"typ": "input_audio_buffer.commit"}, "invalid_event", None),
    ],
)
async def test_a_wrong_event_is_named_and_the_session_goes_on(
    listen: Open, event: dict[str, Any], code: str, param: str | None
) -> None:
    model = transcriber()
    client = await listen(model)
    kind = {} if "typ" in event else {"type": "session.update"}
    await client.socket.send(json.dumps({**kind, **event, "event_id": "mine"}))
    error = await client.error()
    assert (error["code"], error["param"], error["event_id"]) == (code, param, "mine")
    assert error["type"] == "invalid_request_error"
    await client.append(b"ok")
    await client.commit()
    last = await client.events("conversation.item.input_audio_transcription.completed")
    assert last[-1]["transcript"] == "ok"
    assert len(model.calls) == 2


@pytest.mark.parametrize("message", ["", "{", "[]", "5", '"text"', "[" * 100_000, '{"type": "\\ud800"}'])
async def test_messages_that_are_no_events(listen: Open, message: str) -> None:
    client = await listen(transcriber())
    await client.socket.send(message)
    assert (await client.error())["code"] in ("invalid_json", "invalid_event")
    await client.socket.send(b"\xff\xfe")
    assert (await client.error())["code"] == "invalid_json"
    await client.socket.send(b'{"type": "session.update", "session": {"type": "\xff"}}')
    assert (await client.error())["code"] == "invalid_value"


async def test_the_format_changes_between_items_only(listen: Open) -> None:
    client = await listen(transcriber())
    await client.append(b"1")
    await client.send("session.update", **update(format={"type": "audio/pcma"}), event_id="amid")
    assert (await client.error())["event_id"] == "amid"
    await client.send("input_audio_buffer.clear")
    await client.receive()
    await client.send("session.update", **update(format={"type": "audio/pcma"}))
    assert (await client.receive())["session"]["audio"]["input"]["format"] == {"type": "audio/pcma"}


async def test_the_model_is_named_by_the_query_or_before_the_first_audio(listen: Open) -> None:
    one, other = transcriber("one"), transcriber("other")
    client = await listen(one, other, query="?intent=transcription&model=other")
    assert client.created["session"]["audio"]["input"]["transcription"] == {"model": "other"}
    client = await listen(one, other)
    await client.send("session.update", **update(transcription={"model": "whisper-1"}))
    assert (await client.error())["code"] == "model_not_found"
    await client.send("session.update", **update(transcription={"model": "other"}))
    assert (await client.receive())["session"]["audio"]["input"]["transcription"] == {"model": "other"}
    await client.append(b"12")
    assert (await client.receive())["delta"] == "12"
    assert (len(one.calls), len(other.calls)) == (0, 1)
    await client.send("session.update", **update(transcription={"model": "one"}))
    assert (await client.error())["param"] == "transcription.model"


async def test_vllms_variant(listen: Open) -> None:
    model = transcriber()
    client = await listen(model, query="")
    assert client.created["id"].startswith("sess")
    assert isinstance(client.created["created"], int)
    await client.send("session.update", model="mistralai/Voxtral-Mini")
    assert await client.receive() == {"type": "session.updated", "id": client.created["id"], "model": "ears"}
    await client.commit()
    for text in (b"once", b" upon "):
        await client.append(text)
    await client.commit(final=True)
    assert [await client.receive() for _ in range(3)] == [
        {"type": "transcription.delta", "delta": "once"},
        {"type": "transcription.delta", "delta": " upon "},
        {"type": "transcription.done", "text": "once upon ", "usage": None},
    ]
    assert model.calls[0].header_dict["realtime_rate"] == "16000"
    await client.send("nonsense")
    error = await client.receive()
    assert (error["code"], isinstance(error["error"], str)) == ("unknown_event", True)
    model.behave = lambda call: call.part(status=500, error="Prediction failed")
    await client.append(b"12")
    assert await client.receive() == {"type": "error", "error": "Prediction failed", "code": "handler_error"}


async def test_what_a_browser_offers(start: Start) -> None:
    endpoints = await start(FakeServing([transcriber()]), disable_token_authorization=False)
    key = json.loads(endpoints.key_file.read_text())["inference"]["key"]
    offered: Any = ["realtime", f"openai-insecure-api-key.{key}", "openai-beta.realtime-v1"]
    async with await open_socket(endpoints, subprotocols=offered) as socket:
        assert socket.subprotocol == "realtime"
        assert json.loads(await socket.recv())["type"] == "transcription_session.created"
    async with await open_socket(endpoints, additional_headers={"Authorization": f"Bearer {key}"}):
        pass
    for wrong in ({}, {"subprotocols": ["realtime", "openai-insecure-api-key.x"]}):
        with pytest.raises(InvalidStatus) as refused:
            await open_socket(endpoints, **wrong)
        assert refused.value.response.status_code == 401
    with pytest.raises(InvalidStatus) as refused:
        await open_socket(endpoints, origin="https://elsewhere.example", subprotocols=offered)
    assert refused.value.response.status_code == 403


@pytest.mark.parametrize(
    ("model", "query", "status"),
    [
        (FakeModel("deaf", stateful=True), "?intent=transcription", 404),
        (transcriber(), "?intent=translation", 400),
    ],
)
async def test_what_is_refused_before_the_upgrade(start: Start, model: FakeModel, query: str, status: int) -> None:
    endpoints = await start(FakeServing([model]))
    with pytest.raises(InvalidStatus) as refused:
        await open_socket(endpoints, query)
    assert refused.value.response.status_code == status
    assert "message" in json.loads(refused.value.response.body or b"")["error"]
    if status == 400:
        answer = await endpoints.request("GET", "/v1/realtime")
        assert (answer.status, "handshake" in answer.json()["error"]["message"]) == (400, True)


async def test_a_server_that_shuts_down_finishes_what_is_on_its_way(start: Start) -> None:
    model = transcriber()
    model.behave = lambda call: None
    endpoints = await start(FakeServing([model]))
    async with await open_socket(endpoints) as socket:
        await socket.recv()
        await socket.send(json.dumps({"type": "input_audio_buffer.append", "audio": "b2s="}))
        await asyncio.wait_for(model.submitted.wait(), 20)
        closing = asyncio.create_task(endpoints.endpoints.close())
        await asyncio.sleep(0.1)
        model.calls[0].part(b"heard")
        assert json.loads(await asyncio.wait_for(socket.recv(), 20))["delta"] == "heard"
        await asyncio.wait_for(socket.wait_closed(), 20)
        assert (socket.close_code, socket.close_reason) == (1012, "The server is shutting down.")
        await closing


async def test_a_session_without_audio_is_closed(listen: Open) -> None:
    client = await listen(transcriber(sequence_max_idle_ms=300))
    assert (await client.closed())[0] == 4410
