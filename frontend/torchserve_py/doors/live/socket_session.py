"""What every API of live sessions shares: an open WebSocket, and the steps of a sequence that are on their way.

Steps run in the order in which they were sent, and are answered in that order. Two tasks serve a session: one takes
messages, one sends answers at the client's pace. A timer notices a client that is gone.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from torchserve_py.doors.failures import DoorError, Failure
from torchserve_py.doors.live.live_steps import SendPart, StepExchange, Terms
from torchserve_py.doors.live.message_forms import Step
from torchserve_py.doors.live.session_ends import BROKEN, ENDED, GOING, GONE, SILENT, SessionOver, check_goes_on
from torchserve_py.transport.http1.errors import ReaderStalled
from torchserve_py.transport.http1.websocket import Kind, Message, WebSocket

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


class SocketSession(ABC):
    """A session, from the upgrade to the close; ``is_text``: whether its messages are text messages."""

    def __init__(self, socket: WebSocket, terms: Terms, *, is_text: bool) -> None:
        self._socket = socket
        self.terms = terms
        self._is_text = is_text
        #: The sequence that the next step belongs to, and the number of its last step.
        self.sequence_id = ""
        self.last = 0
        #: Answers that wait for their turn. (Not `asyncio.Queue`, which would be a tenth of an idle session's memory.)
        self._queue = deque[tuple[StepExchange | None, SendAnswer]]()
        self._answer_comes: asyncio.Future[None] | None = None
        #: The step whose answer is sent, or waited for.
        self.answered: StepExchange | None = None
        self._count = self._bytes = 0
        self._room_comes: asyncio.Future[None] | None = None
        self._told: asyncio.Future[SessionOver | None] = asyncio.get_running_loop().create_future()
        self._timer: asyncio.TimerHandle | None = None
        self._heard_at = self.active_at = asyncio.get_running_loop().time()
        self._is_listening = self._is_sending = False
        self._sent = 0  # messages since the client was heard

    async def greet(self) -> None:  # noqa: B027 - most APIs override it
        """Send what a client is told first: nothing, unless an API says otherwise."""

    @abstractmethod
    async def take(self, message: Message) -> None:
        """Take a message of the client. Raises SessionOver: the message is none of this API, or ends the session."""

    async def run(self) -> None:
        """Serve the session until the client leaves or the server closes it."""
        await self.greet()
        self._check()
        tasks: list[asyncio.Future[Any]] = [asyncio.ensure_future(each) for each in (self._receive(), self._answer())]
        try:
            done, _ = await asyncio.wait([*tasks, self._told], return_when=asyncio.FIRST_COMPLETED)
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

    def tell(self, code: int, reason: str) -> None:
        """Close the session now."""
        if not self._told.done():
            self._told.set_result(SessionOver(code, reason))

    def close_later(self) -> None:
        """Close the session once all steps have their answers."""
        self.put(_going)

    def unanswered(self) -> list[StepExchange]:
        """Return the steps without an answer; call this when the session has ended."""
        steps = [self.answered, *(step for step, _ in self._queue)]
        self._queue.clear()
        return [step for step in steps if step is not None]

    # What the client sends.

    async def _receive(self) -> None:
        """Take what the client sends, to its close."""
        while True:
            self._heard_at, self._is_listening = asyncio.get_running_loop().time(), True
            message = await self._socket.receive()
            self._sent, self._is_listening = 0, False
            if message.kind is Kind.close:
                return
            if message.kind is not Kind.pong:
                await self.take(message)

    async def wait_for_room(self) -> None:
        """Wait until one more step may be on its way; none follows a last step, unless that fails."""
        terms = self.terms
        while self._count and (self._is_ending or self._count >= terms.window or self._bytes >= terms.max_message_size):
            self._room_comes = asyncio.get_running_loop().create_future()
            await self._room_comes

    @property
    def _is_ending(self) -> bool:
        """Whether the latest step on its way is the last of the sequence."""
        step = self._queue[-1][0] if self._queue else self.answered
        return step is not None and step.ends

    def put(self, answer: SendAnswer, step: StepExchange | None = None) -> None:
        """Let ``answer`` be sent once those before it are; ``step`` is the step that it answers, if it does."""
        if step is not None:
            self._count += 1
            self._bytes += step.size
        self._queue.append((step, answer))
        _wake(self._answer_comes)

    # What the client gets.

    async def _answer(self) -> None:
        """Send the answers in their order."""
        while True:
            while not self._queue:
                self._answer_comes = asyncio.get_running_loop().create_future()
                await self._answer_comes
            self.answered, answer = self._queue.popleft()
            await answer()
            if (step := self.answered) is not None:
                self.answered = None
                self._count -= 1
                self._bytes -= step.size
                self.active_at = asyncio.get_running_loop().time()
            _wake(self._room_comes)

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
        leave unread no longer than it may be silent.
        """
        loop, max_idle, give_up_after = asyncio.get_running_loop(), self.terms.max_idle, _GIVE_UP_AFTER
        if self._is_sending or not self._is_listening:
            self._heard_at = loop.time()
        elif self._sent > _READ_AHEAD:
            give_up_after = max(give_up_after, self.terms.settings.default_response_timeout)
        # While a session is resumed, the step whose answer is awaited is not counted.
        is_waiting = self._count > 0 or self.answered is not None
        idle = 0.0 if is_waiting else loop.time() - self.active_at
        silent = loop.time() - self._heard_at
        if idle >= max_idle:
            self.tell(GONE, f"sequence_expired: no step for {max_idle:g} seconds")
        elif silent >= give_up_after:
            self.tell(*SILENT)
        else:
            if silent >= _PING_AFTER:
                self._socket.ping()
            self._timer = loop.call_later(min(_PING_AFTER / 2, max_idle - idle), self._check)


class StepSession(SocketSession):
    """A session whose messages are steps; each has its answer, or a message that tells why there is none."""

    #: Whether a step of the sequence was applied.
    is_begun = False

    @abstractmethod
    async def tell_failure(self, step: StepExchange, failure: Failure) -> None:
        """Tell the client why a step has no answer, or not all of it."""

    def put_next(self, step: Step, send: SendPart) -> None:
        """Submit the sequence's next step, and let its answer be sent once those before it are."""
        starts = not self._count and not self.is_begun
        exchange = self.terms.submit(self.sequence_id, step, send, starts=starts)
        self.last = step.number
        self.put_step(exchange)

    def put_step(self, step: StepExchange) -> None:
        """Let the answer to a step be sent once those before it are."""
        self.put(partial(self._relay, step), step)

    async def _relay(self, step: StepExchange) -> None:
        try:
            await step.relay(await step.next())
        except DoorError as error:
            await self.tell_failure(step, error.failure)
            check_goes_on(error.failure)
            return
        self.is_begun = True
        if step.ends:
            raise SessionOver(*ENDED)


async def _going() -> None:
    raise SessionOver(*GOING)


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
