"""Streams: chunk by chunk or gathered, errors before and after the first chunk, gaps, clients that leave."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgpack
import pytest
from starlette.requests import Request
from starlette.responses import Response
from tests.contracts.truss.worker.streaming_models import JSON_ONLY, OCTETS, OPENAI, Serve, Streams, ask
from tests.unit.ts.sent_jobs import DEADLINE

from ts.contracts.truss import streams


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
    lenient = await ask(serve(Streams(), options={"streamErrors": "end"}), "fails_midway")
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
    frontend.served.streaming_read_timeout = 1.0  # the first chunk comes within it, however busy the machine is
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
    frontend = serve(model, options={"cancelOnDisconnect": True})
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
