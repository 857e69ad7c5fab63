"""OpenAI's client, unmodified, converses with four served models, in text and in speech."""

import base64
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from tests.apis.realtime.conversing import until
from tests.e2e.running_server import HANDLERS, ROOT, RunningServer, eventually
from tests.speech import VOICE, say, silence
from websockets.exceptions import ConnectionClosed, InvalidStatus

from ts.handler_utils.audio import Resampler, encode_audio

for package in ("onnxruntime", "pocketsphinx", "silero_vad", "espeakng_loader"):
    pytest.importorskip(package)

#: What pocketsphinx recognises in part.
SENTENCES = (
    "hello world",
    "i think that is right",
    "many years ago",
    "she wants to go home",
    "there is a man in the house",
    "it was a very long day",
)
PICTURE = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}
FAILED = "conversation.item.input_audio_transcription.failed"
CONFIG = """
openai: true
batchSize: 1
responseTimeout: 60
sequenceBatching: true
sequenceMaxIdleMSec: 600000
maxNumSequence: 100
maxSequenceJobQueueSize: 16
handler:
  cache:
    store: file
realtimePipeline:
  voiceActivity: voice_activity
  transcriber: transcribe
  synthesizer: speak
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder: Path = tmp_path_factory.mktemp("models") / "chat"
    folder.mkdir()
    (folder / "handler.py").write_text((ROOT / "tests/apis/realtime/scripted_chat.py").read_text())
    (folder / "model-config.yaml").write_text(CONFIG)
    models = {name: HANDLERS / name for name in ("voice_activity", "transcribe")}
    with RunningServer({**models, "chat": folder, "speak": HANDLERS / "gallery" / "speak.py"}) as running:
        running.wait_ready()
        yield running


@pytest.fixture
def client(server: RunningServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.inference}/v1", api_key="none")


def spoken(text: str) -> bytes:
    """Return speech with a pause before and behind it, 24,000 samples per second."""
    samples = np.frombuffer(silence(0.5) + say(text, *VOICE) + silence(1.5), "<i2").astype(np.float32) / 32768
    resampler = Resampler(16_000, 24_000)
    return encode_audio(resampler.hear(samples), "pcm16")


def send(connection: Any, sound: bytes) -> None:
    """Send a sound in pieces of 0.2 s."""
    for begin in range(0, len(sound), 9600):
        connection.input_audio_buffer.append(audio=base64.b64encode(sound[begin : begin + 9600]).decode())


def test_a_spoken_question_gets_a_spoken_answer(client: openai.OpenAI) -> None:
    with client.realtime.connect(model="gpt-realtime") as connection:
        assert connection.recv().type == "session.created"
        heard: Any = {"transcription": {"model": "whisper-1"}}
        connection.session.update(session={"type": "realtime", "audio": {"input": heard}})
        send(connection, spoken("hello world"))
        events = until(connection, "response.done")
        named = {event.type: event for event in events}
        assert named["conversation.item.input_audio_transcription.completed"].transcript.strip() == "hello world"
        assert named["response.output_audio_transcript.done"].transcript == "You said hello world."
        audio = b"".join(base64.b64decode(each.delta) for each in events if each.type == "response.output_audio.delta")
        samples = np.frombuffer(audio, "<i2")
        assert 0.5 < len(samples) / 24_000 < 5
        assert np.abs(samples).max() > 1000
        assert named["response.done"].response.usage.input_tokens == 1
        # What was spoken is recognised: the answer, sent back as a question.
        send(connection, audio + bytes(2 * 36_000))
        completed = until(connection, "conversation.item.input_audio_transcription.completed")[-1]
        assert "you said" in completed.transcript


def test_the_pipeline_hears_the_words_as_the_recogniser_alone_does(client: openai.OpenAI) -> None:
    """The sound is the same, and the word error rate no higher: detecting turns cuts no words."""

    def heard(connection: Any, *, commits: bool) -> list[str]:
        texts = []
        for sentence in SENTENCES:
            send(connection, spoken(sentence))
            if commits:
                connection.input_audio_buffer.commit()
            texts.append(until(connection, "conversation.item.input_audio_transcription.completed")[-1].transcript)
        return texts

    alone: Any = {"transcription": {"model": "transcribe"}, "turn_detection": None}
    with client.realtime.connect(extra_query={"intent": "transcription"}) as connection:
        connection.session.update(session={"type": "transcription", "audio": {"input": alone}})
        by_recogniser = heard(connection, commits=True)
    piped: Any = {"transcription": {}, "turn_detection": {"type": "server_vad", "create_response": False}}
    with client.realtime.connect(model="chat") as connection:
        connection.session.update(session={"type": "realtime", "audio": {"input": piped}})
        by_pipeline = heard(connection, commits=False)
    words = sum(len(each.split()) for each in SENTENCES)
    rates = [sum(map(wrong_words, SENTENCES, texts)) / words for texts in (by_recogniser, by_pipeline)]
    print("word error rates:", *rates, by_recogniser, by_pipeline)
    assert rates[1] <= rates[0] < 0.5


def wrong_words(said: str, heard: str) -> int:
    """Return how many words of what was heard are to be replaced, inserted or removed to get what was said."""
    wanted = said.split()
    counts = list(range(len(wanted) + 1))
    for row, word in enumerate(heard.split(), 1):
        before, counts[0] = counts[0], row
        for column, each in enumerate(wanted, 1):
            replaced = before + (word != each)
            before = counts[column]
            counts[column] = min(replaced, before + 1, counts[column - 1] + 1)
    return counts[-1]


def test_texts_and_functions(client: openai.OpenAI) -> None:
    tool: Any = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}}
    with client.realtime.connect(model="chat") as connection:
        connection.session.update(session={"type": "realtime", "output_modalities": ["text"], "tools": [tool]})
        content: Any = [{"type": "input_text", "text": "How is the weather?"}]
        connection.conversation.item.create(item={"type": "message", "role": "user", "content": content})
        connection.response.create()
        call = until(connection, "response.done")[-1].response.output[0]
        assert (call.type, call.name, call.arguments) == ("function_call", "weather", '{"city": "Rome"}')
        output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "20 degrees"}
        connection.conversation.item.create(item=output)
        connection.response.create()
        response = until(connection, "response.done")[-1].response
        assert response.output[0].content[0].text == "The tool said 20 degrees."


def test_the_user_interrupts(client: openai.OpenAI) -> None:
    with client.realtime.connect(model="chat") as connection:
        content: Any = [{"type": "input_text", "text": "count"}]
        connection.conversation.item.create(item={"type": "message", "role": "user", "content": content})
        connection.response.create()
        until(connection, "response.output_audio.delta")
        time.sleep(1)
        send(connection, spoken("hello world"))
        events = until(connection, "response.done")
        assert events[-1].response.status_details.reason == "turn_detected"
        assert "conversation.item.truncated" in [event.type for event in events]
        transcript = events[-1].response.output[0].content[0].transcript
        assert transcript.startswith("This is") and len(transcript) < 200
        answer = until(connection, "response.done")[-1].response
        assert answer.output[0].content[0].transcript == "You said hello world."


def test_killed_workers_end_no_conversation(server: RunningServer, client: openai.OpenAI) -> None:
    with client.realtime.connect(model="chat") as connection:
        for _ in range(2):
            send(connection, spoken("hello world"))
            response = until(connection, "response.done")[-1].response
            assert response.output[0].content[0].transcript == "You said hello world."
            workers = server.workers()
            for worker in workers:
                os.kill(worker.pid, signal.SIGKILL)
            gone = {worker.pid for worker in workers}
            eventually(
                lambda gone=gone: len({each.pid for each in server.workers()} - gone) == len(gone), "new workers"
            )
            server.wait_ready()


def test_workers_killed_in_mid_sentence(server: RunningServer, client: openai.OpenAI) -> None:
    with client.realtime.connect(model="chat") as connection:
        content: Any = [{"type": "input_text", "text": "count"}]
        connection.conversation.item.create(item={"type": "message", "role": "user", "content": content})
        connection.response.create()
        until(connection, "response.output_audio.delta")
        kill_workers(server)
        response = until(connection, "response.done")[-1].response
        assert response.status == "failed"
        assert response.status_details.error.code in ("worker_died", "outcome_unknown")  # of the voice, or the chat
        server.wait_ready()
        sound = spoken("hello world")
        send(connection, sound[:72_000])  # up to the middle of a word
        until(connection, "input_audio_buffer.speech_started")
        kill_workers(server)
        send(connection, sound[72_000:])
        while connection.recv().type not in ("response.done", FAILED):  # a gap is told
            pass
        server.wait_ready()
        send(connection, spoken("hello world"))
        while (event := connection.recv()).type != "response.done":
            pass
        assert texts(event.response.output[0]) == "You said hello world."


def kill_workers(server: RunningServer) -> None:
    for worker in server.workers():
        os.kill(worker.pid, signal.SIGKILL)


def say_in_text(connection: Any, text: str) -> str:
    """Say something, and return the answer."""
    content: Any = [{"type": "input_text", "text": text}]
    connection.conversation.item.create(item={"type": "message", "role": "user", "content": content})
    connection.response.create()
    return texts(until(connection, "response.done")[-1].response.output[0])


def test_a_conversation_resumes_after_the_connection_its_workers_and_the_server(
    server: RunningServer, client: openai.OpenAI
) -> None:
    with client.realtime.connect(model="chat") as connection:
        created: Any = connection.recv()
        conversation_id = created.session.conversation_id
        connection.session.update(session={"type": "realtime", "output_modalities": ["text"]})
        assert say_in_text(connection, "one") == "You said one."
        connection.session.update(session={"type": "realtime", "output_modalities": ["audio"]})
        send(connection, spoken("hello world"))
        answer = until(connection, "response.done")[-1].response.output[0]
        connection.conversation.item.truncate(item_id=answer.id, content_index=0, audio_end_ms=0)
        until(connection, "conversation.item.truncated")
        content: Any = [{"type": "input_text", "text": "zero"}, PICTURE]
        first: Any = {"type": "message", "role": "user", "content": content}
        connection.conversation.item.create(item=first, previous_item_id="root")
        until(connection, "conversation.item.done")
    listed = client.conversations.items.list(conversation_id, order="asc").data
    assert [texts(item) for item in listed] == ["zero", "one", "You said one.", "hello world", ""]
    os.kill(server.server.pid, signal.SIGKILL)
    server.kill_everything()
    server.output.write_text("")
    server.start()
    server.wait_ready()
    query: Any = {"conversation_id": conversation_id}
    with client.realtime.connect(model="chat", extra_query=query) as connection:
        events = [connection.recv() for _ in range(1 + 2 * len(listed))]
        items = [event.item for event in events if event.type == "conversation.item.done"]
        assert [texts(item) for item in items] == [texts(item) for item in listed]
        assert items[0].content[1].image_url == PICTURE["image_url"]
        assert say_in_text(connection, "two") == "You said two."
    with client.realtime.connect(model="chat", extra_query=query | {"after": items[-1].id}) as other:
        events = [other.recv() for _ in range(5)]
        items = [event.item for event in events if event.type == "conversation.item.done"]
        assert [texts(item) for item in items] == ["two", "You said two."]
    for unknown in ("conv_1", "conv_" + "0" * 32, conversation_id[:-1] + "x", conversation_id[:-4] + "0000"):
        with (
            pytest.raises(InvalidStatus),
            client.realtime.connect(model="chat", extra_query={"conversation_id": unknown}),
        ):
            pass


def texts(item: Any) -> str:
    return "".join(
        getattr(part, "text", None) or getattr(part, "transcript", None) or "" for part in item.content
    ).strip()


def test_another_connection_takes_a_conversation_over(client: openai.OpenAI) -> None:
    with client.realtime.connect(model="chat") as connection:
        created: Any = connection.recv()
        say_in_text(connection, "one")
        query: Any = {"conversation_id": created.session.conversation_id}
        with client.realtime.connect(model="chat", extra_query=query) as other:
            assert say_in_text(other, "two") == "You said two."
            with pytest.raises(ConnectionClosed) as closed:
                connection.recv()
            assert closed.value.rcvd is not None and closed.value.rcvd.code == 4409
