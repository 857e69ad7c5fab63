"""One live session: an open WebSocket, and the steps of its sequence that are on their way.

Steps run in the order in which they were sent, and are answered in that order. Three tasks serve a session: one
receives steps, one sends answers at the client's pace, one notices a client that is gone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from torchserve_py.doors.failures import DoorError, Failure
from torchserve_py.doors.live.message_forms import POLICY_VIOLATION, Form, Step, UnusableMessage
from torchserve_py.doors.pipeline import Dialect, Exchange
from torchserve_py.jobs.inference_request import InferenceRequest, SequenceRequest
from torchserve_py.scheduling.effects import Cause
from torchserve_py.transport.http1.errors import ReaderStalled
from torchserve_py.transport.http1.websocket import Kind, WebSocket
from ts.protocol.messages import SEQUENCE_ID_SEPARATOR

if TYPE_CHECKING:
    from torchserve_py.core.serving import ServedModel, Serving
    from torchserve_py.jobs.parts import Part

logger = logging.getLogger(__name__)

_OK: Final = 1000
_INTERNAL_ERROR: Final = 1011
SERVICE_RESTART: Final = 1012
#: The sequence is over: it has expired, or its state is lost.
_GONE: Final = 4410
#: Seconds without a sign of the client after which it is pinged, and after which it is given up.
_PING_AFTER: Final = 20.0
_GIVE_UP_AFTER: Final = 40.0
#: Seconds within which a client must confirm that the connection is closed.
_CLOSE_LIMIT: Final = 5.0
_CLOSING_CAUSES: Final = frozenset({Cause.draining, Cause.unregistered})


class Goodbye(NamedTuple):
    """Why the server closes a session: the close code, and the reason."""

    code: int
    reason: str


GOING: Final = Goodbye(SERVICE_RESTART, "The server is shutting down.")


class Terms(NamedTuple):
    """What all sessions of one handshake have in common.

    Attributes:
        serving: The models.
        model: The model.
        version: The model's version as the client named it, if it did.
        request: What each step has in common: headers, content type, priority.
        sequence: Makes the sequence of a step: its id, whether it begins and whether it ends, the number of the step.
        end_header: The name, in lower case, of the response header with which a handler ends sequences.
        window: How many steps may be on their way.
        max_bytes: How many bytes steps on their way may have, unless it is a single one.
        max_idle: Seconds without a step after which the sequence expires.
    """

    serving: Serving
    model: ServedModel
    version: str | None
    request: InferenceRequest
    sequence: Callable[[str, bool, bool, int], SequenceRequest]
    end_header: str
    window: int
    max_bytes: int
    max_idle: float


class _Dialect(Dialect):
    """Failures are worded as everywhere."""


class StepExchange(Exchange):
    """One step on its way; its parts are messages."""

    __slots__ = ("_send", "ends", "number", "sequence_id")

    def __init__(
        self, terms: Terms, asked: InferenceRequest, number: int, send: Callable[[int, Part], Any], sequence_id: str
    ) -> None:
        super().__init__(_DIALECT, terms.serving, terms.model, asked, terms.version)
        self.number = number
        self.sequence_id = sequence_id
        self.ends = asked.sequence is not None and asked.sequence.ends
        self._send = send

    async def write(self, parts: Sequence[Part]) -> None:
        """Send parts; waits for a client that reads slowly."""
        for part in parts:
            await self._send(self.number, part)


_DIALECT: Final = _Dialect()


class LiveSession:
    """A session, from the upgrade to the close.

    Args:
        socket: The socket, whose handshake is accepted.
        form: How messages are written.
        terms: What its steps have in common.
        sequence_id: Its sequence.
    """

    def __init__(self, socket: WebSocket, form: Form, terms: Terms, sequence_id: str) -> None:
        self._socket = socket
        self._form = form
        self.terms = terms
        self.sequence_id = sequence_id
        #: The last step that was sent, or was applied before the session was resumed.
        self.last = 0
        self._is_begun = False
        self._queue = asyncio.Queue[StepExchange | Goodbye]()
        self._answered: StepExchange | None = None
        self._count = self._bytes = 0
        self._room = asyncio.Event()
        self._told: asyncio.Future[Goodbye | None] = asyncio.get_running_loop().create_future()
        self._heard_at = self._active_at = asyncio.get_running_loop().time()

    async def run(self) -> None:
        """Serve the session until the client leaves or the server closes it."""
        tasks: list[asyncio.Future[Goodbye | None]] = [
            asyncio.ensure_future(each) for each in (self._receive(), self._answer(), self._keep_alive())
        ]
        try:
            done, _ = await asyncio.wait([*tasks, self._told], return_when=asyncio.FIRST_COMPLETED)
            goodbye = next(filter(None, map(self._goodbye, done)), None)
            if goodbye is not None:
                for task in tasks:
                    task.cancel()
                await self._socket.close(goodbye.code, goodbye.reason.encode(), _CLOSE_LIMIT)
        finally:
            for task in tasks:
                task.cancel()

    def _goodbye(self, done: asyncio.Future[Goodbye | None]) -> Goodbye | None:
        error = done.exception()
        if error is None:
            return done.result()
        if not isinstance(error, (ConnectionError, ReaderStalled)):
            logger.error("A live session failed", exc_info=error, extra={"sequence_id": self.sequence_id})
            return Goodbye(_INTERNAL_ERROR, "The session failed; the server's log says why.")
        return None

    def tell(self, goodbye: Goodbye) -> None:
        """Close the session now."""
        if not self._told.done():
            self._told.set_result(goodbye)

    def close_later(self) -> None:
        """Close the session once the steps on their way are answered."""
        self._queue.put_nowait(GOING)

    def unanswered(self) -> list[StepExchange]:
        """Return the steps that are on their way; the session has ended."""
        steps = [] if self._answered is None else [self._answered]
        while not self._queue.empty():
            if isinstance(step := self._queue.get_nowait(), StepExchange):
                steps.append(step)
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
                read = self._form.read(message)
                if not isinstance(read, Step):
                    raise UnusableMessage(POLICY_VIOLATION, "This session cannot be resumed.")
                await self._wait_for_room()
                self._submit(read)
            except UnusableMessage as error:
                return Goodbye(error.code, str(error))

    async def _wait_for_room(self) -> None:
        while self._count >= self.terms.window or (self._count and self._bytes >= self.terms.max_bytes):
            self._room.clear()
            await self._room.wait()
            self._heard_at = asyncio.get_running_loop().time()  # meanwhile its pongs were not read

    def _submit(self, step: Step) -> None:
        number = step.number or self.last + 1
        if number <= self.last:
            reason = f"Step {number} was sent before; the next one is {self.last + 1}."
            raise UnusableMessage(POLICY_VIOLATION, reason)
        try:
            exchange = self._exchange(number, step, starts=not (self._is_begun or self._count))
        except DoorError as error:
            raise UnusableMessage(POLICY_VIOLATION, error.failure.message) from error
        self.last = number
        self._count += 1
        self._bytes += len(step.body)
        self._queue.put_nowait(exchange)

    def _exchange(self, number: int, step: Step, *, starts: bool) -> StepExchange:
        terms = self.terms
        sequence = terms.sequence(self.sequence_id, starts, step.ends, number)
        common = terms.request
        asked = common._replace(
            headers=(*common.headers, *sequence.headers),
            body=step.body,
            content_type=step.content_type or common.content_type,
            sequence=sequence,
        )
        return StepExchange(terms, asked, number, self._send_part, self.sequence_id)

    # What the client gets.

    async def _answer(self) -> Goodbye | None:
        """Answer steps in their order."""
        while True:
            step = await self._queue.get()
            if isinstance(step, Goodbye):
                return step
            self._answered = step
            goodbye = await self._relay(step)
            self._answered = None
            self._count -= 1
            self._bytes -= len(step.asked.body)
            self._active_at = asyncio.get_running_loop().time()
            self._room.set()
            if goodbye is not None:
                return goodbye

    async def _relay(self, step: StepExchange) -> Goodbye | None:
        """Send the answer to a step, or its failure; return why the session is over, if it is."""
        try:
            await step.relay(await step.next())
        except DoorError as error:
            await self.send(self._form.failure(step.number, error.failure))
            return _end_of(error.failure)
        self._is_begun = True
        return Goodbye(_OK, "The sequence has ended.") if step.ends else None

    async def _send_part(self, number: int, part: Part) -> None:
        for name, value in part.headers:
            if name.lower() == self.terms.end_header and self._answered is not None:
                ended = (each.strip() for each in value.split(SEQUENCE_ID_SEPARATOR))
                self._answered.ends |= self.sequence_id in ended
        for message in self._form.part(number, part):
            await self.send(message)

    async def send(self, message: bytes) -> None:
        """Send a message; waits for a client that reads slowly."""
        await self._socket.send(message, is_text=self._form.is_text)

    # Clients that are gone or idle.

    async def _keep_alive(self) -> Goodbye | None:
        """Ping a silent client; close a session that is idle for too long or whose client is gone."""
        clock, max_idle = asyncio.get_running_loop().time, self.terms.max_idle
        while True:
            idle, silent = clock() - self._active_at, clock() - self._heard_at
            is_full = self._count >= self.terms.window
            if not self._count and idle >= max_idle:
                return Goodbye(_GONE, f"sequence_expired: no step for {max_idle:g} seconds")
            if silent >= _GIVE_UP_AFTER and not is_full:
                return Goodbye(_INTERNAL_ERROR, "keepalive ping timeout")
            if silent >= _PING_AFTER:
                self._socket.ping()
            await asyncio.sleep(min(_PING_AFTER / 2, max_idle - (0.0 if self._count else idle)))


def _end_of(failure: Failure) -> Goodbye | None:
    """Return why a session is over after this failure of a step, if it is."""
    if failure.cause in (Cause.sequence_lost, Cause.sequence_expired):
        return Goodbye(_GONE, failure.cause)
    if failure.cause in _CLOSING_CAUSES:
        return Goodbye(SERVICE_RESTART, failure.message)
    return None
