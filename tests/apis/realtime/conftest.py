"""Clients of the realtime API, and sessions with a fake `Serving` behind them."""

import base64
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.endpoints.conftest import OpenEndpoints, Start
from tests.endpoints.fake_serving import FakeModel, FakeServing, Submitted
from tests.endpoints.socket_client import SocketClient
from websockets.asyncio.client import ClientConnection, connect

from torchserve_py.apis.realtime.realtime_keys import RealtimeKeys
from torchserve_py.base.settings.schemas.plugin_keys import PluginKeys

TRANSCRIPTION = "conversation.item.input_audio_transcription"


def transcriber(name: str = "ears", window: int = 8, **more: Any) -> FakeModel:
    """A model that says what it is sent: the audio of an append, and "." for a commit."""
    model = FakeModel(name, stateful=True)
    model.config = replace(
        model.config, plugin_keys=PluginKeys((RealtimeKeys(realtime=True),)), max_sequence_job_queue_size=window, **more
    )
    model.behave = say
    return model


def say(call: Submitted) -> None:
    call.part(call.body if kind_of(call) == "append" else b"")


def kind_of(call: Submitted) -> str:
    return call.header_dict["realtime_event"]


class Client(SocketClient):
    """The client's end of a session."""

    def __init__(self, socket: ClientConnection) -> None:
        super().__init__(socket)
        self.created: dict[str, Any] = {}

    async def send(self, kind: str, **members: Any) -> None:
        await self.socket.send(json.dumps({"type": kind, **members}))

    async def append(self, audio: bytes, **members: Any) -> None:
        await self.send("input_audio_buffer.append", audio=base64.b64encode(audio).decode(), **members)

    async def commit(self, **members: Any) -> None:
        await self.send("input_audio_buffer.commit", **members)

    async def events(self, last: str) -> list[Any]:
        """Return what comes, up to an event of type ``last``."""
        got = [await self.receive()]
        while got[-1]["type"] != last:
            got.append(await self.receive())
        return got

    async def error(self) -> Any:
        """Return the error that comes next."""
        event = await self.receive()
        assert event["type"] == "error", event
        return event["error"]


Open = Callable[..., Awaitable[Client]]


@pytest.fixture
async def listen(start: Start) -> AsyncIterator[Open]:
    """Open a session with models of the test's choice."""
    opened: list[Client] = []
    endpoints: dict[int, OpenEndpoints] = {}

    async def run(
        *models: FakeModel, query: str = "?intent=transcription", settings: dict[str, Any] | None = None, **more: Any
    ) -> Client:
        if id(models[0]) not in endpoints:
            endpoints[id(models[0])] = await start(FakeServing(registered=list(models)), **(settings or {}))
        client = Client(await open_socket(endpoints[id(models[0])], query, **more))
        opened.append(client)
        client.created = await client.receive()
        return client

    yield run
    for client in opened:
        await client.socket.close()


async def open_socket(endpoints: OpenEndpoints, query: str = "?intent=transcription", **more: Any) -> ClientConnection:
    address = endpoints.address()
    # A client that has as many messages as it takes reads no more, and so waits in vain for the end of the connection.
    url = f"ws://{address.host}:{address.port}/v1/realtime{query}"
    return await connect(url, compression=None, max_queue=None, **more)
