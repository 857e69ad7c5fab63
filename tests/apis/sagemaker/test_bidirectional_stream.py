"""SageMaker's bidirectional stream: messages are steps, and parts of answers are messages."""

import asyncio
import json
from typing import Any

import pytest
from tests.apis.live.conftest import stateful
from tests.endpoints.conftest import OpenEndpoints, Start
from tests.endpoints.fake_serving import FakeModel, FakeServing, Submitted
from tests.endpoints.socket_client import LIMIT, SocketClient, until
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus

from torchserve_py.apis.realtime.realtime_keys import RealtimeKeys
from torchserve_py.base.causes import Cause
from torchserve_py.base.settings.schemas.plugin_keys import PluginKeys


def at_startup(model: FakeModel) -> FakeModel:
    model.loaded_at_startup = True
    return model


async def stream(endpoints: OpenEndpoints, query: str = "", **more: Any) -> ClientConnection:
    address = endpoints.address()
    return await connect(f"ws://{address.host}:{address.port}/invocations-bidirectional-stream{query}", **more)


async def test_parts_come_back_in_the_form_of_their_step(start: Start) -> None:
    def answer(call: Submitted) -> None:
        call.part(call.body, more=True)
        call.part(b"\xff")

    model = at_startup(stateful())
    model.behave = answer
    async with await stream(await start(FakeServing([model]))) as socket, asyncio.timeout(LIMIT):
        await socket.send("text")
        await socket.send(b"bytes")
        assert [await socket.recv() for _ in range(4)] == ["text", b"\xff", b"bytes", b"\xff"]
    first, second = model.calls
    assert (first.sequence_id, first.starts_sequence) == (second.sequence_id, True)
    assert not second.starts_sequence
    await until(lambda: model.released == [first.sequence_id], "the sequence is released")


async def test_each_stream_is_a_sequence_of_its_own(start: Start) -> None:
    model = at_startup(stateful())
    endpoints = await start(FakeServing([model]))
    for _ in range(2):
        async with await stream(endpoints) as socket, asyncio.timeout(LIMIT):
            await socket.send("x")
            await socket.recv()
    assert model.calls[0].sequence_id != model.calls[1].sequence_id


async def test_a_failure_is_a_message_and_the_stream_goes_on(start: Start) -> None:
    def fail_once(call: Submitted) -> None:
        if len(model.calls) == 1:
            call.part(status=500, error="Prediction failed")
        else:
            call.part(call.body)

    model = at_startup(stateful())
    model.behave = fail_once
    async with await stream(await start(FakeServing([model]))) as socket, asyncio.timeout(LIMIT):
        await socket.send(b"1")
        assert json.loads(await socket.recv()) == {
            "code": 500,
            "type": "InternalServerException",
            "message": "Prediction failed",
        }
        await socket.send(b"2")
        assert await socket.recv() == b"2"


@pytest.mark.parametrize(
    ("cause", "code"), [(Cause.sequence_lost, 4410), (Cause.sequence_expired, 4410), (Cause.unregistered, 1012)]
)
async def test_the_stream_ends_with_its_sequence(start: Start, cause: Cause, code: int) -> None:
    model = at_startup(stateful())
    model.behave = lambda call: call.fail(cause)
    async with await stream(await start(FakeServing([model]))) as socket:
        await socket.send("1")
        assert (await SocketClient(socket).closed())[0] == code


async def test_the_handler_ends_the_stream(start: Start) -> None:
    model = at_startup(stateful())
    model.behave = lambda call: call.part(b"bye", headers=[("ts_request_sequence_end", str(call.sequence_id))])
    async with await stream(await start(FakeServing([model]))) as socket:
        await socket.send("1")
        assert await socket.recv() == "bye"
        assert await SocketClient(socket).closed() == (1000, "The sequence has ended.")


async def test_which_model_is_meant(start: Start) -> None:
    endpoints = await start(FakeServing([at_startup(FakeModel("one")), at_startup(stateful())]))
    async with await stream(endpoints, "?model_name=tally") as socket, asyncio.timeout(LIMIT):
        await socket.send("x")
        assert await socket.recv() == "x"
    for query, status in (("", 400), ("?model_name=one", 400), ("?model_name=none", 404)):
        with pytest.raises(InvalidStatus) as refused:
            await stream(endpoints, query)
        assert refused.value.response.status_code == status
    answer = await endpoints.request("GET", "/invocations-bidirectional-stream?model_name=tally")
    assert (answer.status, "handshake" in answer.json()["message"]) == (400, True)


async def test_a_model_that_transcribes_speaks_the_realtime_api_in_text_or_bytes(start: Start) -> None:
    model = at_startup(stateful(plugin_keys=PluginKeys((RealtimeKeys(realtime=True),))))
    model.behave = lambda call: call.part(b"heard")
    async with await stream(await start(FakeServing([model]))) as socket, asyncio.timeout(LIMIT):
        assert json.loads(await socket.recv())["type"] == "session.created"
        await socket.send(b'{"type": "session.update", "model": "tally"}')
        assert json.loads(await socket.recv())["type"] == "session.updated"
        await socket.send(b'{"type": "input_audio_buffer.append", "audio": "AAAA"}')
        assert json.loads(await socket.recv()) == {"type": "transcription.delta", "delta": "heard"}


async def test_keys(start: Start) -> None:
    endpoints = await start(FakeServing([at_startup(stateful())]), disable_token_authorization=False)
    key = json.loads(endpoints.key_file.read_text())["inference"]["key"]
    async with await stream(endpoints, additional_headers={"Authorization": f"Bearer {key}"}):
        pass
    with pytest.raises(InvalidStatus) as refused:
        await stream(endpoints)
    assert refused.value.response.status_code == 400
