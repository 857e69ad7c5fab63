"""A client of live sessions, and sessions with a fake `Serving` behind them."""

import json
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.endpoints.conftest import OpenEndpoints, Start
from tests.endpoints.fake_serving import FakeModel, FakeServing
from tests.endpoints.socket_client import SocketClient
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus

JSON = "sequences.json.v1"
BINARY = "sequences.binary.v1"
HEADER = struct.Struct(">BBHI")


def stateful(window: int = 4, *, is_durable: bool = False, **more: Any) -> FakeModel:
    model = FakeModel("tally", stateful=True)
    model.is_durable = is_durable
    model.config = replace(model.config, max_sequence_job_queue_size=window, **more)
    return model


class Session(SocketClient):
    """The client's end of a session, and the model behind it."""

    def __init__(self, socket: ClientConnection, model: FakeModel) -> None:
        super().__init__(socket)
        self.model = model
        self.greeting: dict[str, Any] = {}

    async def send(self, **step: Any) -> None:
        await self.socket.send(json.dumps(step))


Open = Callable[..., Awaitable[Session]]


@pytest.fixture
async def live(start: Start) -> AsyncIterator[Open]:
    """Open a session with a model of the test's choice, and read the greeting."""
    opened: list[ClientConnection] = []
    endpoints: dict[int, OpenEndpoints] = {}

    async def run(
        model: FakeModel, form: str | None = JSON, path: str = "", settings: dict[str, Any] | None = None, **more: Any
    ) -> Session:
        if id(model) not in endpoints:
            endpoints[id(model)] = await start(FakeServing(registered=[model]), **(settings or {}))
        session = Session(await open_socket(endpoints[id(model)], form, path, **more), model)
        opened.append(session.socket)
        first = await session.socket.recv()
        session.greeting = json.loads(first if isinstance(first, str) else first[HEADER.size :])
        return session

    yield run
    for socket in opened:
        socket.transport.abort()  # a farewell would wait for clients that do not read


async def open_socket(
    endpoints: OpenEndpoints, form: str | None, path: str = "", name: str = "tally", **more: Any
) -> ClientConnection:
    address = endpoints.address()
    forms: Any = None if form is None else more.pop("subprotocols", [form])
    return await connect(
        f"ws://{address.host}:{address.port}/sequences/{name}{path}", subprotocols=forms, compression=None, **more
    )


async def refused(endpoints: OpenEndpoints, **more: Any) -> tuple[int, Any]:
    with pytest.raises(InvalidStatus) as refusal:
        await open_socket(endpoints, more.pop("form", JSON), **more)
    return refusal.value.response.status_code, json.loads(refusal.value.response.body or b"{}")
