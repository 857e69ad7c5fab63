"""One live session: the client numbers the steps of a sequence, and may come back to it.

A client resumes a session of a stored sequence at any server that uses the same store, and one of a sequence in memory
at a server to which its own has left that. The id of the sequence is a digest of its resume token, so a server finds it
without storing resume tokens; what names the sequence to the store is another digest. Steps have the numbers that the
client gives them.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Collection
from functools import partial
from typing import Final, NoReturn

from torchserve_py.apis.live.live_steps import SendPart, StepCall, StepTemplate
from torchserve_py.apis.live.message_forms import LAST_STEP, Form, LiveStep, Resume, read_message
from torchserve_py.apis.live.session_ends import ENDED, GONE, POLICY_VIOLATION, SessionOver, check_can_resume
from torchserve_py.apis.live.socket_session import StepSession
from torchserve_py.base.causes import Cause
from torchserve_py.base.metrics.model_metrics import HANDLER_ERROR
from torchserve_py.core.jobs.parts import Part
from torchserve_py.endpoints.failures import EndpointError, Failure, failure_of_job
from torchserve_py.endpoints.sequences import LIVE_ID_PREFIX
from torchserve_py.net.websocket import Message, WebSocket

_TOKEN_BYTES: Final = 24


class LiveSession(StepSession):
    """A session, from the upgrade to the close.

    ``on_adopted`` is called when the session has taken over a sequence, with the id of its previous one.
    """

    def __init__(
        self, socket: WebSocket, template: StepTemplate, form: Form, on_adopted: Callable[[LiveSession, str], None]
    ) -> None:
        super().__init__(socket, template, is_text=form.is_text)
        self._form = form
        self._on_adopted = on_adopted
        self._resume_token = ""
        self._adopt(secrets.token_urlsafe(_TOKEN_BYTES))

    def _adopt(self, resume_token: str) -> None:
        """Take over the sequence that belongs to a resume token; its id and token do not tell the resume token."""
        before, self._resume_token = self.sequence_id, resume_token
        self.sequence_id = f"{LIVE_ID_PREFIX}{hashlib.sha256(resume_token.encode()).hexdigest()[:40]}"
        self.token = hashlib.sha256(f"steps of {resume_token}".encode()).hexdigest()[:40]
        self._on_adopted(self, before)

    @property
    def _window(self) -> int:
        """How many steps may be without an answer."""
        return self.template.window

    @property
    def _further(self) -> dict[str, bool]:
        """What else the client is told of the session."""
        return {}

    async def greet(self) -> None:
        token = self._resume_token if self._can_resume else None
        told = {"sequence": self.sequence_id, "resume": token, "last": self.last}
        limits = {"window": self._window, "max_message_size": self.template.max_message_size}
        await self.send(self._form.session({**told, **limits, **self._further}))

    async def take(self, message: Message) -> None:
        read = read_message(self._form, message)
        if not isinstance(read, LiveStep):
            await self._resume(read)
            return
        await self.wait_for_room()
        if self.applied < read.number <= self.last:
            await self.wait_for_answers()  # it was sent before, and may have failed, or one before it
        number = read.number or self.last + 1
        if number > LAST_STEP:
            raise SessionOver(POLICY_VIOLATION, f"Step {self.last} was the last one; a session has no more numbers.")
        self.put_next(read._replace(number=number), partial(self._send_part, number))

    @property
    def _can_resume(self) -> bool:
        """Whether the session may outlive its connection: each of its steps has a number."""
        return not self.template.drops_late_steps

    def put_next(self, step: LiveStep, send: SendPart) -> None:
        """Submit a step. Where steps are dropped, their sequence counts only those that are not."""
        if not self.template.drops_late_steps:
            super().put_next(step, send)
            return
        starts = not (self.applied or self.has_steps)
        self.last = max(self.last, step.number)
        ids = f"{self._resume_token}-"
        self.put_step(self.template.submit(self.sequence_id, step, send, starts=starts, token=None, ids=ids))

    def _ask(self, number: int) -> StepCall:
        """Ask for the answer to a step that an earlier connection has sent."""
        send = partial(self._send_part, number)
        return self.template.submit(self.sequence_id, LiveStep(number, b""), send, token=self.token, only_ask=True)

    async def _send_part(self, number: int, part: Part) -> None:
        for message in self._form.part(number, part):
            await self.send(message)

    async def tell_failure(self, step: StepCall, failure: Failure) -> None:
        await self.send(self._form.failure(step.number, failure))

    async def _resume(self, asked: Resume) -> None:
        """Continue an earlier session, and send the answers that its client has missed."""
        if self.last:
            raise SessionOver(POLICY_VIOLATION, "A session is resumed before its first step.")
        if len(asked.unanswered) > self.template.window:
            raise SessionOver(POLICY_VIOLATION, f"unanswered: up to {self.template.window} steps.")
        if not self._can_resume:
            await self._tell_lost()
        self._adopt(asked.resume)
        applied: StepCall | None = None
        last, wanted = 0, {asked.after, *asked.unanswered} - {0}
        for number in [*sorted(wanted), *({1} - wanted)]:
            if applied is not None and number not in wanted:
                break  # else the answer to the first step, which is always kept, tells which was the last
            self.current = step = self._ask(number)
            try:
                first = await step.next_usable()
                applied, self.last = step, number
                if number in wanted - {asked.after}:
                    await step.relay(first)
            except EndpointError as error:
                failure = error.failure
                # The step was applied, and its answer was too large to be kept, or is too old.
                if failure.cause in (HANDLER_ERROR, Cause.step_applied):
                    applied, self.last = step, number
                elif failure.cause in self._not_there:
                    if number == asked.after:
                        await self._tell_lost()
                    continue
                if number in wanted or applied is not step:
                    await self.tell_failure(step, failure)
                if applied is not step:
                    check_can_resume(failure)
            finally:
                last = max(last, step.last_applied)
        self.current = None
        self.applied = self.last = max(self.last, last)
        self.active_at = self.clock.now()
        await self.greet()
        if applied is not None and applied.ends:
            raise SessionOver(*ENDED)

    @property
    def _not_there(self) -> Collection[Cause]:
        """Which causes say that a step was not applied to a sequence that goes on.

        One in memory ends with its connection, unless its server has left it to another one.
        """
        known = (Cause.not_applied, Cause.sequence_unknown)
        return known if self.template.model.is_durable else (*known, Cause.sequence_ended)

    async def _tell_lost(self) -> NoReturn:
        lost = failure_of_job(Cause.sequence_lost, self.template.model.name, self.template.version, self.sequence_id)
        await self.send(self._form.failure(0, lost))
        raise SessionOver(GONE, lost.cause)


def _is_owned_by_nobody(session: LiveSession, before: str) -> None:
    """Do nothing: several sessions may have one sequence."""


class NamedSession(LiveSession):
    """A session of a sequence that the client has named: sessions and requests of others may use it as well.

    So its steps have no numbers of the sequence. Each is recognized by an id, of the session's own token and the number
    in the session; one at a time is on its way, which keeps their order.
    """

    def __init__(self, socket: WebSocket, template: StepTemplate, form: Form, name: str) -> None:
        self._name = name
        super().__init__(socket, template, form, _is_owned_by_nobody)

    def _adopt(self, resume_token: str) -> None:
        self._resume_token, self.sequence_id = resume_token, self._name

    @property
    def _window(self) -> int:
        return 1

    @property
    def _further(self) -> dict[str, bool]:
        return {"named": True}

    async def take(self, message: Message) -> None:
        await self.wait_for_answers()
        await super().take(message)

    def put_next(self, step: LiveStep, send: SendPart) -> None:
        self.last = max(self.last, step.number)
        self.put_step(self.template.submit(self._name, step, send, token=None, ids=self._ids))

    def _ask(self, number: int) -> StepCall:
        send = partial(self._send_part, number)
        return self.template.submit(self._name, LiveStep(number, b""), send, token=None, ids=self._ids, only_ask=True)

    @property
    def _ids(self) -> str:
        return f"{self._resume_token}-"
