"""A WebSocket for responses: each ``response.create`` is a request for a response, whose events are messages.

    GET /v1/responses

The turns of a lane (``stream_id``; those without one are a lane, too) are answered one after another, and different
lanes beside each other. If the latest response of a lane is not kept (``store: false``), it stays in memory with what
leads to it, so that a further turn of the connection can continue it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from torchserve_py.apis.live.session_ends import FULL, GOING, UNSUPPORTED_DATA, SessionOver
from torchserve_py.apis.live.socket_session import OpenSocket
from torchserve_py.apis.openai.responses_dialect import DIALECT, GONE, bad_field, no_previous
from torchserve_py.apis.openai.socket_events import BadEvent, EventReader, Turn, error_event, in_lane, read_turn
from torchserve_py.core.jobs.parts import Part
from torchserve_py.endpoints.credentials import Credential
from torchserve_py.endpoints.failures import EXPECTED_ERRORS, EndpointError, Failure, failure_of
from torchserve_py.net.http1.request import Request
from torchserve_py.net.request_budget import NoRoomError
from torchserve_py.net.websocket import Kind, Message, WebSocket
from ts.apis.openai.openai_calls import ITEMS_EVENT, ResponsesCall

if TYPE_CHECKING:
    from torchserve_py.apis.openai.responses_endpoints import ResponsesEndpoints
    from torchserve_py.apis.openai.turn_call import TurnCall

#: Seconds after which the client has to connect anew, as at OpenAI.
LIFETIME: Final = 3600.0
#: Turns that are answered or wait, and lanes that have a name, of one connection.
_MOST_TURNS: Final = 16
_MOST_LANES: Final = 32
_OLD: Final = bad_field(
    f"The connection has lasted {LIFETIME / 60:g} minutes; connect again.", None, "websocket_connection_limit_reached"
)


class _Items(msgspec.Struct):
    """What a worker returns of a response that is not kept."""

    id: str
    items: list[msgspec.Raw]


class _Latest(NamedTuple):
    """The latest response of a lane, if it is not kept: its id, and the items that lead on from it, as JSON."""

    id: str
    history: bytes


class _Lane:
    """Turns that are answered one after another."""

    def __init__(self) -> None:
        self.waiting: asyncio.Queue[Turn] = asyncio.Queue()
        self.latest: _Latest | None = None


class ResponsesSocket(OpenSocket):
    """The socket, from the upgrade to the close."""

    def __init__(self, socket: WebSocket, endpoint: ResponsesEndpoints, request: Request) -> None:
        super().__init__(socket, is_text=True)
        self._endpoint = endpoint
        self._request = request
        self._lanes: dict[str | None, _Lane] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._count = 0
        self._answered: asyncio.Future[None] | None = None
        self._is_ending = False

    @property
    def is_waiting(self) -> bool:
        return self._count > 0

    @property
    def patience(self) -> float:
        return self._endpoint.settings.default_response_timeout

    async def run(self) -> None:
        """Serve the socket until the client leaves or the server closes it; what is not answered then is cancelled."""
        try:
            await super().run()
        finally:
            self._closed_with.cancel()
            for task in self._tasks:
                task.cancel()
            for lane in self._lanes.values():
                self._forget(lane)

    def _work(self) -> list[Coroutine[Any, Any, None]]:
        return [self._receive(), self._grow_old()]

    # The end

    async def _grow_old(self) -> None:
        await asyncio.sleep(LIFETIME)
        await self._end_with(SessionOver(1000, _OLD.message), _OLD)

    def close_later(self) -> None:
        """Close the socket once all turns have their answers, because the server shuts down."""
        self._begin(self._end_with(SessionOver(*GOING)))

    async def _end_with(self, over: SessionOver, failure: Failure | None = None) -> None:
        """Close the socket once all turns have their answers; ``failure`` is what the client gets last."""
        self._is_ending = True
        await self._until_fewer(1)
        if failure is not None:
            await self._fail(failure)
        raise over

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        task.add_done_callback(self._done)
        self._tasks.append(task)

    def _done(self, task: asyncio.Task[None]) -> None:
        """Let the socket end as a task has."""
        if not task.cancelled() and (error := task.exception()) is not None and not self._closed_with.done():
            self._closed_with.set_exception(error)

    # Turns

    async def take(self, message: Message) -> None:
        if message.kind is not Kind.text:
            raise SessionOver(UNSUPPORTED_DATA, "Messages of this API are texts.")
        await self._until_fewer(_MOST_TURNS)
        if self._is_ending:
            return  # the client gets to know with the end
        try:
            turn = read_turn(message.data)
            lane = self._lane(turn.lane)
        except BadEvent as error:
            await self._fail(error.failure, error.lane)
            return
        try:
            self._socket.hold(turn.size)
        except NoRoomError:
            raise SessionOver(*FULL) from None
        self._count += 1
        lane.waiting.put_nowait(turn)

    def _lane(self, name: str | None) -> _Lane:
        """Return the lane with a name. Raises BadEvent: there would be too many."""
        lane = self._lanes.get(name)
        if lane is None:
            if name is not None and len(self._lanes.keys() - {None}) >= _MOST_LANES:
                message = f"The connection has {_MOST_LANES} values of stream_id, and can have no further ones."
                raise BadEvent(message, "stream_id", "websocket_stream_limit_reached", name)
            lane = self._lanes[name] = _Lane()
            self._begin(self._answer(lane))
        return lane

    async def _answer(self, lane: _Lane) -> None:
        """Answer the turns of a lane in their order."""
        while True:
            turn = await lane.waiting.get()
            try:
                await self._respond(turn, lane)
            except EndpointError as error:
                self._evict(turn.previous)
                is_gone = turn.previous is not None and error.failure.cause in GONE
                await self._fail(no_previous(turn.previous) if is_gone else error.failure, turn.lane)
            finally:
                self._count -= 1
                self._socket.let_go(turn.size)
            self.active_at = self.clock.now()
            if self._answered is not None and not self._answered.done():
                self._answered.set_result(None)

    async def _fail(self, failure: Failure, lane: str | None = None) -> None:
        await self.send(error_event(DIALECT.failure(failure), lane))

    async def _until_fewer(self, count: int) -> None:
        """Wait until fewer turns than this are answered or wait."""
        while self._count >= count:
            if self._answered is None or self._answered.done():
                self._answered = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._answered)

    async def _respond(self, turn: Turn, lane: _Lane) -> None:
        """Make one response, and send its events. Raises EndpointError: it is refused, or has failed."""
        history = self._history(turn.previous)
        asked = ResponsesCall("create_response", "", generates=turn.generates, returns_items=True, history=len(history))
        try:
            call = await self._endpoint.create(self._request, history + turn.body, asked)
        except EXPECTED_ERRORS as error:
            raise EndpointError(failure_of(error)) from error
        try:
            part = await call.next_usable()
            call.pass_on()
            if (fork := call.forked(part)) is not None:
                call.cancel()
                call = fork
                part = await call.next_usable()
            await self._relay(call, part, turn, lane, history)
        finally:
            call.cancel()

    async def _relay(self, call: TurnCall, part: Part, turn: Turn, lane: _Lane, history: bytes) -> None:
        """Send the events of a response as they come, and note its items if it is not kept."""
        credential: Credential | None = self._request.credential
        forget = None if credential is None else credential.hold(call.name, self.lose_right)
        reader = EventReader()
        is_kept = True
        try:
            while True:
                for name, event in reader.read(part.body):
                    if name == ITEMS_EVENT:
                        is_kept = False
                        self._remember(lane, _latest_of(event, history))
                    else:
                        await self.send(in_lane(event, turn.lane))
                if not part.more:
                    break
                part = await call.next_usable()
        finally:
            if forget is not None:
                forget()
        if is_kept:
            self._forget(lane)

    # Responses that are not kept

    def _history(self, response_id: str | None) -> bytes:
        """Return what leads on from a response that the connection has in memory; empty if it is none of those."""
        latest = (lane.latest for lane in self._lanes.values())
        return next((each.history for each in latest if each is not None and each.id == response_id), b"")

    def _remember(self, lane: _Lane, latest: _Latest) -> None:
        """Keep the latest response of a lane in memory, if there is room; else the client has to send all of it."""
        self._forget(lane)
        if len(latest.history) > self._endpoint.max_body:
            return
        try:
            self._socket.hold(len(latest.history))
        except NoRoomError:
            return
        lane.latest = latest

    def _forget(self, lane: _Lane) -> None:
        if lane.latest is not None:
            self._socket.let_go(len(lane.latest.history))
            lane.latest = None

    def _evict(self, response_id: str | None) -> None:
        """Forget a response whose continuation has failed: the client begins again with all of it."""
        for lane in self._lanes.values():
            if lane.latest is not None and lane.latest.id == response_id:
                self._forget(lane)


def _latest_of(event: bytes, history: bytes) -> _Latest:
    new = msgspec.json.decode(event, type=_Items)
    before = msgspec.json.decode(history, type=list[msgspec.Raw]) if history else []
    return _Latest(new.id, msgspec.json.encode([*before, *new.items]))
