"""What every API of live sessions shares: an open WebSocket, and the steps of a sequence that are on their way.

Steps run in the order in which they were sent, and are answered in that order. Two tasks serve a session: one takes
messages, one sends answers at the client's pace. A timer notices a client that is gone.

An API whose messages are no steps of one sequence builds on `OpenSocket`.
"""

import asyncio
import logging
import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Final

from torchserve_py.apis.live.live_steps import SendPart, StepCall, StepTemplate
from torchserve_py.apis.live.message_forms import LiveStep
from torchserve_py.apis.live.session_ends import (
    APPLIED,
    BROKEN,
    ENDED,
    FULL,
    GOING,
    GONE,
    POLICY_VIOLATION,
    SILENT,
    SessionOver,
    check_goes_on,
)
from torchserve_py.base.causes import Cause
from torchserve_py.endpoints.failures import EndpointError, Failure, failure_of_job
from torchserve_py.net.http1.errors import ReaderStalled
from torchserve_py.net.request_budget import NoRoomError
from torchserve_py.net.running_time import running_time
from torchserve_py.net.websocket import Kind, Message, WebSocket

logger = logging.getLogger(__name__)

#: Seconds without a sign of the client after which it is pinged, and after which it is given up.
_PING_AFTER: Final = 20.0
_GIVE_UP_AFTER: Final = 40.0
#: A library answers no ping while so many messages before it wait for its caller.
_READ_AHEAD: Final = 8
#: Seconds within which a client must confirm that the connection is closed.
_CLOSE_LIMIT: Final = 5.0

#: Sends an answer when those before it are sent; may raise SessionOver.
SendAnswer = Callable[[], Awaitable[None]]


class OpenSocket(ABC):
    """A WebSocket from the upgrade to the close; ``is_text``: whether its messages are text messages."""

    def __init__(self, socket: WebSocket, *, is_text: bool) -> None:
        self._socket = socket
        self._is_text = is_text
        #: Of the sequence that the messages belong to; empty if they belong to none.
        self.sequence_id = ""
        self._closed_with: asyncio.Future[SessionOver | None] = asyncio.get_running_loop().create_future()
        self._timer: asyncio.TimerHandle | None = None
        self.clock = running_time()
        self._heard_at = self.active_at = self.clock.now()
        self._is_listening = self._is_sending = False
        self._sent = 0  # messages since the client was heard

    async def greet(self) -> None:  # noqa: B027 - most APIs override it
        """Send what a client is told first: nothing, unless an API says otherwise."""

    @property
    def max_idle(self) -> float:
        """Seconds without a request after which the socket is closed."""
        return math.inf

    @property
    def patience(self) -> float:
        """Seconds that a client may take to read what it was sent."""
        return 0.0

    @property
    @abstractmethod
    def is_waiting(self) -> bool:
        """Whether the client waits for an answer."""

    @abstractmethod
    async def take(self, message: Message) -> None:
        """Take a message of the client. Raises SessionOver: the message is none of this API, or ends the session."""

    async def run(self) -> None:
        """Serve the session until the client leaves or the server closes it.

        If the connection is lost, `HttpRequest.left` cancels this, unless `_receive` has noticed it first.
        """
        await self.greet()
        self._check()
        tasks: list[asyncio.Future[Any]] = [asyncio.ensure_future(each) for each in self._work()]
        try:
            done, _ = await asyncio.wait([*tasks, self._closed_with], return_when=asyncio.FIRST_COMPLETED)
            over = next(filter(None, [self._end(each) for each in done]), None)
            if over is not None:
                for task in tasks:
                    task.cancel()
                await self._socket.close(over.code, over.reason.encode(), _CLOSE_LIMIT)
        finally:
            if self._timer is not None:
                self._timer.cancel()
            for task in tasks:
                task.cancel()

    def _work(self) -> list[Coroutine[Any, Any, None]]:
        """Return what serves the socket: once one of these is over, so is the socket."""
        return [self._receive()]

    def _end(self, done: asyncio.Future[SessionOver | None]) -> SessionOver | None:
        """Return why the server closes the session, or None if its client has left."""
        error = done.exception()
        if error is None:
            return done.result()
        if isinstance(error, SessionOver):
            return error
        if not isinstance(error, (ConnectionError, ReaderStalled)):
            logger.error("A live session failed", exc_info=error, extra={"sequence_id": self.sequence_id})
            return SessionOver(*BROKEN)
        return None

    def close_with(self, code: int, reason: str) -> None:
        """Close the session now."""
        if not self._closed_with.done():
            self._closed_with.set_result(SessionOver(code, reason))

    def lose_right(self, failure: Failure) -> None:
        """Close the session, whose key is good no more."""
        self.close_with(POLICY_VIOLATION, failure.message)

    # What the client sends.

    async def _receive(self) -> None:
        """Take what the client sends, to its close."""
        while True:
            self._heard_at, self._is_listening = self.clock.now(), True
            message = await self._socket.receive()
            self._sent, self._is_listening = 0, False
            if message.kind is Kind.close:
                return
            if message.kind is not Kind.pong:
                await self.take(message)

    async def send(self, message: bytes) -> None:
        """Send a message; waits for a client that reads slowly."""
        self._sent += 1
        self._is_sending = True
        await self._socket.send(message, is_text=self._is_text)
        self._is_sending = False

    # Clients that have disappeared or are idle.

    def _check(self) -> None:
        """Ping a silent client, or close a session that is idle too long or whose client is gone; check again later.

        A client that is not read from, or has answers to read before the ping, may be slow without being gone.
        The transport limits how slowly it may read an answer. Pongs to its own pings, which nobody waits for, it may
        leave unread no longer than it may be silent. One that sends a large message is not silent meanwhile, though it
        can answer no ping.
        """
        now, max_idle, give_up_after = self.clock.now(), self.max_idle, _GIVE_UP_AFTER
        if self._is_sending or not self._is_listening:
            self._heard_at = now
        elif self._sent > _READ_AHEAD:
            give_up_after = max(give_up_after, self.patience)
        idle = 0.0 if self.is_waiting else now - self.active_at
        silent = now - max(self._heard_at, self._socket.heard_at)
        if idle >= max_idle:
            self.close_with(GONE, f"sequence_expired: no step for {max_idle:g} seconds")
        elif silent >= give_up_after:
            self.close_with(*SILENT)
        else:
            if silent >= _PING_AFTER:
                self._socket.ping()
            self._timer = asyncio.get_running_loop().call_later(min(_PING_AFTER / 2, max_idle - idle), self._check)


class SocketSession(OpenSocket):
    """A session whose messages become steps of a sequence."""

    def __init__(self, socket: WebSocket, template: StepTemplate, *, is_text: bool) -> None:
        super().__init__(socket, is_text=is_text)
        self.template = template
        #: The number of the last step.
        self.last = 0
        #: Answers that wait for their turn. (Not `asyncio.Queue`, which would be a tenth of an idle session's memory.)
        self._queue = deque[tuple[StepCall | None, SendAnswer]]()
        self._answer_comes: asyncio.Future[None] | None = None
        #: The step whose answer is sent, or waited for.
        self.current: StepCall | None = None
        self._count = self._bytes = 0
        self._room_comes: asyncio.Future[None] | None = None

    @property
    def max_idle(self) -> float:
        return self.template.max_idle

    @property
    def patience(self) -> float:
        return self.template.settings.default_response_timeout

    @property
    def is_waiting(self) -> bool:
        # While a session is resumed, the step whose answer is awaited is not counted.
        return self._count > 0 or self.current is not None

    def _work(self) -> list[Coroutine[Any, Any, None]]:
        return [self._receive(), self._answer()]

    def close_later(self) -> None:
        """Close the session once all steps have their answers."""
        self.put(_going)

    def take_unanswered(self) -> list[StepCall]:
        """Return the steps without an answer, and forget them; call this when the session has ended."""
        steps = [self.current, *(step for step, _ in self._queue)]
        self._queue.clear()
        self.current = None  # it refers to the session
        return [step for step in steps if step is not None]

    async def wait_for_room(self) -> None:
        """Wait until one more step may be on its way; none follows a last step, unless that fails."""
        template = self.template
        while self._count and (
            self._is_ending or self._count >= template.window or self._bytes >= template.max_message_size
        ):
            self._room_comes = asyncio.get_running_loop().create_future()
            await self._room_comes

    async def wait_for_answers(self) -> None:
        """Wait until no step is on its way."""
        while self._count:
            self._room_comes = asyncio.get_running_loop().create_future()
            await self._room_comes

    @property
    def has_steps(self) -> bool:
        """Whether a step is on its way."""
        return self._count > 0

    @property
    def _is_ending(self) -> bool:
        """Whether the latest step on its way is the last of the sequence."""
        step = self._queue[-1][0] if self._queue else self.current
        return step is not None and step.ends

    def put(self, answer: SendAnswer, step: StepCall | None = None) -> None:
        """Let ``answer`` be sent once those before it are; ``step`` is the step that it answers, if it does.

        Raises SessionOver: the server has no room for the step, which is cancelled.
        """
        if step is not None:
            try:
                self._socket.hold(step.size)
            except NoRoomError:
                step.cancel()
                raise SessionOver(*FULL) from None
            self._count += 1
            self._bytes += step.size
        self._queue.append((step, answer))
        _wake(self._answer_comes)

    async def _answer(self) -> None:
        """Send the answers in their order."""
        while True:
            while not self._queue:
                self._answer_comes = asyncio.get_running_loop().create_future()
                await self._answer_comes
            self.current, answer = self._queue.popleft()
            await answer()
            if (step := self.current) is not None:
                self.current = None
                self._count -= 1
                self._bytes -= step.size
                self._socket.let_go(step.size)
                self.active_at = self.clock.now()
            _wake(self._room_comes)


class StepSession(SocketSession):
    """A session whose messages are steps; each has its answer, or a message that tells why there is none."""

    #: What names the session's sequence, besides its id.
    token = ""
    #: The number of the last step that was applied, as far as the session knows.
    applied = 0

    @abstractmethod
    async def tell_failure(self, step: StepCall, failure: Failure) -> None:
        """Tell the client why a step has no answer, or not all of it."""

    def put_next(self, step: LiveStep, send: SendPart) -> None:
        """Submit a step, and let its answer be sent once those before it are."""
        starts = step.number == 1
        call = self.template.submit(self.sequence_id, step, send, starts=starts, token=self.token)
        self.last = max(self.last, step.number)
        self.put_step(call)

    def put_step(self, step: StepCall) -> None:
        """Let the answer to a step be sent once those before it are."""
        self.put(partial(self._relay, step), step)

    async def _relay(self, step: StepCall) -> None:
        try:
            await step.relay(await step.next_usable())
        except EndpointError as error:
            failure = error.failure
            if failure.cause in APPLIED:
                self.applied = max(self.applied, step.number)
            elif failure.cause == Cause.sequence_unknown and not self.applied and step.number > 1:
                # The first step has failed, so the session's sequence has yet to begin.
                template = self.template
                failure = failure_of_job(Cause.step_gap, template.model.name, template.version, self.sequence_id)
            # No step behind it, which would be a gap, is on its way any more.
            if self._count == 1 and not self.template.drops_late_steps:
                self.last = self.applied
            await self.tell_failure(step, failure)
            check_goes_on(failure)
            return
        self.applied = max(self.applied, step.number)
        if step.ends:
            raise SessionOver(*ENDED)


async def _going() -> None:
    raise SessionOver(*GOING)


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
