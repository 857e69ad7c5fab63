"""One live session: the client numbers the steps of a sequence, and may come back to it.

A client resumes a session of a stored sequence at any server that uses the same store. The id of the sequence is a
digest of its resume token, so a server finds the sequence of a token without storing tokens. The number of a step is
its request id, under which the store keeps the step's answer.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Callable
from functools import partial
from typing import Final, NoReturn

from torchserve_py.doors.failures import DoorError, Failure, failure_of_job
from torchserve_py.doors.live.live_steps import StepExchange, Terms
from torchserve_py.doors.live.message_forms import LAST_STEP, Form, Resume, Step, read_message
from torchserve_py.doors.live.session_ends import ENDED, GONE, POLICY_VIOLATION, SessionOver, check_can_resume
from torchserve_py.doors.live.socket_session import StepSession
from torchserve_py.jobs.parts import Part
from torchserve_py.metrics.model_metrics import HANDLER_ERROR
from torchserve_py.scheduling.effects import Cause
from torchserve_py.transport.http1.websocket import Message, WebSocket

_TOKEN_BYTES: Final = 24


class LiveSession(StepSession):
    """A session, from the upgrade to the close.

    ``adopted`` is called when the session has taken over a sequence, with the id of its previous one.
    """

    def __init__(
        self, socket: WebSocket, terms: Terms, form: Form, adopted: Callable[[LiveSession, str], None]
    ) -> None:
        super().__init__(socket, terms, is_text=form.is_text)
        self._form = form
        self._adopted = adopted
        self._token = ""
        self._adopt(secrets.token_urlsafe(_TOKEN_BYTES))

    def _adopt(self, token: str) -> None:
        """Take over the sequence that belongs to a resume token; the token cannot be computed from its id."""
        before = self.sequence_id
        self._token, self.sequence_id = token, f"live-{hashlib.sha256(token.encode()).hexdigest()[:40]}"
        self._adopted(self, before)

    async def greet(self) -> None:
        token = self._token if self.terms.model.is_durable else None
        told = {"sequence": self.sequence_id, "resume": token, "last": self.last}
        terms = {"window": self.terms.window, "max_message_size": self.terms.max_message_size}
        await self.send(self._form.session({**told, **terms}))

    async def take(self, message: Message) -> None:
        read = read_message(self._form, message)
        if not isinstance(read, Step):
            await self._resume(read)
            return
        await self.wait_for_room()
        number = read.number or self.last + 1
        if number > LAST_STEP:
            raise SessionOver(POLICY_VIOLATION, f"Step {self.last} was the last one; a session has no more numbers.")
        if number > self.last:
            self.put_next(read._replace(number=number), partial(self._send_part, number))
        elif self.terms.model.is_durable:
            self.put_step(self._ask(number))
        else:
            reason = f"Step {number} was sent before; the next one is {self.last + 1}."
            raise SessionOver(POLICY_VIOLATION, reason)

    def _ask(self, number: int) -> StepExchange:
        """Ask for the answer to a step that was sent before."""
        return self.terms.submit(self.sequence_id, Step(number, b""), partial(self._send_part, number), only_ask=True)

    async def _send_part(self, number: int, part: Part) -> None:
        for message in self._form.part(number, part):
            await self.send(message)

    async def tell_failure(self, step: StepExchange, failure: Failure) -> None:
        await self.send(self._form.failure(step.number, failure))

    async def _resume(self, asked: Resume) -> None:
        """Continue an earlier session, and send the answers that its client has missed."""
        if self.last:
            raise SessionOver(POLICY_VIOLATION, "A session is resumed before its first step.")
        if len(asked.unanswered) > self.terms.window:
            raise SessionOver(POLICY_VIOLATION, f"unanswered: up to {self.terms.window} steps.")
        if not self.terms.model.is_durable:
            await self._tell_lost()
        self._adopt(asked.resume)
        applied: StepExchange | None = None
        for number in sorted({asked.after, *asked.unanswered} - {0}):
            self.answered = step = self._ask(number)
            try:
                first = await step.next()
                applied, self.last = step, number
                if number != asked.after:
                    await step.relay(first)
            except DoorError as error:
                failure = error.failure
                if failure.cause == HANDLER_ERROR:  # the step was applied, and its answer was too large to be kept
                    applied, self.last = step, number
                elif failure.cause == Cause.not_applied:
                    if number == asked.after:
                        await self._tell_lost()
                    continue
                await self.tell_failure(step, failure)
                if failure.cause != HANDLER_ERROR:
                    check_can_resume(failure)
        self.answered = None
        self.is_begun = self.last > 0
        self.active_at = asyncio.get_running_loop().time()
        await self.greet()
        if applied is not None and applied.ends:
            raise SessionOver(*ENDED)

    async def _tell_lost(self) -> NoReturn:
        lost = failure_of_job(Cause.sequence_lost, self.terms.model.name, self.terms.version, self.sequence_id)
        await self.send(self._form.failure(0, lost))
        raise SessionOver(GONE, lost.cause)
