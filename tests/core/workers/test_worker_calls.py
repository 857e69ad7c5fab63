"""The calls that a worker's model makes of others, at the server's end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from tests.base.metrics.records import Ended

from torchserve_py.base.metrics.model_metrics import EndedJob
from torchserve_py.core.jobs.call import Call
from torchserve_py.core.jobs.function_call import CallOutcome, ModelCall
from torchserve_py.core.workers.worker_calls import WorkerCalls
from ts.protocol.frames import Buffer, FrameBuffer
from ts.protocol.messages import CALL, CALLED, DROP_CALL, MAX_OPEN_CALLS, NEXT_PART

ENDED = Ended(1.0, 2.0, 2.5)


class Bench:
    """A worker with one job; calls end when they are let go."""

    def __init__(self) -> None:
        self.made: list[ModelCall] = []
        self.cancelled = 0
        self.closed = 0
        self.go = asyncio.Event()
        self.sent: list[list[Any]] = []
        self.calls = WorkerCalls(self._call, self._send)
        self.job = Call((), b"")
        self.job.id = "j"

    async def _call(self, by: Call, call: ModelCall) -> AsyncGenerator[CallOutcome]:
        assert by is self.job
        self.made.append(call)
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if call.function == "broken":
            raise KeyError
        if call.function == "stream":
            try:
                yield CallOutcome(200, "text/plain", b"one", more=True)
                yield CallOutcome(200, "text/plain", b"two", more=True)
            except GeneratorExit:
                self.closed += 1
                raise
        yield CallOutcome(200, "text/plain", b"done")

    def _send(self, buffers: list[Buffer]) -> None:
        frames = FrameBuffer()
        for data in map(bytes, buffers):
            frames.writable()[: len(data)] = data
            frames.received(len(data))
        self.sent += frames.messages()

    def receive(self, *message: Any) -> None:
        self.calls.received(list(message), {"j": self.job})

    def call(self, number: int = 1, function: str = "embed", job_id: str = "j") -> None:
        self.receive(CALL, job_id, number, function, "text/plain", "*/*", b"hello")


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_what_comes_of_a_call_is_sent() -> None:
    bench = Bench()
    bench.call(1)
    bench.call(2, "broken")
    await turns()
    assert bench.made[0] == ModelCall("embed", "text/plain", "*/*", b"hello")
    assert bench.sent == []
    bench.go.set()
    await turns()
    defect = "the server failed to make the call; its log says why"
    assert bench.sent == [
        [CALLED, 1, 200, "text/plain", b"done", None, False],
        [CALLED, 2, 500, "", b"", defect, False],
    ]
    bench.call(1)  # a number may be used again


async def test_each_part_of_a_stream_waits_until_the_one_before_is_used() -> None:
    bench = Bench()
    bench.go.set()
    bench.call(1, "stream")
    await turns()
    assert [each[4] for each in bench.sent] == [b"one"]
    bench.receive(NEXT_PART, 1)
    await turns()
    assert bench.sent[-1] == [CALLED, 1, 200, "text/plain", b"two", None, True]
    bench.receive(NEXT_PART, 1)
    await turns()
    assert bench.sent[-1] == [CALLED, 1, 200, "text/plain", b"done", None, False]
    bench.receive(NEXT_PART, 1)
    assert bench.sent[-1] == [CALLED, 1, 499, "", b"", "the request that makes the call is over", False]


async def test_a_stream_ends_with_its_job() -> None:
    bench = Bench()
    bench.go.set()
    bench.call(1, "stream")
    await turns()
    assert (bench.sent[-1][4], bench.closed) == (b"one", 0)
    assert bench.job.on_end is not None
    bench.job.on_end(ENDED, None)
    await turns()
    assert (bench.sent[-1][2], bench.closed) == (499, 1)


async def test_calls_end_with_their_job() -> None:
    bench = Bench()
    ended: list[EndedJob] = []
    bench.job.on_end = lambda record, last: ended.append(record)
    for number in range(3):
        bench.call(number)
    await turns()
    bench.receive(DROP_CALL, 0)
    assert bench.job.on_end is not None
    bench.job.on_end(ENDED, None)
    bench.job.ended = True
    bench.call(7)
    await turns()
    assert (bench.cancelled, ended) == (3, [ENDED])
    over = "the request that makes the call is over"
    assert sorted(each[1:] for each in bench.sent) == [[number, 499, "", b"", over, False] for number in (1, 2, 7)]


async def test_the_calls_of_a_lost_worker_and_of_unknown_jobs_end() -> None:
    bench = Bench()
    bench.call(1)
    bench.call(2, job_id="other")
    await turns()
    assert [each[1] for each in bench.sent] == [2]
    bench.calls.close()
    await turns()
    assert bench.cancelled == 1
    assert bench.job.on_end is not None
    bench.job.on_end(ENDED, None)


@pytest.mark.parametrize(
    "message",
    [
        [CALL],
        [CALL, "j", "1", "embed", "text/plain", "*/*", b""],
        [CALL, "j", 1, "embed", "text/plain", "*/*", "text"],
        [CALL, "j", 1, "embed", None, "*/*", b""],
        [CALL, "j", 1, "embed", "text/plain", "*/*", b"", 1],
        [CALL, 5, 1, "embed", "text/plain", "*/*", b""],
        [DROP_CALL],
        [DROP_CALL, "1"],
        [NEXT_PART, "1"],
    ],
)
async def test_a_malformed_message_is_an_error(message: list[Any]) -> None:
    with pytest.raises(ValueError, match="malformed"):
        Bench().receive(*message)


async def test_a_worker_cannot_open_more_calls_than_agreed_or_one_twice() -> None:
    bench = Bench()
    for number in range(MAX_OPEN_CALLS):
        bench.call(number)
    with pytest.raises(ValueError, match="1024"):
        bench.call(MAX_OPEN_CALLS)
    bench.receive(DROP_CALL, 0)
    with pytest.raises(ValueError, match="call 1 is open already"):
        bench.call(1)
    bench.calls.close()
