"""The calls of other models that one worker's model has open. Each belongs to a job of the worker, and ends with it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import Any, NamedTuple

from torchserve_py.base.metrics.model_metrics import EndedJob
from torchserve_py.core.jobs.call import Call
from torchserve_py.core.jobs.function_call import CallModel, CallOutcome, ModelCall
from torchserve_py.core.jobs.parts import Part
from ts.protocol import messages
from ts.protocol.frames import Buffer, encode
from ts.protocol.messages import MAX_OPEN_CALLS, STATUS_CANCELLED

logger = logging.getLogger(__name__)

_OVER = CallOutcome(STATUS_CANCELLED, "", b"", "the request that makes the call is over")
_DEFECT = CallOutcome(500, "", b"", "the server failed to make the call; its log says why")


class _OpenCall(NamedTuple):
    job_id: str
    task: asyncio.Task[None]
    #: Set when the worker has used the last part of the answer.
    wants_more: asyncio.Event


def _are_of_a_call(fields: list[Any]) -> bool:
    return [*map(type, fields)] in ([str, str, str, bytes], [str, str, str, bytearray])


class WorkerCalls:
    """Takes the messages of a worker about calls, and sends it what comes of these with ``send``."""

    def __init__(self, call: CallModel, send: Callable[[list[Buffer]], None]) -> None:
        self._call = call
        self._send = send
        self._open: dict[int, _OpenCall] = {}
        #: The numbers of the open calls of each job that has made one.
        self._of_job: dict[str, set[int]] = {}

    def received(self, message: list[Any], jobs: Mapping[str, Call]) -> None:
        """Take a message of the worker, which has these jobs. Raises ValueError: it is malformed."""
        match message:
            case [messages.CALL, str() as job_id, int() as number, *fields] if _are_of_a_call(fields):
                self._begin(jobs.get(job_id), number, ModelCall._make(fields))
            case [messages.NEXT_PART, int() as number]:
                if number in self._open:
                    self._open[number].wants_more.set()
                else:  # it has ended with its job
                    self._answer(number, _OVER)
            case [messages.DROP_CALL, int() as number]:
                self._drop(number)
            case [kind, *_]:
                raise ValueError(f"a malformed message {kind!r}")

    def close(self) -> None:
        """Give up all calls: the worker is gone."""
        for number in list(self._open):
            self._drop(number)

    def _begin(self, job: Call | None, number: int, call: ModelCall) -> None:
        if number in self._open or len(self._open) >= MAX_OPEN_CALLS:
            raise ValueError(f"call {number} is open already, or one of more than {MAX_OPEN_CALLS}")
        if job is None or job.ended:  # its client has left meanwhile
            self._answer(number, _OVER)
            return
        if job.id not in self._of_job:
            self._follow(job)
        self._of_job[job.id].add(number)
        wants_more = asyncio.Event()
        task = asyncio.create_task(self._run(job, number, call, wants_more))
        self._open[number] = _OpenCall(job.id, task, wants_more)

    def _follow(self, job: Call) -> None:
        """Let the calls of a job end with it."""
        self._of_job[job.id] = set()
        then = job.on_end

        def end(ended: EndedJob, last: Part | None) -> None:
            for number in sorted(self._of_job[job.id]):
                self._drop(number)
                # Behind the message that cancels the job, if there is one: the handler is to see that, and no failure.
                asyncio.get_running_loop().call_soon(self._answer, number, _OVER)
            del self._of_job[job.id]
            if then is not None:
                then(ended, last)

        job.on_end = end

    async def _run(self, job: Call, number: int, call: ModelCall, wants_more: asyncio.Event) -> None:
        outcome = _DEFECT
        try:
            async with aclosing(self._call(job, call)) as outcomes:
                async for outcome in outcomes:
                    if not outcome.more:
                        break
                    self._answer(number, outcome)
                    await wants_more.wait()
                    wants_more.clear()
        except Exception:
            logger.exception("A call of %s by request %s could not be made", call.function[:80], job.id)
            outcome = _DEFECT
        self._forget(number)
        self._answer(number, outcome)

    def _drop(self, number: int) -> None:
        if (dropped := self._forget(number)) is not None:
            dropped.task.cancel()

    def _forget(self, number: int) -> _OpenCall | None:
        known = self._open.pop(number, None)
        if known is not None:
            self._of_job[known.job_id].discard(number)
        return known

    def _answer(self, number: int, outcome: CallOutcome) -> None:
        self._send(encode([messages.CALLED, number, *outcome], large=True))
