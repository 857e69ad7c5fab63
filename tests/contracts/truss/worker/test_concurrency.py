"""Slots and overlap: what runs at once, what waits, and that a slot comes back however a call ends."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import StreamingResponse
from tests.contracts.truss.worker.frontend import Frontend
from tests.unit.ts.sent_jobs import DEADLINE

Serve = Callable[..., Frontend]


class Stages:
    """Every step waits until the test lets that request go on."""

    def __init__(self) -> None:
        self.inside: dict[str, list[int]] = {"preprocess": [], "predict": [], "postprocess": []}
        self.gates: dict[tuple[str, int], asyncio.Event] = {}

    def gate(self, step: str, number: int) -> asyncio.Event:
        return self.gates.setdefault((step, number), asyncio.Event())

    def open(self, step: str, *numbers: int) -> None:
        for number in numbers:
            self.gate(step, number).set()

    async def stay(self, step: str, number: int) -> int:
        self.inside[step].append(number)
        await self.gate(step, number).wait()
        self.inside[step].remove(number)
        return number

    async def preprocess(self, inputs: int) -> int:
        return await self.stay("preprocess", inputs)

    async def predict(self, inputs: int) -> int:
        return await self.stay("predict", inputs)

    async def postprocess(self, result: int) -> int:
        return await self.stay("postprocess", result)


async def test_five_slots_and_ten_requests(serve: Serve) -> None:
    model = Stages()
    frontend = serve(model, predict_concurrency=5)
    jobs = [frontend.infer(number) for number in range(10)]
    await frontend.until(lambda: len(model.inside["preprocess"]) == 10)
    assert model.inside["predict"] == []

    model.open("preprocess", *range(10))
    await frontend.until(lambda: len(model.inside["predict"]) == 5)
    await frontend.until(lambda: frontend.served.slots.waiting == 5)
    assert (model.inside["predict"], model.inside["preprocess"]) == ([0, 1, 2, 3, 4], [])

    model.open("predict", 2)
    await frontend.until(lambda: 5 in model.inside["predict"])
    assert sorted(model.inside["predict"]) == [0, 1, 3, 4, 5]
    assert model.inside["postprocess"] == [2]  # while five others are in predict

    model.open("predict", 0)
    await frontend.until(lambda: 6 in model.inside["predict"])
    assert sorted(model.inside["postprocess"]) == [0, 2]

    model.open("postprocess", *range(10))
    model.open("predict", *range(10))
    assert [(await job.answer()).json for job in jobs] == list(range(10))
    assert frontend.served.slots.free == 5


class SyncStages:
    """The same in threads."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.inside = {"preprocess": 0, "predict": 0, "postprocess": 0}
        self.most = dict(self.inside)
        self.gates = {step: threading.Event() for step in self.inside}
        self.permits = threading.Semaphore(0)

    def enter(self, step: str) -> None:
        with self.lock:
            self.inside[step] += 1
            self.most[step] = max(self.most[step], self.inside[step])

    def leave(self, step: str) -> None:
        with self.lock:
            self.inside[step] -= 1

    def preprocess(self, inputs: Any) -> Any:
        self.enter("preprocess")
        assert self.gates["preprocess"].wait(DEADLINE)
        self.leave("preprocess")
        return inputs

    def predict(self, inputs: Any) -> Any:
        self.enter("predict")
        assert self.permits.acquire(timeout=DEADLINE)
        self.leave("predict")
        return inputs

    def postprocess(self, result: Any) -> Any:
        self.enter("postprocess")
        assert self.gates["postprocess"].wait(DEADLINE)
        return result

    def is_healthy(self) -> bool:
        return True


async def test_functions_overlap_in_threads_and_a_probe_waits_for_none(serve: Serve) -> None:
    model = SyncStages()
    frontend = serve(model, predict_concurrency=3)
    jobs = [frontend.infer(number) for number in range(60)]
    await frontend.until(lambda: model.inside["preprocess"] == 60)
    assert await asyncio.wait_for(frontend.runtime.is_healthy(), DEADLINE)
    model.gates["preprocess"].set()
    await frontend.until(lambda: model.inside["predict"] == 3 and frontend.served.slots.waiting == 57)
    model.permits.release(10)
    await frontend.until(lambda: model.inside["postprocess"] == 10 and model.inside["predict"] == 3)
    assert await asyncio.wait_for(frontend.runtime.is_healthy(), DEADLINE)
    model.permits.release(50)
    model.gates["postprocess"].set()
    assert [(await job.answer()).json for job in jobs] == list(range(60))
    assert (model.most["preprocess"], model.most["predict"]) == (60, 3)


class Held:
    """Predict does what the request asks for; `Held.gate` holds it."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.events: list[str] = []
        self.cleaned_up = False

    async def predict(self, inputs: str, request: Request) -> Any:
        self.events.append(inputs)
        return await getattr(self, inputs)(request)

    async def quick(self, request: Request) -> str:
        return "quick"

    async def hold(self, request: Request) -> str:
        await self.gate.wait()
        return "held"

    async def fail(self, request: Request) -> str:
        raise ValueError("private")

    async def exit(self, request: Request) -> str:
        raise SystemExit(3)

    async def cancels_itself(self, request: Request) -> str:
        raise asyncio.CancelledError

    async def stream(self, request: Request) -> AsyncIterator[str]:
        return self.chunks()

    async def chunks(self) -> AsyncIterator[str]:
        try:
            yield "a"
            await self.gate.wait()
            yield "b"
        finally:
            self.cleaned_up = True

    async def failing_stream(self, request: Request) -> Any:
        async def chunks() -> AsyncIterator[str]:
            yield "a"
            raise ValueError("private")

        return chunks()

    async def response(self, request: Request) -> StreamingResponse:
        return StreamingResponse(self.chunks())

    async def unencodable(self, request: Request) -> Any:
        return object()


@pytest.mark.parametrize(
    "what", ["quick", "fail", "exit", "cancels_itself", "failing_stream", "unencodable", "no such method"]
)
async def test_the_slot_is_free_after(serve: Serve, what: str) -> None:
    frontend = serve(Held())
    await frontend.infer(what).answer()
    assert frontend.served.slots.free == 1
    assert (await frontend.infer("quick").answer()).json == "quick"


@pytest.mark.parametrize("what", ["stream", "response"])
async def test_a_stream_holds_its_slot_to_its_end(serve: Serve, what: str) -> None:
    model = Held()
    frontend = serve(model)
    streamed = frontend.infer(what)
    await streamed.parts(1)
    waiting = frontend.infer("quick")
    await frontend.until(lambda: frontend.served.slots.waiting == 1)
    model.gate.set()
    assert (await streamed.answer()).chunks == [b"a", b"b"]
    assert (await waiting.answer()).json == "quick"


@pytest.mark.parametrize("what", ["stream", "response"])
async def test_a_stream_whose_client_leaves_gives_its_slot_back(serve: Serve, what: str) -> None:
    model = Held()
    frontend = serve(model)
    streamed = frontend.infer(what)
    await streamed.parts(1)
    waiting = frontend.infer("quick")
    await frontend.until(lambda: frontend.served.slots.waiting == 1)
    streamed.leave()
    assert (await waiting.answer()).json == "quick"
    assert model.cleaned_up
    assert (await streamed.answer()).rows[-1][2] == 499


async def test_a_client_that_leaves_while_waiting_is_dropped_at_once(serve: Serve) -> None:
    model = Held()
    frontend = serve(model)
    first = frontend.infer("hold")
    await frontend.until(lambda: model.events == ["hold"])
    second, third = frontend.infer("fail"), frontend.infer("quick")
    await frontend.until(lambda: frontend.served.slots.waiting == 2)
    second.leave()
    assert (await second.answer()).rows[-1][2] == 499
    assert frontend.served.slots.waiting == 1
    model.gate.set()
    assert (await first.answer()).json == "held"
    assert (await third.answer()).json == "quick"
    assert model.events == ["hold", "quick"]


async def test_a_plain_predict_runs_on_when_its_client_leaves_and_postprocess_is_skipped(serve: Serve) -> None:
    model = Stages()
    frontend = serve(model)
    job = frontend.infer(1)
    model.open("preprocess", 1)
    await frontend.until(lambda: model.inside["predict"] == [1])
    job.leave()
    assert frontend.served.slots.free == 0
    model.open("predict", 1)
    assert (await job.answer()).rows[-1][2] == 499
    assert frontend.served.slots.free == 1
    assert model.inside["postprocess"] == []


async def test_it_is_cancelled_where_its_owner_chose_so(serve: Serve) -> None:
    model = Held()
    frontend = serve(model, options={"cancelOnDisconnect": True})
    job = frontend.infer("hold")
    await frontend.until(lambda: model.events == ["hold"])
    job.leave()
    assert (await job.answer()).rows[-1][2] == 499
    assert frontend.served.slots.free == 1
    assert not job.task.cancelled()
    assert (await frontend.infer("cancels_itself").answer()).status == 500


async def test_alias_methods_take_no_slots_unless_they_are_limited(serve: Serve) -> None:
    class Model:
        def __init__(self) -> None:
            self.gate = asyncio.Event()
            self.running = 0

        async def predict(self, inputs: Any) -> Any:
            await self.gate.wait()
            return inputs

        async def completions(self, inputs: Any) -> Any:
            self.running += 1
            await self.gate.wait()
            return inputs

    free, limited = serve(Model()), serve(Model(), options={"aliasConcurrency": 2})
    free.infer(0)
    limited.infer(0)
    for frontend, expected in ((free, 4), (limited, 2)):
        jobs = [frontend.infer(number, endpoint="completions") for number in range(4)]
        await frontend.until(lambda frontend=frontend, expected=expected: frontend.model.running == expected)
        frontend.model.gate.set()
        assert [(await job.answer()).json for job in jobs] == [0, 1, 2, 3]


async def test_a_job_whose_client_left_before_it_began_does_not_run(serve: Serve) -> None:
    model = Held()
    frontend = serve(model)
    job = frontend.infer("quick")
    job.leave()
    answer = await job.answer()
    assert (answer.status, model.events) == (499, [])
