"""How a WebSocket for responses ends, and what it keeps in memory; workers are faked."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from tests.apis.openai.test_openai_endpoints import model_of
from tests.endpoints.conftest import OpenEndpoints, Start
from tests.endpoints.fake_serving import FakeModel, FakeServing, Submitted
from tests.endpoints.socket_client import SocketClient, until
from websockets.asyncio.client import connect

from torchserve_py.apis.openai import responses_socket
from torchserve_py.apis.openai.socket_events import BadEvent, EventReader, in_lane, read_turn
from torchserve_py.base.causes import Cause
from ts.apis.openai.openai_calls import CALL_HEADER


def event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind} | fields)}\n\n".encode()


def respond(call: Submitted) -> None:
    """Answer in three pieces that cut events in two, and return the items of what is not kept."""
    text = event("response.created") + event("response.completed")
    call.part(text[:10], more=True)
    call.part(text[10:-20], more=True)
    call.part(text[-20:] + event("items", id=f"resp_{len(call.body)}", items=[{"id": "msg_1"}]))


Open = Callable[..., Awaitable[SocketClient]]


@pytest.fixture
async def opened(start: Start) -> AsyncIterator[Open]:
    """Open sockets that are lost before the server closes, which would wait for their clients."""
    clients: list[SocketClient] = []

    async def run(endpoints: OpenEndpoints, **more: Any) -> SocketClient:
        url = f"ws://{endpoints.address().host}:{endpoints.address().port}/v1/responses"
        clients.append(SocketClient(await connect(url, compression=None, **more)))
        return clients[-1]

    yield run
    for client in clients:
        client.socket.transport.abort()


async def send(client: SocketClient, **asked: Any) -> None:
    await client.socket.send(json.dumps({"type": "response.create", "model": "llm", "input": "a"} | asked))


@pytest.fixture
def model() -> FakeModel:
    model = model_of(stateful=True)
    model.behave = respond
    return model


async def test_what_a_turn_submits(start: Start, model: FakeModel, opened: Open) -> None:
    endpoints = await start(FakeServing([model]))
    client = await opened(endpoints, additional_headers={"Idempotency-Key": "one"})
    for _ in range(2):
        previous = f"resp_{len(model.calls[-1].body)}" if model.calls else None
        await send(client, previous_response_id=previous, stream_id="a", generate=True, stream=False)
        got = [await client.receive() for _ in range(2)]
        assert got == [{"type": f"response.{kind}", "stream_id": "a"} for kind in ("created", "completed")]
    first, second = model.calls
    assert first.sequence_id != second.sequence_id, "the name of a handshake is none of a turn"
    assert (first.call.via, json.loads(first.body)["stream"]) == ("websocket", True)
    told = json.loads(second.header_dict[CALL_HEADER])
    assert json.loads(second.body[: told["history"]]) == [{"id": "msg_1"}]
    assert not {"type", "stream_id", "generate"} & json.loads(second.body[told["history"] :]).keys()


async def test_a_turn_that_fails_is_told_and_the_connection_stays(start: Start, model: FakeModel, opened: Open) -> None:
    client = await opened(await start(FakeServing([model])))
    await send(client)
    await client.receive()
    await client.receive()
    model.behave = lambda call: call.fail(Cause.worker_died)
    await send(client, previous_response_id=(name := f"resp_{len(model.calls[0].body)}"))
    told = await client.receive()
    assert (told["type"], told["status"], told["error"]["code"]) == ("error", 500, "worker_died")
    await send(client, previous_response_id=name, store=False)
    assert (await client.receive())["error"]["code"] == "previous_response_not_found", "the client sends all of it"
    model.behave = respond
    await send(client)
    assert (await client.receive())["type"] == "response.created"


async def test_what_is_in_memory_has_its_share_of_the_servers_room(
    start: Start, model: FakeModel, opened: Open
) -> None:
    endpoints = await start(FakeServing([model]), max_request_size=10_000)
    model.behave = lambda call: call.part(event("items", id="resp_1", items=["x" * 20_000]) + event("response.failed"))
    client = await opened(endpoints)
    await send(client)
    await client.receive()
    await send(client, previous_response_id="resp_1")
    assert (await client.receive())["error"]["code"] == "previous_response_not_found", "it was larger than a request"


async def test_an_old_connection_ends_after_its_turns(
    start: Start, model: FakeModel, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(responses_socket, "LIFETIME", 0.2)
    model.behave = lambda call: None
    client = await opened(await start(FakeServing([model])))
    await send(client)
    await until(lambda: model.calls, "the turn begins")
    await asyncio.sleep(0.4)
    respond(model.calls[0])
    kinds = [await client.receive() for _ in range(3)]
    assert [each["type"] for each in kinds] == ["response.created", "response.completed", "error"]
    assert kinds[-1]["error"]["code"] == "websocket_connection_limit_reached"
    assert (await client.closed())[0] == 1000


async def test_a_server_that_drains_answers_what_it_has_begun(start: Start, model: FakeModel, opened: Open) -> None:
    model.behave = lambda call: None
    endpoints = await start(FakeServing([model]))
    client = await opened(endpoints)
    await send(client)
    await until(lambda: model.calls, "the turn begins")
    endpoints.endpoints.context.start_draining()
    respond(model.calls[0])
    assert [(await client.receive())["type"] for _ in range(2)] == ["response.created", "response.completed"]
    assert (await client.closed())[0] == 1012


async def test_a_message_in_bytes_ends_the_connection(start: Start, model: FakeModel, opened: Open) -> None:
    client = await opened(await start(FakeServing([model])))
    await client.socket.send(b"{}")
    assert (await client.closed())[0] == 1003


async def test_only_so_many_turns_are_under_way(start: Start, model: FakeModel, opened: Open) -> None:
    model.behave = lambda call: None
    client = await opened(await start(FakeServing([model])))
    for number in range(20):
        await send(client, stream_id=str(number))
    await until(lambda: len(model.calls) == 16, "as many as a connection may have")
    await asyncio.sleep(0.1)
    assert len(model.calls) == 16
    for call in model.calls:
        respond(call)
    await until(lambda: len(model.calls) == 20, "the others follow")


def test_events_in_pieces() -> None:
    reader, whole = EventReader(), event("a", text="x\\n") + b":\n\n" + event("b")
    found = [each for place in range(len(whole)) for each in reader.read(whole[place : place + 1])]
    assert [(name, json.loads(data)["type"]) for name, data in found] == [("a", "a"), ("b", "b")]
    assert json.loads(in_lane(b'{"type":"a"}', 'x"y')) == {"stream_id": 'x"y', "type": "a"}


@pytest.mark.parametrize("sent", [b"", b"[]", b"1", b"\xff", b"[" * 100_000, b'{"type": 1}', b'{"type": "a"}'])
def test_what_is_no_turn(sent: bytes) -> None:
    with pytest.raises(BadEvent):
        read_turn(sent)
