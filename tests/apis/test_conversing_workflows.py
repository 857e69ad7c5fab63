"""OpenAI's client, unmodified, converses with a workflow in a real server; its models are scripted."""

import base64
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from tests.apis.realtime.conversing import sound, until
from tests.apis.test_workflows import add_workflow
from tests.e2e.running_server import DEADLINE, ROOT, RunningServer, eventually, model_folder

#: Bytes other than 0 are speech, in windows of a tenth of a second.
HEAR = """
import json


def handle(data, context):
    answers = []
    for i, row in enumerate(data or []):
        body, size = bytes(row["body"]), int(context.get_request_header(i, "realtime_rate")) // 10 * 2
        pieces = [body[begin : begin + size] for begin in range(0, len(body), size)]
        answers.append(json.dumps({"probabilities": [float(any(piece)) for piece in pieces], "window": 0.1}))
    return answers
"""

#: An utterance is the letters that it consists of.
WRITE = """
def handle(data, context):
    return [bytes(dict.fromkeys(byte for byte in bytes(row["body"]) if byte)) for row in data or []]
"""

SPEAK = """
import numpy as np

from ts import serve
from ts.utils.sound import Audio


@serve
def speak(text: str) -> Audio:
    return Audio(np.full(2400 * len(text), 0.5, np.float32), 24000)
"""

KEEPS = "sequenceBatching: true\nsequenceMaxIdleMSec: 600000\nmaxNumSequence: 100\nmaxSequenceJobQueueSize: 16\n"
CHAT = f"openai: true\nresponseTimeout: 60\n{KEEPS}handler:\n  cache:\n    store: file\n"
SPEC = """
models:
    hear: {url: hear}
    write: {url: write}
    chat: {url: chat}
dag:
    hear: [write]
    write: [chat]
    chat: [speak]
"""


@pytest.fixture
def running() -> Iterator[RunningServer]:
    server = RunningServer(properties={"load_workflows": "talk.war", "drain_timeout": 0})
    model_folder(server.model_store, "hear", HEAR, KEEPS)
    model_folder(server.model_store, "write", WRITE, f"realtime: true\n{KEEPS}")
    scripted = (ROOT / "tests/apis/realtime/scripted_chat.py").read_text()
    model_folder(server.model_store, "chat", scripted, CHAT)
    add_workflow(server, "talk", SPEC, SPEAK)
    with server:
        server.wait_ready()
        yield server


def test_one_file_is_a_conversation_that_survives_the_server(running: RunningServer) -> None:
    client = openai.OpenAI(base_url=f"{running.inference}/v1", api_key="none")
    with client.realtime.connect(model="talk") as connection:
        session: Any = connection.recv().session  # type: ignore[union-attr]
        assert session.model == "talk"
        connection.session.update(session={"type": "realtime", "audio": {"input": {"transcription": {}}}})
        spoken = sound(b"\0", 0.3) + sound(b"a", 1) + sound(b"\0", 1)
        connection.input_audio_buffer.append(audio=base64.b64encode(spoken).decode())
        events = {event.type: event for event in until(connection, "response.done")}
        heard = events["conversation.item.input_audio_transcription.completed"].transcript
        assert set(heard) == {"a"}  # once for each piece
        assert events["response.output_audio_transcript.done"].transcript == f"You said {heard}."
        assert len(base64.b64decode(events["response.output_audio.delta"].delta)) > 0
    running.server.kill()
    assert running.process is not None
    running.process.wait(DEADLINE)
    running.launch()
    eventually(lambda: running.log().count("Model server started.") == 2, "it was restarted")
    running.wait_ready()
    query: Any = {"conversation_id": session.conversation_id}
    with client.realtime.connect(model="talk", extra_query=query) as connection:
        items = [until(connection, "conversation.item.done")[-1].item for _ in range(2)]
        assert [item.content[0].text for item in items] == [heard, f"You said {heard}."]
        connection.session.update(session={"type": "realtime", "output_modalities": ["text"]})
        content: Any = [{"type": "input_text", "text": "hello"}]
        connection.conversation.item.create(item={"type": "message", "role": "user", "content": content})
        connection.response.create()
        response = until(connection, "response.done")[-1].response
        assert (response.output[0].content[0].text, response.usage.input_tokens) == ("You said hello.", 3)
