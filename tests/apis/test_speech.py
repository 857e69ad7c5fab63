"""Speech over live sessions: handlers/voice_activity and handlers/transcribe, and a worker that dies in mid-speech."""

import base64
import os
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import openai
import pytest
from tests.e2e.running_server import HANDLERS, RunningServer
from tests.speech import VOICE, say, silence

from torchserve_py.client import Client, Session
from ts.handler_utils.audio import Resampler, decode_audio

for package in ("onnxruntime", "pocketsphinx", "silero_vad"):
    pytest.importorskip(package)

SENTENCES = ["hello world", "i think that is right", "many years ago"]
PIECE = 6400  # bytes, 0.2 s


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with RunningServer({name: HANDLERS / name for name in ("voice_activity", "transcribe")}) as running:
        running.wait_ready()
        yield running


def pieces(sentences: list[str]) -> list[bytes]:
    whole = silence(0.4) + b"".join(say(each, *VOICE) + silence(0.7) for each in sentences)
    return [whole[start : start + PIECE] for start in range(0, len(whole), PIECE)]


def hear(session: Session, sound: list[bytes]) -> list[dict[str, Any]]:
    """Send pieces as fast as the session takes them; return the answers."""
    waiting, answers = list(sound), []
    on_their_way = 0
    while waiting or on_their_way:
        if waiting and on_their_way < session.window:
            piece = waiting.pop(0)
            session.send(piece, end=not waiting)
            on_their_way += 1
        else:
            answers.append(session.receive().json())
            on_their_way -= 1
    return answers


def test_words_and_voices_are_recognised_as_they_come(server: RunningServer) -> None:
    with Client(server.inference) as client:
        with client.session("transcribe") as session:
            answers = hear(session, pieces(SENTENCES))
        assert [text for answer in answers for text in answer["final"]] == SENTENCES
        with client.session("voice_activity") as session:
            events = [event for answer in hear(session, pieces(SENTENCES)) for event in answer["events"]]
        assert [next(iter(event)) for event in events] == ["start", "end"] * len(SENTENCES)
        moments = [next(iter(event.values())) for event in events]
        assert moments == sorted(moments)


def test_a_transcript_is_the_same_if_its_worker_dies_in_mid_speech(server: RunningServer) -> None:
    sound = pieces(SENTENCES[:2])
    with Client(server.inference) as client:
        with client.session("transcribe") as session:
            undisturbed = hear(session, sound)
        answers: list[dict[str, Any]] = []
        disturbed: set[int] = set()
        with client.session("transcribe") as session:
            for number, piece in enumerate(sound, 1):
                answers.append(session.step(piece, end=number == len(sound)).json())
                utterance = sum(len(answer["final"]) for answer in answers)
                if answers[-1]["partial"] and utterance not in disturbed:
                    disturbed.add(utterance)
                    os.kill(server.describe("transcribe")[0]["workers"][0]["pid"], signal.SIGKILL)
        assert disturbed == {0, 1}
        assert answers == undisturbed


def test_openais_client_gets_the_words_as_they_come(server: RunningServer) -> None:
    spoken = decode_audio(b"".join(pieces(SENTENCES)), "pcm16")
    sound = (np.clip(Resampler(16_000, 24_000).hear(spoken), -1, 1) * 32767).astype("<i2").tobytes()
    client = openai.OpenAI(base_url=f"{server.inference}/v1", api_key="none")
    with client.realtime.connect(model="transcribe", extra_query={"intent": "transcription"}) as connection:
        for begin in range(0, len(sound), 9600):
            connection.input_audio_buffer.append(audio=base64.b64encode(sound[begin : begin + 9600]).decode())
        connection.input_audio_buffer.commit()
        deltas: list[str] = []
        for event in connection:
            assert event.type != "error", event
            if event.type == "conversation.item.input_audio_transcription.delta":
                deltas.append(event.delta or "")
            if event.type == "conversation.item.input_audio_transcription.completed":
                break
        assert [delta.strip() for delta in deltas] == SENTENCES
        assert event.transcript.split() == " ".join(SENTENCES).split()
