"""Spoken conversations: whose turn it is, interruption, truncation, and audio in both directions."""

import asyncio
import base64
import json
from collections.abc import Sequence
from typing import Any

from tests.apis.realtime.conftest import TRANSCRIPTION, Client, Open, kind_of
from tests.apis.realtime.conversing import (
    WINDOW,
    answer,
    answered,
    ask,
    chat_model,
    kinds,
    listener,
    sound,
    speaker,
    writer,
)
from tests.endpoints.fake_serving import FakeModel, Submitted

from torchserve_py.base.causes import Cause

QUERY = "?model=chat"
SILENCE = b"\0"


def repeat(asked: dict[str, Any]) -> Sequence[Any]:
    return [f"You said {asked['messages'][-1]['content']}. ", "All right?"]


def models(**pipeline: Any) -> tuple[FakeModel, FakeModel, FakeModel, FakeModel]:
    roles = {"voiceActivity": "listener", "transcriber": "ears", "synthesizer": "voice"}
    return chat_model(repeat, **{**roles, **pipeline}), listener(), writer(), speaker()


async def settings(client: Client, **audio: Any) -> dict[str, Any]:
    await client.send("session.update", session={"type": "realtime", "audio": audio})
    session: dict[str, Any] = (await client.events("session.updated"))[-1]["session"]
    return session


def audio_of(events: Sequence[dict[str, Any]]) -> bytes:
    return b"".join(base64.b64decode(each["delta"]) for each in events if each["type"] == "response.output_audio.delta")


async def test_a_spoken_question_gets_a_spoken_answer(listen: Open) -> None:
    chat, ear, pen, voice = models()
    client = await listen(chat, ear, pen, voice, query=QUERY)
    session = client.created["session"]
    assert session["audio"]["input"]["turn_detection"]["type"] == "server_vad"
    assert session["output_modalities"] == ["audio"]
    await settings(client, input={"transcription": {"model": "whisper-1", "language": "en"}})
    for piece in (sound(SILENCE, 1), sound(b"a", 0.5), sound(SILENCE, 1)):
        await client.append(piece)
    events = await client.events("response.done")
    named = {event["type"]: event for event in events}
    order = [kind for kind in kinds(events) if kind.startswith("input_audio_buffer")]
    assert order == [f"input_audio_buffer.{kind}" for kind in ("speech_started", "speech_stopped", "committed")]
    assert named["input_audio_buffer.speech_started"]["audio_start_ms"] == 700
    assert named["input_audio_buffer.speech_stopped"]["audio_end_ms"] == 2000
    assert named[f"{TRANSCRIPTION}.completed"]["transcript"] == "a"
    assert named[f"{TRANSCRIPTION}.completed"]["usage"]["seconds"] == 1.3
    items = {event["item_id"] for event in events if event["type"].startswith("input_audio_buffer")}
    assert items == {named[f"{TRANSCRIPTION}.completed"]["item_id"]}
    text = "You said a. All right?"
    assert named["response.output_audio_transcript.done"]["transcript"] == text
    assert named["response.done"]["response"]["output"][0]["content"] == [{"type": "output_audio", "transcript": text}]
    spoken = [json.loads(call.body)["text"] for call in voice.calls]
    assert spoken == ["You said a.", "All right?"]
    assert len(audio_of(events)) == 4800 * sum(map(len, spoken))
    assert json.loads(pen.calls[0].header_dict["realtime_transcription"]) == {"language": "en"}


async def test_silence_and_noise_without_words_get_no_answer(listen: Open) -> None:
    chat, ear, pen, voice = models()
    pen.behave = lambda call: call.part(b"")
    client = await listen(chat, ear, pen, voice, query=QUERY)
    await client.append(sound(SILENCE, 3))
    await client.append(sound(b"a", 0.5) + sound(SILENCE, 1))
    await client.events("conversation.item.done")
    pen.behave = writer().behave
    await client.append(sound(b"b", 0.5) + sound(SILENCE, 1))
    await answered(client)
    assert [message["content"] for message in json.loads(chat.calls[0].body)["messages"]] == ["b"]
    assert len(chat.calls) == 1


async def test_the_settings_of_turn_detection(listen: Open) -> None:
    client = await listen(*models(), query=QUERY)
    turns = {
        "type": "server_vad",
        "threshold": 0.9,
        "prefix_padding_ms": 100,
        "silence_duration_ms": 200,
        "create_response": False,
        "interrupt_response": False,
    }
    session = await settings(client, input={"turn_detection": turns})
    assert session["audio"]["input"]["turn_detection"] == {**turns, "idle_timeout_ms": None}
    await client.append(sound(SILENCE, 1) + sound(b"a", 0.5) + sound(SILENCE, 1))
    events = await client.events("conversation.item.done")
    named = {event["type"]: event for event in events}
    assert named["input_audio_buffer.speech_started"]["audio_start_ms"] == 900
    assert named["input_audio_buffer.speech_stopped"]["audio_end_ms"] == 1700
    await client.send("response.create")
    assert (await answered(client))["status"] == "completed"
    session = await settings(client, input={"turn_detection": {"type": "semantic_vad", "eagerness": "low"}})
    assert session["audio"]["input"]["turn_detection"]["silence_duration_ms"] == 2000
    session = await settings(client, input={"turn_detection": None})
    assert session["audio"]["input"]["turn_detection"] is None
    await client.append(sound(b"c", 0.2))
    await client.send("input_audio_buffer.commit")
    await client.send("response.create")
    events = await client.events("response.done")
    assert "input_audio_buffer.speech_started" not in kinds(events)
    assert events[-1]["response"]["output"][0]["content"][0]["transcript"] == "You said c. All right?"


async def test_audio_before_a_window_of_two_pieces_is_heard(listen: Open) -> None:
    chat, ear, pen, voice = models()
    rest = b""

    def detect(call: Submitted) -> None:
        """Answer with the windows that are complete."""
        nonlocal rest
        heard, size = rest + call.body, 4800
        whole = len(heard) - len(heard) % size
        rest = heard[whole:]
        found = [float(any(heard[begin : begin + size])) for begin in range(0, whole, size)]
        call.part(json.dumps({"probabilities": found, "window": WINDOW}).encode())

    ear.behave = detect
    client = await listen(chat, ear, pen, voice, query=QUERY)
    turns = {"type": "server_vad", "prefix_padding_ms": 100, "silence_duration_ms": 500}
    await settings(client, input={"transcription": {}, "turn_detection": turns})
    for piece in (sound(SILENCE, 0.25), sound(b"a", 0.5), sound(SILENCE, 1)):
        await client.append(piece)
    named = {event["type"]: event for event in await client.events("response.done")}
    assert named["input_audio_buffer.speech_started"]["audio_start_ms"] == 100
    assert named["input_audio_buffer.speech_stopped"]["audio_end_ms"] == 1300
    assert named[f"{TRANSCRIPTION}.completed"]["usage"]["seconds"] == 1.2


async def test_the_user_interrupts_a_response(listen: Open) -> None:
    chat, ear, pen, voice = models()
    chat.behave = lambda call: answer(call, ["One two three four five six seven eight nine ten. "], finish=None)
    client = await listen(chat, ear, pen, voice, query=QUERY)
    await ask(client, "count")
    await client.events("response.output_audio.delta")
    await asyncio.sleep(0.5)  # it is played for half a second
    chat.behave = chat_model(repeat).behave
    await client.append(sound(b"a", 0.5) + sound(SILENCE, 1))
    events = await client.events("response.done")
    assert events[-1]["response"]["status_details"] == {"type": "cancelled", "reason": "turn_detected"}
    truncated = next(event for event in events if event["type"] == "conversation.item.truncated")
    assert 400 < truncated["audio_end_ms"] < 2500
    heard = events[-1]["response"]["output"][0]["content"][0]["transcript"]
    assert "One two three four five six seven eight nine ten.".startswith(heard)
    assert len(heard) < 40
    await answered(client)
    messages = json.loads(chat.calls[-1].body)["messages"]
    assert [message["content"] for message in messages if message["content"] != heard] == ["count", "a"]
    assert chat.cancelled.is_set()


async def test_what_is_played_still_is_truncated_after_the_response(listen: Open) -> None:
    chat, ear, pen, voice = models()
    client = await listen(chat, ear, pen, voice, query=QUERY)
    await ask(client, "hello")
    response = await answered(client)
    item = response["output"][0]
    await client.append(sound(b"a", 0.5))
    events = await client.events("conversation.item.truncated")
    assert events[-1]["item_id"] == item["id"]
    await client.send("conversation.item.truncate", item_id=item["id"], content_index=0, audio_end_ms=10)
    assert (await client.receive())["audio_end_ms"] == 10
    await client.send("conversation.item.truncate", item_id=item["id"], content_index=0, audio_end_ms=2000)
    assert (await client.receive())["type"] == "conversation.item.truncated"  # the client counts what it has played
    await client.send("conversation.item.truncate", item_id=item["id"], content_index=0, audio_end_ms=60_000)
    assert (await client.error())["param"] == "audio_end_ms"
    await client.send("conversation.item.retrieve", item_id=item["id"])
    assert (await client.receive())["item"]["content"][0]["transcript"] == ""


async def test_a_response_that_the_user_does_not_interrupt(listen: Open) -> None:
    chat, ear, pen, voice = models()
    chat.behave = lambda call: answer(call, ["One two. "], finish=None)
    client = await listen(chat, ear, pen, voice, query=QUERY)
    await settings(client, input={"turn_detection": {"type": "server_vad", "interrupt_response": False}})
    await ask(client, "count")
    await client.events("response.output_audio.delta")
    await client.append(sound(b"a", 0.5) + sound(SILENCE, 1))
    await client.events("conversation.item.done")
    answer(chat.calls[0], ["Three."])
    response = await answered(client)
    assert (response["status"], response["output"][0]["content"][0]["transcript"]) == ("completed", "One two. Three.")
    assert len(chat.calls) == 1


async def test_g711_in_both_directions(listen: Open) -> None:
    chat, ear, pen, voice = models()
    client = await listen(chat, ear, pen, voice, query=QUERY)
    wire = {"type": "audio/pcmu"}
    await settings(client, input={"format": wire}, output={"format": wire, "voice": "en-us"})
    await client.append(b"a" * 4000 + b"\0" * 8000)
    events = await client.events("response.done")
    assert len(audio_of(events)) == 800 * len("You said a.All right?")
    assert json.loads(voice.calls[0].body)["voice"] == "en-us"
    assert voice.calls[0].header_dict["accept"] == "audio/pcmu;rate=8000"


async def test_names_of_voices(listen: Open) -> None:
    chat, ear, pen, voice = models(voices={"marin": "en-us"})
    client = await listen(chat, ear, pen, voice, query=QUERY)
    audio = {"output": {"voice": "cedar"}}
    await client.send("session.update", session={"type": "realtime", "audio": audio})
    error = await client.error()
    assert (error["param"], "marin" in error["message"]) == ("session.audio.output.voice", True)
    await settings(client, output={"voice": "marin"})
    await ask(client, "hello")
    await answered(client)
    assert json.loads(voice.calls[0].body)["voice"] == "en-us"
    chat, ear, pen, voice = models(voices={"*": "de"})
    client = await listen(chat, ear, pen, voice, query=QUERY)
    await settings(client, output={"voice": {"id": "cedar"}})
    await ask(client, "hello")
    await answered(client)
    assert json.loads(voice.calls[0].body)["voice"] == "de"


async def test_clear_drops_what_was_said(listen: Open) -> None:
    chat, ear, pen, voice = models()
    client = await listen(chat, ear, pen, voice, query=QUERY)
    await client.append(sound(b"a", 0.5))
    await client.send("input_audio_buffer.clear")
    await client.events("input_audio_buffer.cleared")
    await client.append(sound(SILENCE, 1) + sound(b"b", 0.5) + sound(SILENCE, 1))
    response = await answered(client)
    assert response["output"][0]["content"][0]["transcript"] == "You said b. All right?"


async def test_the_loss_of_a_worker_is_told_and_the_conversation_goes_on(listen: Open) -> None:
    chat, ear, pen, voice = models()
    client = await listen(chat, ear, pen, voice, query=QUERY)
    detect, ear.behave = ear.behave, lambda call: call.fail(Cause.worker_died)
    await client.append(sound(b"a", 0.5), event_id="lost")
    error = await client.error()
    assert (error["code"], error["event_id"]) == ("worker_died", "lost")
    ear.behave = detect
    await client.append(sound(b"b", 0.5) + sound(SILENCE, 1))
    assert (await answered(client))["output"][0]["content"][0][
        "transcript"
    ] == "You said ab. All right?"  # a is padding
    assert ear.calls[0].sequence_id != ear.calls[1].sequence_id

    write, pen.behave = pen.behave, lambda call: call.fail(Cause.worker_died)
    await client.append(sound(b"c", 0.5) + sound(SILENCE, 1))
    events = await client.events(f"{TRANSCRIPTION}.failed")
    assert events[-1]["error"]["code"] == "worker_died"
    assert "error" not in kinds(events), "there are clients that end at one"
    pen.behave = write

    speak, voice.behave = voice.behave, lambda call: call.fail(Cause.worker_died)
    await client.append(sound(b"d", 0.5) + sound(SILENCE, 1))
    response = await answered(client)
    assert response["status_details"]["error"]["code"] == "worker_died"
    voice.behave = speak
    await client.append(sound(b"e", 0.5) + sound(SILENCE, 1))
    assert (await answered(client))["status"] == "completed"
    heard = [message["content"] for message in json.loads(chat.calls[-1].body)["messages"] if message["role"] == "user"]
    assert heard == ["ab", "d", "e"]


async def test_a_large_piece_becomes_several_steps(listen: Open) -> None:
    chat, ear, pen, voice = models()
    client = await listen(chat, ear, pen, voice, query=QUERY)
    await client.append(sound(b"a", 30) + sound(SILENCE, 1) + b"\1")
    await answered(client)
    assert len(ear.calls) == 31
    assert max(len(call.body) for call in ear.calls) <= 48_000
    assert max(len(call.body) for call in pen.calls) <= 240_000
    assert [kind_of(call) for call in pen.calls][-1] == "commit"


async def test_a_sequence_that_would_expire_is_replaced(listen: Open) -> None:
    chat, ear, pen, voice = models()
    for model in (ear, pen):
        model.config = model.config.__class__(**{**vars_of(model.config), "sequence_max_idle_ms": 200})
    client = await listen(chat, ear, pen, voice, query=QUERY)
    for letter in (b"a", b"b"):
        await client.append(sound(letter, 0.5) + sound(SILENCE, 1))
        assert (await answered(client))["status"] == "completed"
        await asyncio.sleep(0.3)
    assert len({call.sequence_id for call in ear.calls}) == 2
    assert len({call.sequence_id for call in pen.calls}) == 2


async def test_a_pause_within_an_utterance_loses_nothing(listen: Open) -> None:
    chat, pen, voice = chat_model(repeat, transcriber="ears", synthesizer="voice"), writer(), speaker()
    pen.config = pen.config.__class__(**{**vars_of(pen.config), "sequence_max_idle_ms": 400})
    client = await listen(chat, pen, voice, query=QUERY)
    await client.append(sound(b"a", 0.5))
    await asyncio.sleep(0.3)
    await client.send("input_audio_buffer.commit")
    await client.send("response.create")
    assert (await answered(client))["output"][0]["content"][0]["transcript"] == "You said a. All right?"
    assert len({call.sequence_id for call in pen.calls}) == 1


def vars_of(config: Any) -> dict[str, Any]:
    return {name: getattr(config, name) for name in config.__dataclass_fields__}
