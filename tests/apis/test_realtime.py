"""OpenAI's client, unmodified, and clients of vLLM's variant transcribe the keys of a telephone."""

import asyncio
import json
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from tests.e2e.keypad_tones import pieces, tones
from tests.e2e.running_server import ROOT, RunningServer, eventually
from websockets.asyncio.client import connect as connect_async
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from ts.handler_utils.audio import decode_audio

LIMIT = 60
INTENT: Any = {"intent": "transcription"}
COMPLETED = "conversation.item.input_audio_transcription.completed"
FAILED = "conversation.item.input_audio_transcription.failed"


def settings(audio_format: str = "audio/pcm") -> Any:
    heard = {"format": {"type": audio_format}, "transcription": {"model": "keypad"}, "turn_detection": None}
    return {"type": "transcription", "audio": {"input": heard}}


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with RunningServer({"keypad": ROOT / "handlers" / "keypad"}, {"max_request_size": 2_000_000}) as running:
        running.wait_ready()
        yield running


def url_of(server: RunningServer, query: str = "") -> str:
    return f"{server.inference.replace('http', 'ws', 1)}/v1/realtime{query}"


@pytest.fixture
def client(server: RunningServer) -> openai.OpenAI:
    websocket = url_of(server).removesuffix("/realtime")  # the beta takes wss for granted
    return openai.OpenAI(base_url=f"{server.inference}/v1", api_key="none", websocket_base_url=websocket)


def until(connection: Any, last: str) -> list[Any]:
    """Return the events up to one of type ``last``."""
    events = [connection.recv()]
    while events[-1].type != last:
        events.append(connection.recv())
    return events


def test_the_client(client: openai.OpenAI) -> None:
    with client.realtime.connect(extra_query=INTENT) as connection:
        assert connection.recv().type == "session.created"
        connection.session.update(session=settings())
        assert connection.recv().type == "session.updated"
        previous = None
        for keys in ("0123456789", "ABCD*#"):
            for piece in pieces(tones(keys), 4799):
                connection.input_audio_buffer.append(audio=piece)
            connection.input_audio_buffer.commit()
            events = until(connection, COMPLETED)
            assert events[-1].transcript == keys
            assert "".join(event.delta for event in events if event.type.endswith(".delta")) == keys
            assert events[-1].usage.seconds == pytest.approx(0.15 * len(keys))
            committed = next(event for event in events if event.type == "input_audio_buffer.committed")
            assert (committed.item_id, committed.previous_item_id) == (events[-1].item_id, previous)
            previous = committed.item_id
        connection.input_audio_buffer.append(audio=pieces(tones("9"), 99999)[0])
        connection.input_audio_buffer.clear()
        until(connection, "input_audio_buffer.cleared")
        connection.input_audio_buffer.commit(event_id="nothing")
        error = connection.recv().error
        assert (error.event_id, error.code) == ("nothing", "input_audio_buffer_commit_empty")


@pytest.mark.parametrize("audio_format", ["audio/pcmu", "audio/pcma"])
async def test_the_asynchronous_client_and_g711(server: RunningServer, audio_format: str) -> None:
    encoded = g711(tones("5551234", 8000), audio_format)
    client = openai.AsyncOpenAI(base_url=f"{server.inference}/v1", api_key="none")
    async with client.realtime.connect(model="keypad") as connection, asyncio.timeout(LIMIT):
        await connection.session.update(session=settings(audio_format))
        for piece in pieces(encoded, 333):
            await connection.input_audio_buffer.append(audio=piece)
        await connection.input_audio_buffer.commit()
        async for event in connection:
            if event.type == COMPLETED:
                assert event.transcript == "5551234"
                break


def g711(samples: bytes, audio_format: str) -> bytes:
    """Encode pcm16 by looking for the nearest value of the table that decodes it."""
    encoding = {"audio/pcmu": "g711_ulaw", "audio/pcma": "g711_alaw"}[audio_format]
    table = decode_audio(bytes(range(256)), encoding)
    values = decode_audio(samples, "pcm16")
    return np.abs(values[:, None] - table[None, :]).argmin(axis=1).astype(np.uint8).tobytes()


def test_the_client_of_the_beta(client: openai.OpenAI) -> None:
    with client.beta.realtime.connect(model="keypad", extra_query=INTENT) as connection:
        connection.transcription_session.update(
            session={"input_audio_format": "pcm16", "input_audio_transcription": {"language": "en"}}
        )
        updated = until(connection, "transcription_session.updated")[-1]
        assert updated.session.input_audio_format == "pcm16"
        for piece in pieces(tones("42"), 4800):
            connection.input_audio_buffer.append(audio=piece)
        connection.input_audio_buffer.commit()
        assert until(connection, COMPLETED)[-1].transcript == "42"


def test_vllms_client(server: RunningServer) -> None:
    with connect(url_of(server)) as socket:
        assert json.loads(socket.recv(LIMIT))["type"] == "session.created"
        for event in (
            {"type": "session.update", "model": "mistralai/Voxtral-Mini-4B-Realtime"},
            {"type": "input_audio_buffer.commit"},
            *({"type": "input_audio_buffer.append", "audio": piece} for piece in pieces(tones("31415", 16_000), 4096)),
            {"type": "input_audio_buffer.commit", "final": True},
        ):
            socket.send(json.dumps(event))
        got: list[Any] = []
        while not got or got[-1]["type"] != "transcription.done":
            got.append(json.loads(socket.recv(LIMIT)))
        assert got[-1]["text"] == "31415"
        assert "".join(event["delta"] for event in got if event["type"] == "transcription.delta") == "31415"


def test_a_worker_killed_in_mid_transcription_fails_the_item_and_no_other(
    server: RunningServer, client: openai.OpenAI
) -> None:
    with client.realtime.connect(extra_query=INTENT) as connection:
        first, second = pieces(tones("12"), 7200)
        connection.input_audio_buffer.append(audio=first)
        until(connection, "conversation.item.input_audio_transcription.delta")
        os.kill(server.workers()[0].pid, signal.SIGKILL)
        connection.input_audio_buffer.append(audio=second, event_id="second")
        connection.input_audio_buffer.commit()
        events = until(connection, FAILED)
        assert [event.error.event_id for event in events if event.type == "error"] == ["second"]
        assert events[-1].error.code in ("sequence_lost", "worker_died")
        for piece in pieces(tones("34"), 4800):
            connection.input_audio_buffer.append(audio=piece)
        connection.input_audio_buffer.commit()
        assert until(connection, COMPLETED)[-1].transcript == "34"


def test_where_states_are_stored_nobody_notices_a_killed_worker(tmp_path: Path) -> None:
    model = tmp_path / "keypad"
    model.mkdir()
    for file in (ROOT / "handlers" / "keypad").glob("*.*"):
        (model / file.name).write_text(file.read_text())
    with (model / "model-config.yaml").open("a") as config:
        config.write(f"handler:\n  cache: {{store: file, path: {tmp_path}/sounds.db}}\n")
    with RunningServer({"keypad": model}) as server:
        server.wait_ready()
        with connect(url_of(server)) as socket:
            for number, piece in enumerate(pieces(tones("0123456789"), 3000)):
                if number % 8 == 4:
                    eventually(server.workers, "there is a worker")[0].kill()
                socket.send(json.dumps({"type": "input_audio_buffer.append", "audio": piece}))
            socket.send(json.dumps({"type": "input_audio_buffer.commit"}))
            while (event := json.loads(socket.recv(LIMIT)))["type"] != COMPLETED:
                assert event["type"] not in ("error", FAILED), event
            assert event["transcript"] == "0123456789"


async def test_thirty_sessions_at_once(server: RunningServer) -> None:
    async def dial(number: int) -> None:
        draw = random.Random(number)
        keys = "".join(draw.choices("0123456789ABCD*#", k=20))
        async with connect_async(url_of(server, "?intent=transcription")) as socket:
            for piece in pieces(tones(keys), draw.randrange(999, 9999)):
                await socket.send(json.dumps({"type": "input_audio_buffer.append", "audio": piece}))
            await socket.send(json.dumps({"type": "input_audio_buffer.commit"}))
            while (event := json.loads(await socket.recv()))["type"] != COMPLETED:
                assert event["type"] not in ("error", FAILED), event
            assert event["transcript"] == keys

    async with asyncio.timeout(LIMIT):
        await asyncio.gather(*map(dial, range(30)))


def test_gigantic_and_hostile_messages_end_no_session_but_their_own(server: RunningServer) -> None:
    with connect(url_of(server)) as neighbour:
        neighbour.recv(LIMIT)
        with connect(url_of(server)) as socket, pytest.raises(ConnectionClosed) as closed:
            socket.send(json.dumps({"type": "input_audio_buffer.append", "audio": "A" * 3_000_000}))
            while True:
                socket.recv(LIMIT)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1009
        with connect(url_of(server)) as socket:
            hostile = ["[" * 500_000, '{"type":' * 100_000, '{"type": "session.update", "session": %s}' % ("[" * 9999)]
            for message in hostile:
                socket.send(message)
            for _ in range(1000):
                socket.send('{"type": "nonsense"}')
            socket.recv(LIMIT)
            for _ in range(len(hostile) + 1000):
                assert json.loads(socket.recv(LIMIT))["type"] == "error"
        neighbour.send(json.dumps({"type": "input_audio_buffer.append", "audio": pieces(tones("7"), 99999)[0]}))
        assert json.loads(neighbour.recv(LIMIT))["delta"] == "7"


def test_a_drain_lets_a_session_finish(tmp_path: Path) -> None:
    with RunningServer({"keypad": ROOT / "handlers" / "keypad"}, {"drain_timeout": 2}) as server:
        server.wait_ready()
        with connect(url_of(server)) as socket:
            socket.recv(LIMIT)
            server.launcher.send_signal(signal.SIGTERM)
            with pytest.raises(ConnectionClosed) as closed:
                while True:
                    socket.recv(LIMIT)
            assert closed.value.rcvd is not None
            assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1012, "The server is shutting down.")
