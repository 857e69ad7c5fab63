"""Independent requests over one call of `ModelStreamInfer`, each with its own model, version and id.

Requests run concurrently, those of one sequence one after the other. Responses come in the order of the requests; but
a model that gives several responses to a request, or may, sends them as they are ready and holds nobody up. The call
holds a bounded number of requests and reads no further while it is full, so that gRPC's flow control slows the client
down.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import TYPE_CHECKING, Any, Final

from torchserve_py.core.errors import ModelError
from torchserve_py.doors.errors import DoorError
from torchserve_py.doors.grpc.lanes import MAX_REQUESTS, Lane
from torchserve_py.doors.grpc.open_inference_messages import OpenRequest, read_request, value_of
from torchserve_py.doors.pipeline import Exchange
from torchserve_py.doors.sequence_parameters import ID

if TYPE_CHECKING:
    from torchserve_py.core.serving import ServedModel
    from torchserve_py.doors.grpc.open_inference_jobs import OpenInferenceJobs
    from torchserve_py.jobs.parts import Part, Parts

#: What a request may be refused with.
REFUSALS: Final = (DoorError, ModelError)

#: Sends a serialized response to a request, and whether it is the last one; b"" stands for an end without a response.
Send = Callable[[OpenRequest, "ServedModel", "Part", bool], Awaitable[None]]
#: Tells why a request failed (None: it could not be read); raises it if that ends the call.
Refuse = Callable[[OpenRequest | None, Exception], Awaitable[None]]


class _Pending:
    """A request that is not over.

    Attributes:
        size: How many bytes it has.
        request: None if it could not be read.
        model: None if there is none for it.
        error: Why it cannot be submitted, if that is known already.
        before: Done when every request before it that keeps to the order is answered.
        answered: Done when it is, too.
        ordered: Whether it keeps to the order.
        lane: That of its sequence; None if it belongs to none.
        key: The lane's.
    """

    __slots__ = ("answered", "before", "error", "key", "lane", "model", "ordered", "request", "size")

    def __init__(self, size: int, before: asyncio.Future[None] | None) -> None:
        self.size = size
        self.request: OpenRequest | None = None
        self.model: ServedModel | None = None
        self.error: Exception | None = None
        self.before = before
        self.ordered = True
        self.answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.lane: Lane[_Pending] | None = None
        self.key: Hashable = None

    async def turn(self) -> None:
        """Wait for those before it, if it keeps to the order."""
        if self.ordered and self.before is not None and not self.before.done():
            await asyncio.wait((self.before,))

    def leave_order(self) -> None:
        """It waits for nobody from now on, and nobody for it: those behind it wait for those before it."""
        self.ordered = False
        if self.before is None or self.before.done():
            self._settle()
        else:
            self.before.add_done_callback(lambda _: self._settle())

    def _settle(self) -> None:
        if not self.answered.done():
            self.answered.set_result(None)


class RequestPipe:
    """The requests of one call.

    Args:
        jobs: Where they become jobs.
        metadata: The call's.
        max_bytes: How much it holds at once.
        tasks: Where their answers are given.
        send: Sends a response.
        refuse: Tells of an error.
    """

    def __init__(
        self,
        jobs: OpenInferenceJobs,
        metadata: Any,
        max_bytes: int,
        tasks: asyncio.TaskGroup,
        send: Send,
        refuse: Refuse,
    ) -> None:
        self._jobs = jobs
        self._metadata = metadata
        self._max_bytes = max_bytes
        self._tasks = tasks
        self._send = send
        self._refuse = refuse
        self._held = 0
        self._held_bytes = 0
        self._room = asyncio.Event()
        self._lanes: dict[Hashable, Lane[_Pending]] = {}
        self._last: asyncio.Future[None] | None = None
        self._running: set[Parts] = set()

    async def room(self) -> None:
        """Wait until it takes another request."""
        while self._held >= MAX_REQUESTS or self._held_bytes >= self._max_bytes:
            self._room.clear()
            await self._room.wait()

    def take(self, body: bytes) -> None:
        """Take a serialized request."""
        pending = _Pending(len(body), self._last)
        self._held += 1
        self._held_bytes += pending.size
        try:
            pending.request = read_request(body)
            pending.model = self._jobs.model(pending.request)
        except REFUSALS as error:
            pending.error = error
        if pending.model is not None and self._jobs.declared(pending.model).get("decoupled"):
            pending.leave_order()
        else:
            self._last = pending.answered
        self._queue(pending)

    def cancel(self) -> None:
        """Give up: the client is gone, or the call has ended."""
        for parts in self._running:
            parts.cancel()

    def _queue(self, pending: _Pending) -> None:
        """Submit a request, or let it wait behind others of its sequence."""
        pending.key = _sequence_of(pending)
        if pending.key is None:
            self._start(pending)
            return
        lane = self._lanes.get(pending.key)
        if lane is None:
            lane = self._lanes[pending.key] = Lane(pending.model)
        pending.lane = lane
        lane.waiting.append(pending)
        lane.held += 1
        self._submit_more(lane)

    def _submit_more(self, lane: Lane[_Pending]) -> None:
        while lane.waiting and lane.takes_more:
            lane.unanswered += 1
            lane.last = self._start(lane.waiting.popleft(), None if lane.interleaves else lane.last)

    def _start(self, pending: _Pending, previous: asyncio.Task[None] | None = None) -> asyncio.Task[None]:
        exchange = None
        if pending.error is None and pending.model is not None and pending.request is not None:
            try:
                exchange = self._jobs.submit(pending.model, pending.request, self._metadata)
                self._running.add(exchange.parts)
            except REFUSALS as error:
                pending.error = error
        return self._tasks.create_task(self._answer(pending, exchange, previous))

    async def _answer(self, pending: _Pending, exchange: Exchange | None, previous: asyncio.Task[None] | None) -> None:
        """Send the response of one request, after that of the ``previous`` one of its sequence."""
        if previous is not None:
            await asyncio.wait((previous,))
        if exchange is None:
            self._begun(pending)
        else:
            try:
                await self._relay(pending, exchange)
            except REFUSALS as error:
                pending.error = error
            self._running.discard(exchange.parts)
        if pending.error is not None:
            await pending.turn()
            await self._refuse(pending.request, pending.error)
        pending.leave_order()
        self._over(pending)

    async def _relay(self, pending: _Pending, exchange: Exchange) -> None:
        request, model = pending.request, pending.model
        if request is None or model is None:
            return  # there is no job then
        # One message says that it is the last. A model may end without a further response, so that one has to be held
        # back to say so, unless the client wants to hear of the end in a message of its own.
        holds_back = not request.wants_empty_final
        held: Part | None = None
        try:
            part = await exchange.next()
        finally:
            self._begun(pending)
        if part.more:
            pending.leave_order()
        else:
            await pending.turn()
        while True:
            if held is not None and part.body:
                await self._send(request, model, held, False)
                held = None
            if part.more and holds_back:
                held = part if part.body else held
            elif held is not None:
                await self._send(request, model, held._replace(headers=part.headers or held.headers), True)
            elif part.body or not part.more:
                await self._send(request, model, part, not part.more)
            if not part.more:
                return
            try:
                part = await exchange.next()
            except REFUSALS:
                if held is not None:
                    await self._send(request, model, held, False)
                raise

    def _begun(self, pending: _Pending) -> None:
        """A request has the first part of its response: it waits no more in the queue of its sequence."""
        if pending.lane is not None:
            pending.lane.unanswered -= 1
            self._submit_more(pending.lane)

    def _over(self, pending: _Pending) -> None:
        """A request has left the call."""
        self._held -= 1
        self._held_bytes -= pending.size
        self._room.set()
        if pending.lane is not None:
            pending.lane.held -= 1
            if not pending.lane.held:
                del self._lanes[pending.key]


def _sequence_of(pending: _Pending) -> Hashable:
    """What tells the sequence of a request from others; None if it belongs to none."""
    request, model = pending.request, pending.model
    if request is None or model is None or not model.is_stateful:
        return None
    named = ID in request.head.parameters  # or else by the metadata, which all requests of the call share
    return model.name, model.version, repr(value_of(request.head.parameters[ID])) if named else ""
