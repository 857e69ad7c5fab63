"""Plain functions in slots: the thread that has ended one call begins the next, and nothing is lost on the way."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.requests import Request
from starlette.responses import StreamingResponse
from tests.contracts.truss.worker.frontend import Frontend
from tests.unit.ts.sent_jobs import DEADLINE

from ts.contracts.truss.model_request import TrussClient
from ts.contracts.truss.slots import Slot, Slots, SlotWork
from ts.contracts.truss.threads import Threads

Serve = Callable[..., Frontend]


class Functions:
    """Predict does what the request asks for, in a thread."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.gate = threading.Event()
        self.in_loop = asyncio.Event()
        self.other_began = threading.Event()

    def predict(self, inputs: str, request: Request) -> Any:
        self.begun.append(inputs)
        return getattr(self, inputs)()

    def quick(self) -> str:
        self.other_began.set()
        return "quick"

    def hold(self) -> str:
        assert self.gate.wait(DEADLINE)
        return "held"

    def fail(self) -> str:
        raise ValueError("private")

    def exit(self) -> str:
        raise SystemExit(3)

    def runs_out(self) -> str:
        return next(iter(()))

    def unencodable(self) -> Any:
        return object()

    def coroutine(self) -> Any:
        async def wait() -> str:
            await self.in_loop.wait()
            return "waited"

        return wait()

    def stream(self) -> Any:
        def chunks() -> Iterator[str]:
            yield "a"
            assert self.gate.wait(DEADLINE)
            yield "b"

        return chunks()

    def response(self) -> StreamingResponse:
        return StreamingResponse(self.stream())


async def test_the_next_call_begins_while_the_event_loop_is_busy(serve: Serve) -> None:
    model = Functions()
    frontend = serve(model)
    first = frontend.infer("hold")
    await frontend.until(lambda: model.begun == ["hold"])
    second = frontend.infer("quick")
    await frontend.until(lambda: frontend.served.slots.waiting == 1)
    model.gate.set()
    assert model.other_began.wait(DEADLINE)  # which blocks the loop
    assert ((await first.answer()).json, (await second.answer()).json) == ("held", "quick")
    assert frontend.served.slots.free == 1


async def test_many_calls_follow_each_other_in_order(serve: Serve) -> None:
    class Model:
        def __init__(self) -> None:
            self.order: list[int] = []

        def predict(self, inputs: int) -> int:
            self.order.append(inputs)
            return inputs

    model = Model()
    frontend = serve(model)
    jobs = [frontend.infer(number) for number in range(200)]
    assert [(await job.answer()).json for job in jobs] == list(range(200))
    assert model.order == list(range(200))
    assert frontend.served.slots.free == 1


@pytest.mark.parametrize("what", ["quick", "fail", "exit", "runs_out", "unencodable", "no such method"])
async def test_the_slot_is_free_after(serve: Serve, what: str) -> None:
    model = Functions()
    frontend = serve(model)
    held = frontend.infer("hold")
    await frontend.until(lambda: model.begun == ["hold"])
    waiting, behind = frontend.infer(what), frontend.infer("quick")
    await frontend.until(lambda: frontend.served.slots.waiting == 2)
    model.gate.set()
    assert (await held.answer()).json == "held"
    assert (await waiting.answer()).status == (200 if what == "quick" else 500)
    assert (await behind.answer()).json == "quick"
    assert frontend.served.slots.free == 1


async def test_an_iterator_that_runs_out_in_any_step_is_an_error_like_others(serve: Serve) -> None:
    class Model:
        def preprocess(self, inputs: str) -> str:
            return next(iter(())) if inputs == "preprocess" else inputs

        def predict(self, inputs: str) -> str:
            return inputs

        def postprocess(self, result: str) -> str:
            return next(iter(())) if result == "postprocess" else result

    frontend = serve(Model())
    for step in ("preprocess", "postprocess"):
        assert (await frontend.infer(step).answer()).status == 500
    assert (await frontend.infer("fine").answer()).json == "fine"


@pytest.mark.parametrize("what", ["stream", "response", "coroutine"])
async def test_what_goes_on_behind_the_function_keeps_the_slot(serve: Serve, what: str) -> None:
    model = Functions()
    frontend = serve(model)
    model_went_on = frontend.infer(what)
    await frontend.until(lambda: model.begun == [what])
    waiting = frontend.infer("quick")
    await frontend.until(lambda: frontend.served.slots.waiting == 1)
    if what != "coroutine":
        await model_went_on.parts(1)
    assert model.begun == [what]
    model.gate.set()
    model.in_loop.set()
    assert (await model_went_on.answer()).body in (b"ab", b'"waited"')
    assert (await waiting.answer()).json == "quick"


async def test_who_has_left_is_not_begun(serve: Serve) -> None:
    model = Functions()
    frontend = serve(model)
    first = frontend.infer("hold")
    await frontend.until(lambda: model.begun == ["hold"])
    second, third = frontend.infer("fail"), frontend.infer("quick")
    await frontend.until(lambda: frontend.served.slots.waiting == 2)
    second.leave()
    model.gate.set()
    assert (await second.answer()).rows[-1][2] == 499
    assert ((await first.answer()).json, (await third.answer()).json) == ("held", "quick")
    assert model.begun == ["hold", "quick"]


#: What happens next: somebody comes with work for a thread or for the event loop, or one of those who are there is let
#: through, leaves, or has its task cancelled.
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["work", "coroutine"]), st.just(0)),
        st.tuples(st.sampled_from(["let through", "leave", "cancel"]), st.integers(min_value=0, max_value=7)),
        st.just(("run", 0)),
    ),
    max_size=40,
)


class Player:
    """Plays steps on slots with real threads."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.slots = Slots(count)
        self.threads = Threads("test", count)
        self.clients: list[TrussClient] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.gates: list[threading.Event] = []
        self.lock = threading.Lock()
        self.entered: list[int] = []
        self.inside = self.most = 0

    def enter(self, number: int) -> None:
        with self.lock:
            self.entered.append(number)
            self.inside += 1
            self.most = max(self.most, self.inside)

    def leave(self) -> None:
        with self.lock:
            self.inside -= 1

    def in_thread(self, number: int) -> None:
        self.enter(number)
        assert self.gates[number].wait(DEADLINE)
        self.leave()

    async def hold(self, number: int, *, in_thread: bool) -> None:
        work = SlotWork(lambda: self.in_thread(number), lambda result: False) if in_thread else None
        if not await self.slots.acquire(self.clients[number], work):
            return
        slot = Slot(self.slots, work)
        try:
            if work is None:
                self.enter(number)
                try:
                    while not self.gates[number].is_set():
                        await asyncio.sleep(0)
                finally:
                    self.leave()
                return
            if not work.begun:
                self.slots.begin(work, self.threads)
            await work.result()
        finally:
            slot.release()
            slot.release()

    async def play(self, steps: list[tuple[str, int]]) -> None:
        for step, index in steps:
            if step in ("work", "coroutine"):
                self.clients.append(TrussClient())
                self.gates.append(threading.Event())
                self.tasks.append(asyncio.create_task(self.hold(len(self.tasks), in_thread=step == "work")))
            elif step == "run":
                await asyncio.sleep(0)
            elif self.tasks:
                number = index % len(self.tasks)
                if step == "let through":
                    self.gates[number].set()
                elif step == "leave":
                    self.clients[number].leave()
                else:
                    self.tasks[number].cancel()
        for gate in self.gates:
            gate.set()
        if self.tasks:
            _, late = await asyncio.wait(self.tasks, timeout=DEADLINE)
            assert not late
        assert (self.slots.free, self.slots.waiting, self.inside) == (self.count, 0, 0)
        assert self.most <= self.count
        if self.count == 1:
            assert self.entered == sorted(self.entered)  # whoever came first, went in first
        self.threads.close()


@settings(deadline=None)
@given(count=st.integers(min_value=1, max_value=3), steps=STEPS)
def test_slots_go_from_thread_to_thread_and_all_come_back(count: int, steps: list[tuple[str, int]]) -> None:
    asyncio.run(Player(count).play(steps))


async def test_work_that_was_never_begun_ends_when_its_threads_are_closed() -> None:
    threads, gate = Threads("test", 1), threading.Event()
    first = asyncio.create_task(threads.run(gate.wait, DEADLINE))
    await asyncio.sleep(0)
    second = asyncio.create_task(threads.run(time.monotonic))
    await asyncio.sleep(0)
    threads.close()
    gate.set()
    assert await first
    with pytest.raises(asyncio.CancelledError):
        await second
