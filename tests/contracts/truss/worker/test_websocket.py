"""WebSocket sessions: frames in and out, closing by either side, models that fail or have no such method."""

import asyncio
import struct
from collections.abc import Callable
from typing import Any

import fastapi
import pytest
from tests.contracts.truss.worker.frontend import Frontend, Job

Serve = Callable[..., Frontend]

ACCEPTED = (101, b"")


def close(code: int, reason: str = "") -> bytes:
    return b"c" + struct.pack(">H", code) + reason.encode()


class Model:
    def __init__(self) -> None:
        self.codes: list[int] = []
        self.open = asyncio.Event()

    async def websocket(self, websocket: fastapi.WebSocket) -> None:
        await getattr(self, await websocket.receive_text())(websocket)

    async def echo(self, websocket: fastapi.WebSocket) -> None:
        while (text := await websocket.receive_text()) != "done":
            await websocket.send_text(f"{text} {websocket.url.path} {websocket.headers['x-own']}")

    async def binary(self, websocket: fastapi.WebSocket) -> None:
        await websocket.send_bytes(await websocket.receive_bytes())
        await websocket.send_json({"a": 1})

    async def closes(self, websocket: fastapi.WebSocket) -> None:
        await websocket.close(4001, "enough")

    async def fails(self, websocket: fastapi.WebSocket) -> None:
        raise ValueError("private")

    async def waits(self, websocket: fastapi.WebSocket) -> None:
        try:
            await websocket.receive()
            message = await websocket.receive()
        except fastapi.WebSocketDisconnect as error:
            self.codes.append(error.code)
            raise
        assert message["type"] == "websocket.disconnect"
        self.codes.append(message["code"])

    async def reads(self, websocket: fastapi.WebSocket) -> None:
        while True:
            await websocket.receive_text()


def session(frontend: Frontend, *texts: str) -> Job:
    job = frontend.infer(endpoint="websocket", raw=b"", headers=((b"X-Own", b"mine"),), content_type=None)
    for text in texts:
        job.send(b"t" + text.encode())
    return job


async def frames(job: Job) -> list[tuple[int, bytes]]:
    answer = await job.answer()
    assert (answer.rows[-1][1], answer.rows[-1][5], answer.error) == (False, b"", None)
    return [(row[2], bytes(row[5])) for row in answer.rows[:-1]]


async def test_a_session(serve: Serve) -> None:
    frontend = serve(Model())
    job = session(frontend, "echo", "a", "b", "done")
    assert await frames(job) == [
        ACCEPTED,
        (200, b"ta /v1/models/mine:websocket mine"),
        (200, b"tb /v1/models/mine:websocket mine"),
        (200, close(1000)),
    ]
    assert frontend.connection.messages == [["taken", job.id, 1]] * 4


async def test_binary_frames(serve: Serve) -> None:
    job = session(serve(Model()), "binary")
    job.send(b"b\x00\xff")
    assert await frames(job) == [ACCEPTED, (200, b"b\x00\xff"), (200, b't{"a":1}'), (200, close(1000))]


async def test_a_model_that_closes_is_not_closed_again(serve: Serve) -> None:
    assert await frames(session(serve(Model()), "closes")) == [ACCEPTED, (200, close(4001, "enough"))]


async def test_a_model_that_fails(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    told = await frames(session(serve(Model()), "fails"))
    assert told == [ACCEPTED, (200, close(1011, "Internal Server Error (in model/chainlet)."))]
    assert "private" in caplog.text


@pytest.mark.parametrize("what", ["waits", "reads"])
async def test_a_client_that_closes(serve: Serve, what: str) -> None:
    frontend = serve(Model())
    job = session(frontend, what, "x")
    job.send(close(4002, "bye"), more=False)
    assert await frames(job) == [ACCEPTED]
    assert frontend.model.codes == ([4002] if what == "waits" else [])


async def test_a_client_whose_connection_breaks(serve: Serve) -> None:
    frontend = serve(Model())
    job = session(frontend, "waits", "x")
    await job.parts(1)
    job.leave()
    await job.answer()
    assert frontend.model.codes == [1006]


async def test_a_model_without_sessions(serve: Serve) -> None:
    class Predicts:
        def predict(self, inputs: Any) -> Any:
            return inputs

    told = await frames(session(serve(Predicts())))
    assert told == [ACCEPTED, (200, close(1003, "WebSocket is not implemented on this deployment."))]


async def test_a_model_with_sessions_only(serve: Serve) -> None:
    frontend = serve(Model())
    assert (await frontend.infer({}).answer()).problem[:2] == (404, "700")
    assert frontend.runtime.declares["endpoints"] == ["websocket"]
    assert frontend.runtime.declares["schema"] is None
