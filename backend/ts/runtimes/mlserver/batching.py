"""Adaptive batching: requests that arrive close together are one call of ``predict``.

A batch is run when it is full, or when its first request has waited as long as it may; several batches may run at once.
A request that is cancelled leaves its batch: what has not begun runs without it, what runs goes on for the others, and
is cancelled only when all its clients have left.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mlserver import types

from ts.protocol.log_records import Ids, running
from ts.runtimes.async_jobs import is_cancelled
from ts.runtimes.mlserver.merging import fingerprint, merge, split

Predict = Callable[[types.InferenceRequest], Awaitable[types.InferenceResponse]]


@dataclass(slots=True, eq=False)
class _Waiting:
    request: types.InferenceRequest
    answer: asyncio.Future[types.InferenceResponse]
    ids: Callable[[], Ids]


class _Gathering(NamedTuple):
    members: list[_Waiting]
    timer: asyncio.TimerHandle


class AdaptiveBatcher:
    """Gathers requests.

    Args:
        max_batch_time: The longest that the first request of a batch waits for others (seconds).
    """

    def __init__(self, predict: Predict, max_batch_size: int, max_batch_time: float) -> None:
        self._predict = predict
        self._max_batch_size = max_batch_size
        self._max_batch_time = max_batch_time
        self._gathering: dict[Hashable, _Gathering] = {}
        self._running: set[asyncio.Task[None]] = set()

    async def predict(self, request: types.InferenceRequest) -> types.InferenceResponse:
        """Answer a request, together with others. Raises Exception: whatever ``predict`` raised for the batch."""
        key = fingerprint(request)
        if key is None:
            return await self._predict(request)
        loop = asyncio.get_running_loop()
        waiting = _Waiting(request, loop.create_future(), running.get())
        gathering = self._gathering.get(key)
        if gathering is None:
            timer = loop.call_later(self._max_batch_time, self._start, key)
            gathering = self._gathering[key] = _Gathering([], timer)
        gathering.members.append(waiting)
        if len(gathering.members) == self._max_batch_size:
            self._start(key)
        try:
            return await waiting.answer
        finally:
            self._forget(key, waiting)

    def _forget(self, key: Hashable, waiting: _Waiting) -> None:
        """Make room for another request in the place of one that was cancelled before its batch began."""
        gathering = self._gathering.get(key)
        if gathering is None or waiting not in gathering.members:
            return
        gathering.members.remove(waiting)
        if not gathering.members:
            gathering.timer.cancel()
            del self._gathering[key]

    def _start(self, key: Hashable) -> None:
        members, timer = self._gathering.pop(key)
        timer.cancel()
        task = asyncio.get_running_loop().create_task(self._run(members))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

        def end_if_alone(_: asyncio.Future[types.InferenceResponse]) -> None:
            if all(member.answer.cancelled() for member in members):
                task.cancel()

        for member in members:
            member.answer.add_done_callback(end_if_alone)

    async def _run(self, members: Sequence[_Waiting]) -> None:
        wanted = [member for member in members if not member.answer.done()]
        if not wanted:
            return
        requests = [member.request for member in wanted]
        # Without this, all that the model logs would be about the request that completed the batch.
        running.set(lambda: [pair for member in wanted for pair in member.ids()])
        try:
            if len(requests) == 1:
                responses = [await self._predict(requests[0])]
            else:
                responses = split(await self._predict(merge(requests)), requests)
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and is_cancelled():
                raise  # every client has left; any other cancellation is the model's own, and its requests wait
            for member in wanted:
                if not member.answer.done():
                    member.answer.set_exception(error)
            return
        for member, response in zip(wanted, responses, strict=True):
            if not member.answer.done():
                member.answer.set_result(response)
