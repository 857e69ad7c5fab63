"""The door for live sessions: a WebSocket whose messages are the steps of one sequence.

    GET /sequences/{model}      GET /sequences/{model}/{version}

A step is what a ``POST /predictions/{model}`` with the sequence's headers would be. Everything that can be refused is
refused before the upgrade.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from torchserve_py.doors.live.handshakes import (
    SUBPROTOCOL,
    admit,
    first_known,
    socket_of,
    terms_of,
)
from torchserve_py.doors.live.live_session import LiveSession
from torchserve_py.doors.live.live_steps import REPLACED, StepExchange, Terms
from torchserve_py.doors.live.message_forms import FORMS, Form
from torchserve_py.doors.responses import Sent
from torchserve_py.doors.routing import DoorContext, PathValues, Route
from torchserve_py.doors.sequences import SequenceHeaders
from torchserve_py.doors.token_authorization import TokenType
from torchserve_py.jobs.parts import JobFailed
from torchserve_py.transport.http1.request import Request
from torchserve_py.transport.http1.websocket import WebSocket


class LiveSessionDoor:
    """Opens live sessions."""

    def __init__(self, context: DoorContext) -> None:
        self._context = context
        self._serving = context.serving
        self._headers = SequenceHeaders(context.settings)
        self._sessions = context.live_sessions
        self._finishing: set[asyncio.Task[None]] = set()
        # While the server drains, sequences that no other server can continue go on.
        context.on_drain.append(lambda: self._end(lambda session: session.terms.durable))
        context.on_close.append(lambda: self._end(lambda session: True))

    @property
    def routes(self) -> Sequence[Route]:
        """The door's table; the door itself checks the key, because browsers cannot send it in a header."""
        paths = ("/sequences/{model_name}", "/sequences/{model_name}/{model_version}")
        return [Route(path, self.open, ("GET",), token=None) for path in paths]

    def open(
        self, request: Request, values: PathValues, token: TokenType = TokenType.inference
    ) -> Coroutine[Any, Any, Sent]:
        """Open a session for a client that has the key for ``token``.

        Raises:
            DoorError: The key is wrong, the request is no handshake, the model keeps no sequences, …
        """
        offered = admit(self._context, request, token)
        version = values.get("model_version")
        model = self._serving.get(values["model_name"], version)
        socket = socket_of(self._context, request, model, version)
        form = FORMS[first_known(offered, tuple(FORMS))]
        terms = terms_of(self._context, request, model, version, self._headers.of_step)
        return self._serve(request, socket, form, bool(offered), terms)

    async def _serve(self, request: Request, socket: WebSocket, form: Form, names_form: bool, terms: Terms) -> Sent:
        def adopted(session: LiveSession, before: str) -> None:
            request.log_fields = {"sequence_id": session.sequence_id}
            self._adopted(session, before)

        socket.accept([(SUBPROTOCOL, form.name)] if names_form else [])
        session = LiveSession(socket, form, terms, adopted)
        try:
            await session.run()
        finally:
            self._leave(session)
        return Sent()

    # Which session owns a sequence.

    def _adopted(self, session: LiveSession, before: str) -> None:
        """Note which sequence a session owns; close the session that owned it before, whose client must have left."""
        self._sessions.pop((session.terms.model.id, before), None)
        key = session.terms.model.id, session.sequence_id
        if (other := self._sessions.get(key)) is not None:
            other.tell(REPLACED)
        self._sessions[key] = session

    def _leave(self, session: LiveSession) -> None:
        """Clean up after a session. Steps of stored sequences go on, as clients can ask for their answers later."""
        key = session.terms.model.id, session.sequence_id
        if self._sessions.get(key) is session:
            del self._sessions[key]
        steps = session.unanswered()
        if session.terms.durable and steps:
            task = asyncio.create_task(self._finish(session, steps))
            self._finishing.add(task)
            task.add_done_callback(self._finishing.discard)
            return
        for step in steps:
            step.cancel()
        self._release(session)

    async def _finish(self, session: LiveSession, steps: Sequence[StepExchange]) -> None:
        """Read and drop the answers to steps whose client has left, so that their worker need not wait for a reader."""
        for step in steps:
            with contextlib.suppress(JobFailed):
                while not step.parts.ended:
                    await step.parts.next()
        self._release(session)

    def _release(self, session: LiveSession) -> None:
        """Close the sequence of a session that is over, unless another session owns it."""
        model = session.terms.model
        if session.last and (model.id, session.sequence_id) not in self._sessions:
            self._serving.release_sequence(model, session.sequence_id)

    def _end(self, is_meant: Callable[[LiveSession], bool]) -> None:
        """Close some sessions, because the server shuts down."""
        for session in self._sessions.values():
            if is_meant(session):
                session.close_later()
