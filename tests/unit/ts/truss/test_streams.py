"""Streams: chunk by chunk or gathered, errors before and after the first chunk, gaps, clients that leave."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import fastapi
import msgpack
import pytest
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response, StreamingResponse
from tests.unit.ts.sent_jobs import DEADLINE
from tests.unit.ts.truss.frontend import Answer, Frontend

from ts.runtimes.truss import streams
from ts.runtimes.truss.truss_config import Options

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


@pytest.mark.parametrize("what", ["five", "async_five"])
async def test_each_chunk_is_a_part(serve: Serve, what: str) -> None:
    answer = await ask(serve(Streams()), what)
    assert answer.chunks == [b"0", b"1", b"2", b"3", b"4"]
    assert (answer.status, answer.headers, answer.error) == (200, {"content-type": OCTETS}, None)
    assert [row[4] for row in answer.rows[1:]] == [()] * 5  # headers go with the first part


async def test_what_a_chunk_may_be(serve: Serve) -> None:
    frontend = serve(Streams())
    assert (await ask(frontend, "kinds")).chunks == ["ü".encode(), b"b", b"m"]
    assert (await ask(frontend, "numbers")).problem == (500, "600", "Internal Server Error (in model/chainlet).")
    late = await ask(frontend, "late_number")
    assert (late.chunks, late.error is None) == ([b"a"], False)
    empty = await ask(frontend, "nothing")
    assert (empty.status, empty.body, len(empty.rows)) == (200, b"", 1)


async def test_a_client_that_takes_json_only_gets_all_at_once(serve: Serve) -> None:
    frontend = serve(Streams())
    gathered = await ask(frontend, "five", headers=JSON_ONLY)
    assert (gathered.body, len(gathered.rows)) == (b'"01234"', 1)
    assert gathered.headers == {"content-type": "application/json"}
    assert (await ask(frontend, "halves", headers=JSON_ONLY)).json == "😀"
    assert (await ask(frontend, "numbers", headers=JSON_ONLY)).json == "12"
    binary = await ask(frontend, "five", raw=msgpack.packb("five"), content_type=OCTETS, headers=JSON_ONLY)
    assert msgpack.unpackb(binary.body) == "01234"
    for failing in ("bad_text", "fails_midway"):
        assert (await ask(frontend, failing, headers=JSON_ONLY)).problem[0] == 500
    assert (await ask(frontend, "forbids_first", headers=JSON_ONLY)).problem == (403, "600", {"no": "tea"})


@pytest.mark.parametrize(
    "headers",
    [
        OPENAI,
        ((b"accept", b"application/json, */*"),),
        ((b"accept", b"Application/JSON"),),
        ((b"accept", b"*/*"),),
    ],
)
async def test_all_others_get_a_stream(serve: Serve, headers: Any) -> None:
    assert len((await ask(serve(Streams()), "five", headers=headers)).chunks) == 5


async def test_an_error_before_the_first_chunk_is_an_answer_like_any_other(serve: Serve) -> None:
    frontend = serve(Streams())
    assert (await ask(frontend, "fails_first")).problem == (500, "600", "Internal Server Error (in model/chainlet).")
    forbidden = await ask(frontend, "forbids_first")
    assert forbidden.problem == (403, "600", {"no": "tea"})
    assert forbidden.headers["x-tea"] == "none"


async def test_an_error_midway_ends_the_stream_visibly(serve: Serve) -> None:
    answer = await ask(serve(Streams()), "fails_midway")
    assert answer.chunks == [b"0", b"1"]
    assert answer.error == "Internal Server Error (in model/chainlet)."
    lenient = await ask(serve(Streams(), options=Options(ends_failed_streams=True)), "fails_midway")
    assert (lenient.chunks, lenient.error) == ([b"0", b"1"], None)


async def test_a_gap_that_is_too_long(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Streams()
    frontend = serve(model)
    frontend.served.streaming_read_timeout = 0.01
    slow = await ask(frontend, "slow")
    assert (slow.chunks, slow.error) == ([b"a"], "The model has yielded nothing for too long.")
    never = await ask(frontend, "never")
    assert [row[1:3] for row in never.rows] == [(True, 200), (False, 500)]
    assert never.headers == {"content-type": OCTETS}
    assert model.closed == ["slow", "never"]
    assert frontend.served.slots.free == 1


async def test_a_gap_within_a_thread(serve: Serve) -> None:
    model = Streams()
    frontend = serve(model)
    frontend.served.streaming_read_timeout = 0.01
    job = frontend.infer("blocked")
    await frontend.until(lambda: job.is_done)
    assert frontend.served.slots.free == 0  # a thread cannot be stopped, and still computes
    model.gate.set()
    await frontend.until(lambda: frontend.served.slots.free == 1)
    assert model.closed == ["blocked"]


async def test_the_limit_is_for_gaps_and_not_for_whole_streams(serve: Serve) -> None:
    frontend = serve(Streams(), streaming_read_timeout=1)
    job = frontend.infer("busy")
    await job.parts(200)
    job.leave()
    await job.answer()
    assert frontend.model.closed == ["busy"]


@pytest.mark.parametrize("what", ["slow", "never", "busy"])
async def test_the_generator_of_a_client_that_left_is_closed(serve: Serve, what: str) -> None:
    frontend = serve(Streams())
    job = frontend.infer(what)
    if what == "never":
        await frontend.until(lambda: frontend.served.slots.free == 0)
    else:
        await job.parts(1)
    job.leave()
    assert (await job.answer()).rows[-1][2] == 499
    assert frontend.model.closed == [what]


async def test_a_generator_that_does_not_obey_is_closed_all_the_same(serve: Serve) -> None:
    frontend = serve(Streams())
    job = frontend.infer("stubborn")
    await job.parts(1)
    job.leave()
    assert (await job.answer()).chunks == [b"a"]
    assert frontend.model.closed == ["was told"]
    assert frontend.served.slots.free == 1


class Polling:
    """The patterns of models that ask whether their client is still there."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.go_on = asyncio.Event()
        self.entered = threading.Event()

    async def predict(self, inputs: str, request: Request) -> Any:
        return getattr(self, inputs)(request)

    async def between_chunks(self, request: Request) -> AsyncIterator[str]:
        for number in range(1000):
            yield str(number)
            await self.go_on.wait()
            if await request.is_disconnected():
                self.steps.append("cancelled")
                return

    async def engine(self, request: Request) -> AsyncIterator[str]:
        never = asyncio.get_running_loop().create_future()
        yield "first"
        item = asyncio.ensure_future(never)
        while not await request.is_disconnected():
            await asyncio.wait({item}, timeout=0.001)
        item.cancel()
        self.steps.append("engine call cancelled")

    def thread(self, request: Request) -> Iterator[str]:
        with request.state.watch_disconnect() as gone:
            yield "first"
            self.entered.set()
            assert gone.wait(DEADLINE)
            self.steps.append("event set")

    async def task(self, request: Request) -> AsyncIterator[str]:
        gone = asyncio.create_task(self.poll(request))
        yield "first"
        await gone
        self.steps.append("told by a task")

    async def poll(self, request: Request) -> None:
        while not await request.is_disconnected():
            await asyncio.sleep(0.001)


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("between_chunks", "cancelled"),
        ("engine", "engine call cancelled"),
        ("thread", "event set"),
        ("task", "told by a task"),
    ],
)
async def test_models_that_ask_end_in_their_own_way(serve: Serve, what: str, told: str) -> None:
    model = Polling()
    frontend = serve(model)
    job = frontend.infer(what)
    await job.parts(1)
    if what == "thread":
        await frontend.until(model.entered.is_set)
    job.leave()
    model.go_on.set()
    assert (await job.answer()).rows[-1][2] == 499
    assert model.steps == [told]
    assert frontend.served.slots.free == 1


async def test_a_model_that_could_ask_and_does_not_has_its_generator_closed_after_a_while(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "_PATIENCE", 0.05)

    class Model:
        closed = False

        async def predict(self, inputs: Any, request: Request) -> AsyncIterator[str]:
            try:
                yield "a"
                await asyncio.get_running_loop().create_future()
            finally:
                self.closed = True

    frontend = serve(Model())
    job = frontend.infer()
    await job.parts(1)
    job.leave()
    await job.answer()
    assert frontend.model.closed


async def test_a_model_that_asks_is_closed_at_once_where_its_owner_chose_so(serve: Serve) -> None:
    model = Polling()
    frontend = serve(model, options=Options(cancel_on_disconnect=True))
    job = frontend.infer("between_chunks")
    await job.parts(1)
    job.leave()
    assert (await job.answer()).rows[-1][2] == 499
    assert model.steps == []
    assert frontend.served.slots.free == 1


class Post:
    def predict(self, inputs: Any) -> Any:
        if inputs == "generator":
            return (each for each in "ab")
        return Response(b"") if inputs == "response" else inputs

    async def postprocess(self, result: Any) -> AsyncIterator[str]:
        for each in result:
            yield each


async def test_postprocess_may_stream(serve: Serve) -> None:
    frontend = serve(Post())
    assert (await ask(frontend, ["1", "2"])).chunks == [b"1", b"2"]  # type: ignore[arg-type]
    gathered = await ask(frontend, ["1", "2"], headers=JSON_ONLY)  # type: ignore[arg-type]
    assert gathered.chunks == [b"1", b"2"]


@pytest.mark.parametrize(("what", "told"), [("generator", "streaming"), ("response", "responses")])
async def test_what_postprocess_cannot_follow(
    serve: Serve, what: str, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    frontend = serve(Post())
    assert (await ask(frontend, what)).problem == (500, "600", "Internal Server Error (in model/chainlet).")
    assert f"{told} and postprocess cannot be combined" in caplog.text
    assert frontend.served.slots.free == 1


# Responses that the model makes itself


async def test_a_response_is_passed_on(serve: Serve) -> None:
    frontend = serve(Streams())
    own = await ask(frontend, "response")
    assert (own.status, own.body, len(own.rows)) == (203, b"body", 1)
    assert own.headers == {"x-own": "1", "content-type": "text/x; charset=utf-8"} or own.headers == {
        "x-own": "1",
        "content-type": "text/x",
    }
    await frontend.until(lambda: frontend.model.ran_behind)
    cookies = await ask(frontend, "cookies")
    assert [value.split(";")[0] for name, value in cookies.pairs if name == "set-cookie"] == ["one=1", "two=2"]
    nothing = await ask(frontend, "no_content")
    assert (nothing.status, nothing.body) == (204, b"")
    assert "x-baseten-error-code" not in nothing.headers
    redirect = await ask(frontend, "redirect")
    assert (redirect.status, redirect.headers["location"]) == (307, "/there")
    assert (redirect.headers["x-baseten-error-source"], redirect.headers["x-baseten-error-code"]) == ("04", "700")


async def test_a_streaming_response_is_passed_on(serve: Serve) -> None:
    frontend = serve(Streams())
    events = await ask(frontend, "events", headers=JSON_ONLY)
    assert events.chunks == [b"0", b"1", b"2", b"3", b"4"]
    assert events.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert (await ask(frontend, "sync_events")).status == 202
    failing = await ask(frontend, "failing_events")
    assert (failing.chunks, failing.error) == ([b"0", b"1"], "Internal Server Error (in model/chainlet).")
    assert (await ask(frontend, "events_that_fail_first")).problem[:2] == (500, "600")
    assert frontend.served.slots.free == 1


async def test_more_responses_of_plain_iterators_than_anyio_has_threads(serve: Serve) -> None:
    class Model:
        def __init__(self) -> None:
            self.inside = 0
            self.gate = threading.Event()

        async def predict(self, inputs: Any) -> Any:
            return StreamingResponse(self.chunks())

        def chunks(self) -> Iterator[str]:
            self.inside += 1
            assert self.gate.wait(DEADLINE)
            yield "a"

    frontend = serve(Model(), predict_concurrency=60)
    jobs = [frontend.infer() for _ in range(60)]
    await frontend.until(lambda: frontend.model.inside == 60)
    frontend.model.gate.set()
    assert [(await job.answer()).body for job in jobs] == [b"a"] * 60


async def test_what_is_too_large_for_a_row(serve: Serve) -> None:
    class Model:
        def predict(self, inputs: int) -> Any:
            return "x" * inputs if inputs < 100 else iter_of("x" * inputs)

    def iter_of(chunk: str) -> Iterator[str]:
        yield chunk

    frontend = serve(Model(), size=50)
    for size in (60, 200):
        status, code, told = (await frontend.infer(size).answer()).problem
        assert (status, code) == (500, "500")
        assert "max_response_size is 50" in told
