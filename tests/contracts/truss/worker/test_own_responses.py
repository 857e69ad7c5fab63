"""Responses that the model makes itself: Starlette's and FastAPI's."""

import threading
from collections.abc import Iterator
from typing import Any

from starlette.responses import StreamingResponse
from tests.contracts.truss.worker.streaming_models import JSON_ONLY, Serve, Streams, ask
from tests.unit.ts.sent_jobs import DEADLINE


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
