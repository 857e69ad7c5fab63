"""Calls that carry any number of requests while they are answered.

A call holds a bounded number of requests and reads no further while it is full, so that gRPC's flow control slows the
client down. Requests run concurrently, except those of one sequence, of which as many are submitted as the sequence's
queue takes: a client may send ahead. The responses of a sequence come in the order of its requests (with continuous
batching, where a request can join one that streams, as their parts are ready).
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import Any, Final

from torchserve_py.apis.grpc.grpc_call import GrpcCall, send
from torchserve_py.base.causes import Cause
from torchserve_py.base.task_group import TaskGroup
from torchserve_py.core.serving.errors import ModelError
from torchserve_py.core.serving.serving import ServedModel
from torchserve_py.endpoints.failures import EndpointError, failure_of_job
from torchserve_py.net.http2.rpc import Rpc

#: How many requests of one call may be unanswered, and how many of the largest size.
MAX_REQUESTS: Final = 64
MAX_LARGEST_REQUESTS: Final = 4

#: The errors by which a request is refused or fails; others end the call.
REQUEST_ERRORS: Final = (EndpointError, ModelError)


class CarriedRequest:
    """A request of a two-way call, as its API has read it; ``size`` is in bytes.

    ``failure`` returns the messages that tell why the request failed, or raises the error if that ends the call.
    """

    def __init__(self, size: int, failure: Callable[[CarriedRequest, Exception], Iterable[Any]]) -> None:
        self.size = size
        self.failure = failure
        #: The model that the request names; None if there is no such model.
        self.model: ServedModel | None = None
        #: The key of the request's sequence among those of the call; None if the request belongs to none.
        self.sequence: Hashable = None
        #: Makes a job of the request; may raise one of `REQUEST_ERRORS`.
        self.submit: Callable[[], GrpcCall] | None = None
        #: The request as a job, once it is submitted, or why it is none: one of `REQUEST_ERRORS`.
        self.call: GrpcCall | None = None
        self.refusal: Exception | None = None
        #: Whether the response waits for those to earlier ordered requests of the call, unless it is a stream.
        self.is_ordered = False
        #: Whether the response need not wait any more.
        self.turn = asyncio.Event()

    def refuse(self, error: Exception) -> None:
        """Note why the request becomes no job. The traceback would hold the frames, and these the request."""
        self.refusal = error.with_traceback(None)


class _OpenSequence:
    """The requests of one sequence that have not been answered in full."""

    def __init__(self, model: ServedModel | None) -> None:
        stateful = model if model is not None and model.is_stateful else None
        #: Requests that were read and not submitted.
        self.waiting: deque[CarriedRequest] = deque()
        #: How many requests were submitted and have no part of their response yet.
        self.unanswered = 0
        #: How many requests were read and not answered in full.
        self.held = 0
        #: The task that answers the request which was submitted last.
        self.last: asyncio.Task[None] | None = None
        #: Whether responses need not come in the order of the requests.
        self.interleaves = stateful is not None and stateful.config.continuous
        #: How many requests the queue of the sequence certainly has room for.
        self.limit = MAX_REQUESTS if stateful is None else stateful.config.max_sequence_job_queue_size


class TwoWayCall(ABC):
    """One call. One task reads requests, others answer them; if one of the tasks fails, all end.

    It is in ``open_calls`` while it runs, and holds up to `MAX_LARGEST_REQUESTS` times ``max_request_size`` bytes.
    """

    def __init__(self, rpc: Rpc, open_calls: set[TwoWayCall], max_request_size: int) -> None:
        self._rpc = rpc
        self._open_calls = open_calls
        self._tasks = TaskGroup()
        self._reader: asyncio.Task[None] | None = None
        self._is_closed = False
        self._max_bytes = max_request_size * MAX_LARGEST_REQUESTS
        self._held = 0
        self._held_bytes = 0
        self._room = asyncio.Event()
        self._sequences: dict[Hashable, _OpenSequence] = {}
        #: The ordered requests whose responses are not complete, and are no streams.
        self._order: dict[CarriedRequest, None] = {}
        self._calls: set[GrpcCall] = set()

    async def run(self) -> None:
        """Carry the call to its end; every job of it has ended, or is cancelled, when this returns or raises.

        Raises EndpointError: the server shuts down, or the failure of a request ends the call; ModelError: a request
        names no model that there is, and that ends the call.
        """
        self._open_calls.add(self)
        failure: BaseException | None = None
        try:
            async with self._tasks:
                self._reader = self._tasks.create_task(self._read())
        except BaseExceptionGroup as errors:
            failure = errors.exceptions[0]
        finally:
            self._open_calls.discard(self)
            for call in self._calls:
                call.cancel()
            # The tasks that failed have tracebacks, whose frames hold this call and its requests.
            self._reader = None
            self._sequences.clear()
        if failure is not None:
            try:
                raise failure
            finally:
                del failure  # its traceback holds this frame
        if self._is_closed:
            raise EndpointError(failure_of_job(Cause.draining, "", None))

    def close(self) -> None:
        """Read no more requests; end when those that were read are answered."""
        self._is_closed = True
        if self._reader is not None:
            self._reader.cancel()

    @abstractmethod
    async def _read(self) -> None:
        """Read and `_take` requests until the client has sent its last one."""

    async def _next(self) -> Any:
        """Wait until the call has room for another request; return its message, or EOF after the last."""
        while self._held >= MAX_REQUESTS or self._held_bytes >= self._max_bytes:
            self._room.clear()
            await self._room.wait()
        return await self._rpc.read()

    def _take(self, request: CarriedRequest) -> None:
        """Submit a request, or let it wait behind others of its sequence."""
        self._held += 1
        self._held_bytes += request.size
        if request.is_ordered:
            self._order[request] = None
            self._next_turn()
        else:
            request.turn.set()
        if request.sequence is None:
            self._start(request, None)
            return
        sequence = self._sequences.get(request.sequence)
        if sequence is None:
            sequence = self._sequences[request.sequence] = _OpenSequence(request.model)
        sequence.waiting.append(request)
        sequence.held += 1
        self._submit_more(sequence)

    def _leave_order(self, request: CarriedRequest) -> None:
        """Let later requests wait only for those before this one, which waits for none."""
        request.turn.set()
        self._order.pop(request, None)
        self._next_turn()

    def _next_turn(self) -> None:
        if self._order:
            next(iter(self._order)).turn.set()

    def _submit_more(self, sequence: _OpenSequence) -> None:
        while sequence.waiting and sequence.unanswered < sequence.limit:
            sequence.unanswered += 1
            sequence.last = self._start(sequence.waiting.popleft(), None if sequence.interleaves else sequence.last)

    def _start(self, request: CarriedRequest, previous: asyncio.Task[None] | None) -> asyncio.Task[None]:
        if request.submit is not None:
            try:
                request.call = request.submit()
                self._calls.add(request.call)
                self._rpc.log_fields = request.call.log_fields
            except REQUEST_ERRORS as error:
                request.refuse(error)
            request.submit = None  # it holds the body, which is the job's now
        return self._tasks.create_task(self._answer(request, previous))

    async def _answer(self, request: CarriedRequest, previous: asyncio.Task[None] | None) -> None:
        """Send the response to a request, after that to the ``previous`` one of its sequence."""
        if previous is not None:
            await asyncio.wait((previous,))
        call, refusal, part = request.call, request.refusal, None
        if call is not None:
            try:
                part = await call.next_usable()
            except EndpointError as error:
                refusal = error.with_traceback(None)
        sequence = self._sequences.get(request.sequence)
        if sequence is not None:  # a request has left its queue
            sequence.unanswered -= 1
            self._submit_more(sequence)
        if part is not None and part.more:
            self._leave_order(request)
        await request.turn.wait()
        if call is not None and part is not None:
            try:
                await call.relay(part)
            except EndpointError as error:
                refusal = error.with_traceback(None)
        if refusal is not None:
            await send(self._rpc, request.failure(request, refusal))
        self._over(request, sequence)

    def _over(self, request: CarriedRequest, sequence: _OpenSequence | None) -> None:
        """Note that a request has been answered in full."""
        self._leave_order(request)
        if request.call is not None:
            self._calls.discard(request.call)
        self._held -= 1
        self._held_bytes -= request.size
        self._room.set()
        if sequence is not None:
            sequence.held -= 1
            if not sequence.held:
                del self._sequences[request.sequence]
