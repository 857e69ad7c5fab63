"""One live session: the client numbers the steps of a sequence, and may come back to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from torchserve_py.doors.failures import DoorError
from torchserve_py.doors.live.live_steps import ENDED, Goodbye, StepExchange, Terms, end_of
from torchserve_py.doors.live.message_forms import LAST_STEP, POLICY_VIOLATION, Form, Step, UnusableMessage
from torchserve_py.doors.live.resuming import new_token, resume, sequence_of
from torchserve_py.doors.live.socket_session import SocketSession
from torchserve_py.transport.http1.websocket import Message, WebSocket

if TYPE_CHECKING:
    from torchserve_py.jobs.parts import Part


class LiveSession(SocketSession):
    """A session, from the upgrade to the close.

    Args:
        socket: The socket, whose handshake is accepted.
        form: How messages are written.
        terms: What all its steps share.
        adopted: Called when the session has taken over a sequence, with the id of its previous one.
    """

    def __init__(
        self, socket: WebSocket, form: Form, terms: Terms, adopted: Callable[[LiveSession, str], None]
    ) -> None:
        super().__init__(socket, terms, is_text=form.is_text)
        self.form = form
        self._adopted = adopted
        self._token = ""
        #: The last step that was sent, or was applied before the session was resumed.
        self.last = 0
        self._is_begun = False
        self.adopt(new_token())

    def adopt(self, token: str) -> None:
        """Take over the sequence that belongs to a resume token."""
        before = self.sequence_id
        self._token, self.sequence_id = token, sequence_of(token)
        self._adopted(self, before)

    async def greet(self) -> None:
        """Send the message that describes the session."""
        token = self._token if self.terms.durable else None
        told = {"sequence": self.sequence_id, "resume": token, "last": self.last}
        terms = {"window": self.terms.window, "max_message_size": self.terms.max_message_size}
        await self.send(self.form.session({**told, **terms}))

    async def take(self, message: Message) -> Goodbye | None:
        """Submit a step, or resume an earlier session."""
        read = self.form.read(message)
        if not isinstance(read, Step):
            return await resume(self, read)
        await self.wait_for_room()
        exchange = self._submit(read)
        self.put(partial(self._relay, exchange), exchange)
        return None

    def _submit(self, step: Step) -> StepExchange:
        number = step.number or self.last + 1
        if number > LAST_STEP:
            reason = f"Step {self.last} was the last one; a session has no more numbers."
            raise UnusableMessage(POLICY_VIOLATION, reason)
        if number > self.last:
            starts = self.is_idle and not self._is_begun
            exchange = self.terms.submit(self.sequence_id, number, step, self._send_part, starts=starts)
            self.last = number
            return exchange
        if self.terms.durable:
            return self.ask(number)
        reason = f"Step {number} was sent before; the next one is {self.last + 1}."
        raise UnusableMessage(POLICY_VIOLATION, reason)

    def ask(self, number: int) -> StepExchange:
        """Ask for the answer to a step that was sent before."""
        return self.terms.submit(self.sequence_id, number, Step(number, b""), self._send_part, only_ask=True)

    async def resumed(self, *, has_ended: bool) -> Goodbye | None:
        """Continue after the last applied step; return why the session closes, if the sequence has ended."""
        self._is_begun = self.last > 0
        self.active_at = asyncio.get_running_loop().time()
        await self.greet()
        return ENDED if has_ended else None

    async def _relay(self, step: StepExchange) -> Goodbye | None:
        """Send the answer to a step, or its failure; return why the session closes, if it does."""
        try:
            await step.relay(await step.next())
        except DoorError as error:
            await self.send(self.form.failure(step.number, error.failure))
            return end_of(error.failure)
        self._is_begun = True
        return ENDED if step.ends else None

    async def _send_part(self, number: int, part: Part) -> None:
        for message in self.form.part(number, part):
            await self.send(message)
