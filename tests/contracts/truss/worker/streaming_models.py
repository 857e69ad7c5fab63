"""A model of which every request streams in another way."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import fastapi
from starlette.background import BackgroundTask
from starlette.responses import JSONResponse, RedirectResponse, Response, StreamingResponse
from tests.contracts.truss.worker.frontend import Answer, Frontend
from tests.unit.ts.sent_jobs import DEADLINE

Serve = Callable[..., Frontend]

JSON_ONLY = ((b"Accept", b"application/json"),)
OPENAI = ((b"accept", b"application/json"), (b"user-agent", b"AsyncOpenAI/Python 1.2"))
OCTETS = "application/octet-stream"
EMOJI = "😀".encode()


class Streams:
    """Predict streams, or returns, what the request names."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.open = asyncio.Event()
        self.closed: list[str] = []
        self.ran_behind = False

    async def predict(self, inputs: str) -> Any:
        return getattr(self, inputs)()

    def five(self) -> Iterator[str]:
        yield from "01234"

    async def async_five(self) -> AsyncIterator[str]:
        for number in range(5):
            yield str(number)

    def kinds(self) -> Iterator[Any]:
        yield "ü"
        yield b""
        yield b"b"
        yield memoryview(b"m")

    def halves(self) -> Iterator[bytes]:
        yield EMOJI[:2]
        yield EMOJI[2:]

    def bad_text(self) -> Iterator[bytes]:
        yield EMOJI[:2]

    def numbers(self) -> Iterator[int]:
        yield 1
        yield 2

    def late_number(self) -> Iterator[Any]:
        yield "a"
        yield 2

    def nothing(self) -> Iterator[str]:
        yield from ()

    def fails_first(self) -> Iterator[str]:
        raise ValueError("private")
        yield ""

    def forbids_first(self) -> Iterator[str]:
        raise fastapi.HTTPException(403, {"no": "tea"}, headers={"X-Tea": "none"})
        yield ""

    async def fails_midway(self) -> AsyncIterator[str]:
        yield "0"
        yield "1"
        raise ValueError("private")

    async def slow(self) -> AsyncIterator[str]:
        try:
            yield "a"
            await self.open.wait()
        finally:
            self.closed.append("slow")

    async def never(self) -> AsyncIterator[str]:
        try:
            await self.open.wait()
            yield "a"
        finally:
            self.closed.append("never")

    def blocked(self) -> Iterator[str]:
        try:
            yield "a"
            assert self.gate.wait(DEADLINE)
            yield "b"
        finally:
            self.closed.append("blocked")

    async def busy(self) -> AsyncIterator[str]:
        try:
            while True:
                yield "x"
        finally:
            self.closed.append("busy")

    async def stubborn(self) -> AsyncIterator[str]:
        yield "a"
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.closed.append("was told")
        yield "b"

    def response(self) -> Response:
        return Response(b"body", 203, {"x-own": "1"}, "text/x", BackgroundTask(self.behind))

    def behind(self) -> None:
        self.ran_behind = True

    def redirect(self) -> Response:
        return RedirectResponse("/there")

    def cookies(self) -> Response:
        response = JSONResponse({"a": 1})
        response.set_cookie("one", "1")
        response.set_cookie("two", "2")
        return response

    def no_content(self) -> Response:
        return Response(status_code=204)

    def events(self) -> Response:
        return StreamingResponse(self.async_five(), media_type="text/event-stream")

    def sync_events(self) -> Response:
        return StreamingResponse(self.five(), 202)

    def failing_events(self) -> Response:
        return StreamingResponse(self.fails_midway())

    def events_that_fail_first(self) -> Response:
        return StreamingResponse(self.fails_first())


async def ask(frontend: Frontend, what: str, **more: Any) -> Answer:
    return await frontend.infer(what, **more).answer()
