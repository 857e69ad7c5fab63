"""Models of a conversation as tests have them: each answers as its test says, with no worker behind it."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tests.apis.realtime.conftest import Client, kind_of, transcriber
from tests.endpoints.fake_serving import FakeModel, Submitted

from torchserve_py.apis.openai.openai_keys import OpenAIKeys
from torchserve_py.apis.realtime.realtime_keys import RealtimeKeys, RealtimePipeline
from torchserve_py.base.settings.schemas.plugin_keys import PluginKeys

Script = Callable[[dict[str, Any]], Sequence[Any]]
#: Seconds of a window of `listener`.
WINDOW = 0.1


def chat_model(script: Script, name: str = "chat", **pipeline: Any) -> FakeModel:
    """A chat model; the script gets the request, and returns the pieces of the answer: texts or deltas."""
    model = FakeModel(name)
    keys = (OpenAIKeys(openai=True), RealtimeKeys(realtimePipeline=RealtimePipeline(**pipeline)))
    model.config = replace(model.config, plugin_keys=PluginKeys(keys))
    model.behave = lambda call: answer(call, script(json.loads(call.body)))
    return model


def answer(call: Submitted, pieces: Sequence[Any], finish: str | None = "stop") -> None:
    """Answer a chat completion with these pieces; without ``finish`` more is to come."""
    for piece in pieces:
        delta = {"content": piece} if isinstance(piece, str) else piece
        call.part(event({"choices": [{"index": 0, "delta": delta}]}), more=True)
    if finish is not None:
        usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
        last = {"choices": [{"index": 0, "delta": {}, "finish_reason": finish}], "usage": usage}
        call.part(event(last) + b"data: [DONE]\n\n")


def event(chunk: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def listener(name: str = "listener", window: int = 8) -> FakeModel:
    """A model that detects speech: bytes other than 0 are speech, and a window is a tenth of a second."""
    model = transcriber(name, window)
    model.behave = _detect
    return model


def _detect(call: Submitted) -> None:
    headers = call.header_dict
    size = int(int(headers["realtime_rate"]) * WINDOW) * (2 if headers["realtime_encoding"] == "pcm16" else 1)
    pieces = [call.body[begin : begin + size] for begin in range(0, len(call.body), size)]
    call.part(json.dumps({"probabilities": [float(any(piece)) for piece in pieces], "window": WINDOW}).encode())


def writer(name: str = "ears") -> FakeModel:
    """A transcriber: an utterance is the letter that most of its bytes are, as often as they have tenths of seconds."""
    model = transcriber(name)
    model.behave = lambda call: call.part(_letters(call) if kind_of(call) == "append" else b"")
    return model


def _letters(call: Submitted) -> bytes:
    return bytes(dict.fromkeys(byte for byte in call.body if byte))


def speaker(name: str = "voice") -> FakeModel:
    """A synthesizer: a tenth of a second for each letter of a text."""
    model = FakeModel(name)
    model.behave = _speak
    return model


def _speak(call: Submitted) -> None:
    accept = call.header_dict["accept"]
    rate, size = int(accept.partition("rate=")[2]), 2 if accept.startswith("audio/pcm;") else 1
    text = json.loads(call.body)["text"]
    call.part(bytes(int(rate * WINDOW) * size * len(text)), headers=[("content-type", accept)])


def sound(letter: bytes, seconds: float, rate: int = 24_000) -> bytes:
    """Speech (a letter) or silence (0), as 16-bit samples."""
    return (letter + b"\0" if letter != b"\0" else b"\0\0") * int(rate * seconds)


def until(connection: Any, last: str) -> list[Any]:
    """Return the events that OpenAI's client gets, up to one of type ``last``."""
    events = [connection.recv()]
    while events[-1].type != last:
        assert events[-1].type != "error", events[-1]
        events.append(connection.recv())
    return events


def kinds(events: Sequence[dict[str, Any]]) -> list[str]:
    return [event["type"] for event in events]


async def ask(client: Client, text: str) -> None:
    """Say something in text, and ask for a response."""
    content = [{"type": "input_text", "text": text}]
    await client.send("conversation.item.create", item={"type": "message", "role": "user", "content": content})
    await client.send("response.create")


async def answered(client: Client) -> Any:
    """Return the response that is done next."""
    return (await client.events("response.done"))[-1]["response"]
