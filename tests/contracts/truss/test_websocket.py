"""WebSockets of Trusses: frames go both ways, and every end is told to the other side."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiohttp import ClientWebSocketResponse, WSMsgType, WSServerHandshakeError
from tests.endpoints.conftest import OpenEndpoints, Start
from tests.endpoints.fake_serving import FakeModel, FakeServing, worker_status

from torchserve_py.base.causes import Cause
from ts.contracts.truss import websocket_frames as frames

SOCKET = "/v1/websocket"


class Talk:
    """One open socket: the client's end, and what the model has of it."""

    def __init__(self, socket: ClientWebSocketResponse, model: FakeModel) -> None:
        self.client = socket
        self.model = model
        self.call = model.calls[-1]

    async def inputs(self, count: int) -> list[tuple[bool, bytes]]:
        async with asyncio.timeout(60):
            while len(self.model.inputs) < count:
                await asyncio.sleep(0.01)
        return self.model.inputs

    async def receive(self) -> Any:
        return await self.client.receive(timeout=180)


@pytest.fixture
async def serving(start: Start) -> OpenEndpoints:
    model = FakeModel("mine")
    model.contract = "truss"
    model.declared = {"endpoints": ["websocket"], "websocket": {}}
    model.behave = lambda call: call.part(status=101, more=True)
    return await start(FakeServing(registered=[model]))


Connect = Callable[..., Any]


@pytest.fixture
async def connect(serving: OpenEndpoints) -> AsyncIterator[Connect]:
    opened: list[ClientWebSocketResponse] = []

    async def run(path: str = SOCKET, **more: Any) -> Talk:
        opened.append(await serving.client.ws_connect(f"{serving.address()}{path}", **more))
        return Talk(opened[-1], serving.registry.model)

    yield run
    for each in opened:
        await each.close()


@pytest.mark.parametrize(
    "path",
    [SOCKET, "/v1/models/mine/websocket", "/v1/models/mine/v1/websocket", "/invocations-bidirectional-stream"],
)
async def test_frames_go_both_ways(path: str, connect: Connect) -> None:
    talk = await connect(path)
    assert talk.call.more_input
    assert talk.call.header_dict[":endpoint"] == "websocket"
    assert talk.call.header_dict[":scheme"] == "ws"
    await talk.client.send_str("grüße")
    await talk.client.send_bytes(b"\x00\x01")
    assert await talk.inputs(2) == [(True, b"t" + "grüße".encode()), (True, b"b\x00\x01")]
    talk.call.part(frames.TEXT + "zurück".encode(), more=True)
    talk.call.part(frames.BYTES + b"\x02", more=True)
    text, data = await talk.receive(), await talk.receive()
    assert (text.type, text.data) == (WSMsgType.TEXT, "zurück")
    assert (data.type, data.data) == (WSMsgType.BINARY, b"\x02")


async def test_when_the_model_returns_the_socket_is_closed(connect: Connect) -> None:
    talk = await connect()
    talk.call.part()
    message = await talk.receive()
    assert (message.type, message.data, message.extra) == (WSMsgType.CLOSE, 1000, "")


async def test_the_model_may_close_it_with_a_code_and_a_reason(connect: Connect) -> None:
    talk = await connect()
    talk.call.part(frames.CLOSE + (4001).to_bytes(2, "big") + b"enough", more=True)
    talk.call.part(frames.TEXT + b"too late", more=True)
    talk.call.part()
    message = await talk.receive()
    assert (message.type, message.data, message.extra) == (WSMsgType.CLOSE, 4001, "enough")


async def test_an_error_of_the_worker_closes_it(connect: Connect) -> None:
    talk = await connect()
    talk.call.part(error="lost")
    message = await talk.receive()
    assert (message.data, message.extra) == (1011, "Internal Server Error (in model/chainlet).")


@pytest.mark.parametrize(("cause", "code"), [(Cause.worker_died, 1011), (Cause.draining, 1012)])
async def test_the_end_of_the_job_closes_it(cause: Cause, code: int, connect: Connect) -> None:
    talk = await connect()
    talk.call.fail(cause)
    assert (await talk.receive()).data == code


async def test_the_model_hears_why_the_client_closes(connect: Connect) -> None:
    talk = await connect()
    await talk.client.close(code=4002, message=b"bye")
    assert await talk.inputs(1) == [(False, b"c" + (4002).to_bytes(2, "big") + b"bye")]
    assert talk.client.close_code == 4002


async def test_a_client_that_vanishes_cancels_the_job(connect: Connect) -> None:
    talk = await connect()
    talk.client._writer.transport.abort()
    async with asyncio.timeout(60):
        await talk.model.cancelled.wait()


async def test_a_ping_is_answered(connect: Connect) -> None:
    talk = await connect(autoping=False)
    await talk.client.ping(b"x")
    message = await talk.receive()
    assert (message.type, message.data) == (WSMsgType.PONG, b"x")


async def test_a_client_that_answers_no_ping_is_hung_up_on(serving: OpenEndpoints, connect: Connect) -> None:
    serving.registry.model.declared["websocket"] = {"ping_interval_seconds": 0.05, "ping_timeout_seconds": 0.05}
    talk = await connect(autoping=False)
    assert (await talk.receive()).type == WSMsgType.PING
    message = await talk.receive()
    assert (message.type, message.data) == (WSMsgType.CLOSE, 1011)


async def test_a_client_that_sends_a_large_message_slowly_is_not_hung_up_on(
    serving: OpenEndpoints, connect: Connect
) -> None:
    """It can answer no ping before the end of its message."""
    serving.registry.model.declared["websocket"] = {"ping_interval_seconds": 0.1, "ping_timeout_seconds": 0.3}
    talk = await connect(autoping=False)
    for piece in (b"\x82\x94" + bytes(4), *([b"x"] * 20)):  # masked with zeros
        talk.client._conn.transport.write(piece)
        await asyncio.sleep(0.1)
    assert await talk.inputs(1) == [(True, b"b" + b"x" * 20)]


async def test_a_client_is_not_hung_up_on_because_the_server_was_frozen(
    serving: OpenEndpoints, connect: Connect
) -> None:
    serving.registry.model.declared["websocket"] = {"ping_interval_seconds": 0.2, "ping_timeout_seconds": 0.5}
    talk = await connect(autoping=False)
    assert (await talk.receive()).type == WSMsgType.PING
    time.sleep(2)
    await asyncio.sleep(0.05)
    await talk.client.pong()
    await talk.client.send_str("here")
    assert await talk.inputs(1) == [(True, b"there")]


async def test_a_client_that_reads_nothing_is_hung_up_on(
    serving: OpenEndpoints, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchserve_py.contracts.truss.websocket._CLOSE_LIMIT", 0.05)
    serving.registry.model.declared["websocket"] = {"ping_interval_seconds": 0.05, "ping_timeout_seconds": 0.05}
    talk = await connect()
    talk.client._conn.transport.pause_reading()
    for _ in range(50):
        talk.call.part(frames.BYTES + bytes(1_000_000), more=True)
    async with asyncio.timeout(60):
        await serving.registry.model.cancelled.wait()
    talk.client._conn.transport.abort()


async def test_a_refusal_by_the_worker_refuses_the_handshake(serving: OpenEndpoints, connect: Connect) -> None:
    serving.registry.model.behave = lambda call: call.part(b"no", status=503)
    with pytest.raises(WSServerHandshakeError) as caught:
        await connect()
    assert caught.value.status == 503


@pytest.mark.parametrize("refuse", ["loading", "queue"])
async def test_without_room_the_handshake_is_refused(refuse: str, serving: OpenEndpoints, connect: Connect) -> None:
    model = serving.registry.model
    model.workers = [worker_status(ready=refuse != "loading")]
    model.behave = lambda call: call.fail(Cause.queue_full)
    with pytest.raises(WSServerHandshakeError) as caught:
        await connect()
    assert caught.value.status == 503
    assert caught.value.headers is not None
    assert caught.value.headers["X-BASETEN-ERROR-CODE"] == "600"


async def test_a_request_that_is_no_handshake_finds_nothing(serving: OpenEndpoints) -> None:
    assert (await serving.request("GET", SOCKET)).status == 404


async def test_a_slow_model_slows_its_client_down(connect: Connect) -> None:
    talk = await connect()
    for number in range(40):
        await talk.client.send_str(str(number))
    await talk.inputs(16)
    await talk.client.ping(b"seen")  # behind the frames: it is read once they were
    assert len(talk.model.inputs) == 16
    talk.call.call.inputs.taken(16)
    assert len(await talk.inputs(32)) == 32
