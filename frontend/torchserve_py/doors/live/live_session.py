"""One live session: an open WebSocket, and the steps of its sequence that are on their way.

Steps run in the order in which they were sent, and are answered in that order. Two tasks serve a session: one
receives steps, one sends answers at the client's pace. A timer notices a client that is gone.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from torchserve_py.doors.failures import DoorError
from torchserve_py.doors.live.live_steps import (
    BROKEN,
    ENDED,
    GOING,
    GONE,
    SILENT,
    Goodbye,
    StepExchange,
    Terms,
    end_of,
)
from torchserve_py.doors.live.message_forms import POLICY_VIOLATION, Form, Step, UnusableMessage
from torchserve_py.doors.live.resuming import new_token, resume, sequence_of
from torchserve_py.transport.http1.errors import ReaderStalled
from torchserve_py.transport.http1.websocket import Kind, WebSocket

if TYPE_CHECKING:
    from torchserve_py.jobs.parts import Part

logger = logging.getLogger(__name__)

#: Seconds without a sign of the client after which it is pinged, and after which it is given up.
_PING_AFTER: Final = 20.0
_GIVE_UP_AFTER: Final = 40.0
#: Seconds within which a client must confirm that the connection is closed.
_CLOSE_LIMIT: Final = 5.0


class LiveSession:
    """A session, from the upgrade to the close.

    Args:
        socket: The socket, whose handshake is accepted.
        form: How messages are written.
        terms: What its steps have in common.
        adopted: Called when the session has got a sequence, with the id of the one that it had before.
    """

    def __init__(
        self, socket: WebSocket, form: Form, terms: Terms, adopted: Callable[[LiveSession, str], None]
    ) -> None:
        self._socket = socket
        self.form = form
        self.terms = terms
        self._adopted = adopted
        self.sequence_id = self._token = ""
        #: The last step that was sent, or was applied before the session was resumed.
        self.last = 0
        self._is_begun = False
        #: Steps without an answer. (Not `asyncio.Queue`, which would be a tenth of an idle session's memory.)
        self._queue = deque[StepExchange | Goodbye]()
        self._step_comes: asyncio.Future[None] | None = None
        self._answered: StepExchange | None = None
        self._count = self._bytes = 0
        self._room_comes: asyncio.Future[None] | None = None
        self._told: asyncio.Future[Goodbye | None] = asyncio.get_running_loop().create_future()
        self._timer: asyncio.TimerHandle | None = None
        self._heard_at = self._active_at = asyncio.get_running_loop().time()
        self.adopt(new_token())

    def adopt(self, token: str) -> None:
        """Take the sequence that a resume token stands for."""
        before = self.sequence_id
        self._token, self.sequence_id = token, sequence_of(token)
        self._adopted(self, before)

    async def run(self) -> None:
        """Serve the session until the client leaves or the server closes it."""
        await self._greet()
        self._check()
        tasks: list[asyncio.Future[Goodbye | None]] = [
            asyncio.ensure_future(each) for each in (self._receive(), self._answer())
        ]
        try:
            done, _ = await asyncio.wait([*tasks, self._told], return_when=asyncio.FIRST_COMPLETED)
            goodbye = next(filter(None, map(self._goodbye, done)), None)
            if goodbye is not None:
                for task in tasks:
                    task.cancel()
                await self._socket.close(goodbye.code, goodbye.reason.encode(), _CLOSE_LIMIT)
        finally:
            if self._timer is not None:
                self._timer.cancel()
            for task in tasks:
                task.cancel()

    def _goodbye(self, done: asyncio.Future[Goodbye | None]) -> Goodbye | None:
        error = done.exception()
        if error is None:
            return done.result()
        if not isinstance(error, (ConnectionError, ReaderStalled)):
            logger.error("A live session failed", exc_info=error, extra={"sequence_id": self.sequence_id})
            return BROKEN
        return None

    def tell(self, goodbye: Goodbye) -> None:
        """Close the session now."""
        if not self._told.done():
            self._told.set_result(goodbye)

    def close_later(self) -> None:
        """Close the session once the steps on their way are answered."""
        self._put(GOING)

    def _put(self, step: StepExchange | Goodbye) -> None:
        self._queue.append(step)
        _wake(self._step_comes)

    def unanswered(self) -> list[StepExchange]:
        """Return the steps that are on their way; the session has ended."""
        steps = [] if self._answered is None else [self._answered]
        steps += [step for step in self._queue if isinstance(step, StepExchange)]
        self._queue.clear()
        return steps

    # What the client sends.

    async def _receive(self) -> Goodbye | None:
        """Submit what the client sends, to its close."""
        clock = asyncio.get_running_loop().time
        while True:
            message = await self._socket.receive()
            self._heard_at = clock()
            if message.kind is Kind.close:
                return None
            if message.kind is Kind.pong:
                continue
            try:
                read = self.form.read(message)
                if isinstance(read, Step):
                    await self._wait_for_room()
                    self._submit(read)
                elif (goodbye := await resume(self, read)) is not None:
                    return goodbye
            except UnusableMessage as error:
                return Goodbye(error.code, str(error))

    async def _wait_for_room(self) -> None:
        while self._count >= self.terms.window or (self._count and self._bytes >= self.terms.max_message_size):
            self._room_comes = asyncio.get_running_loop().create_future()
            await self._room_comes
            self._heard_at = asyncio.get_running_loop().time()  # meanwhile its pongs were not read

    def _submit(self, step: Step) -> None:
        number = step.number or self.last + 1
        if number > self.last:
            starts = not (self._is_begun or self._count)
            exchange = self.terms.submit(self.sequence_id, number, step, self._send_part, starts=starts)
            self.last = number
        elif self.terms.durable:
            exchange = self.ask(number)
        else:
            reason = f"Step {number} was sent before; the next one is {self.last + 1}."
            raise UnusableMessage(POLICY_VIOLATION, reason)
        self._count += 1
        self._bytes += exchange.size
        self._put(exchange)

    def ask(self, number: int) -> StepExchange:
        """Ask for the answer to a step that was sent before."""
        return self.terms.submit(self.sequence_id, number, Step(number, b""), self._send_part, only_ask=True)

    async def resumed(self, *, has_ended: bool) -> Goodbye | None:
        """Go on behind the last step that was applied; return why the session is over, if the sequence has ended."""
        self._is_begun = self.last > 0
        self._active_at = asyncio.get_running_loop().time()
        await self._greet()
        return ENDED if has_ended else None

    # What the client gets.

    async def _answer(self) -> Goodbye | None:
        """Answer steps in their order."""
        while True:
            while not self._queue:
                self._step_comes = asyncio.get_running_loop().create_future()
                await self._step_comes
            step = self._queue.popleft()
            if isinstance(step, Goodbye):
                return step
            self._answered = step
            goodbye = await self._relay(step)
            self._answered = None
            self._count -= 1
            self._bytes -= step.size
            self._active_at = asyncio.get_running_loop().time()
            _wake(self._room_comes)
            if goodbye is not None:
                return goodbye

    async def _relay(self, step: StepExchange) -> Goodbye | None:
        """Send the answer to a step, or its failure; return why the session is over, if it is."""
        try:
            await step.relay(await step.next())
        except DoorError as error:
            await self.send(self.form.failure(step.number, error.failure))
            return end_of(error.failure)
        self._is_begun = True
        return ENDED if step.ends else None

    async def _greet(self) -> None:
        """Tell the client of its session."""
        token = self._token if self.terms.durable else None
        told = {"sequence": self.sequence_id, "resume": token, "last": self.last}
        terms = {"window": self.terms.window, "max_message_size": self.terms.max_message_size}
        await self.send(self.form.session({**told, **terms}))

    async def _send_part(self, number: int, part: Part) -> None:
        for message in self.form.part(number, part):
            await self.send(message)

    async def send(self, message: bytes) -> None:
        """Send a message; waits for a client that reads slowly."""
        await self._socket.send(message, is_text=self.form.is_text)

    # Clients that are gone or idle.

    def _check(self) -> None:
        """Ping a silent client; close a session that is idle for too long or whose client is gone; look again later."""
        loop, max_idle, is_full = asyncio.get_running_loop(), self.terms.max_idle, self._count >= self.terms.window
        idle, silent = loop.time() - self._active_at, loop.time() - self._heard_at
        if not self._count and idle >= max_idle:
            self.tell(Goodbye(GONE, f"sequence_expired: no step for {max_idle:g} seconds"))
        elif silent >= _GIVE_UP_AFTER and not is_full:
            self.tell(SILENT)
        else:
            if silent >= _PING_AFTER:
                self._socket.ping()
            seconds = min(_PING_AFTER / 2, max_idle - (0.0 if self._count else idle))
            self._timer = loop.call_later(seconds, self._check)


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
