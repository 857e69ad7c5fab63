"""The door for live sessions: a WebSocket whose messages are the steps of one sequence.

    GET /sequences/{model}      GET /sequences/{model}/{version}

A step is what a ``POST /predictions/{model}`` with the sequence's headers would be. Everything that can be refused is
refused before the upgrade.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from torchserve_py.doors import priorities
from torchserve_py.doors.failures import DoorError, Failure, bad_request, failure_of_job
from torchserve_py.doors.live.live_session import LiveSession
from torchserve_py.doors.live.live_steps import MOST_STEPS, REPLACED, StepExchange, Terms
from torchserve_py.doors.live.message_forms import FORMS, Form
from torchserve_py.doors.responses import Sent, allows_other_origins
from torchserve_py.doors.routing import DoorContext, PathValues, Route
from torchserve_py.doors.sequences import SequenceHeaders
from torchserve_py.doors.token_authorization import TokenType
from torchserve_py.jobs.inference_request import InferenceRequest, SequenceRequest
from torchserve_py.jobs.parts import JobFailed
from torchserve_py.scheduling.effects import Cause
from torchserve_py.transport.http1.request import Request
from torchserve_py.transport.http1.websocket import WebSocket

if TYPE_CHECKING:
    from torchserve_py.core.serving import ServedModel

_SWITCHING_PROTOCOLS: Final = 101
_SUBPROTOCOL: Final = "Sec-WebSocket-Protocol"
#: The begin of the subprotocol by which a browser, which cannot set headers, offers the inference key.
_BEARER: Final = "bearer."
#: Headers of the handshake that steps do not have.
_OF_HANDSHAKE: Final = (b"connection", b"upgrade", b"sec-websocket-", b"content-length")


class LiveSessionDoor:
    """Opens live sessions."""

    def __init__(self, context: DoorContext) -> None:
        self._context = context
        self._serving = context.serving
        self._headers = SequenceHeaders(context.settings)
        self._max_message = context.settings.max_request_size
        self._sessions: dict[tuple[int, str], LiveSession] = {}
        self._finishing: set[asyncio.Task[None]] = set()
        # While the server drains, the sequences that no other server can continue go on.
        context.on_drain.append(lambda: self._end(lambda session: session.terms.durable))
        context.on_close.append(lambda: self._end(lambda session: True))

    @property
    def routes(self) -> Sequence[Route]:
        """The door's table; the door itself checks keys, which browsers cannot send in a header."""
        paths = ("/sequences/{model_name}", "/sequences/{model_name}/{model_version}")
        return [Route(path, self._open, ("GET",), token=None) for path in paths]

    def _open(self, request: Request, values: PathValues) -> Coroutine[Any, Any, Sent]:
        """Open a session.

        Raises:
            DoorError: The key is wrong, the request is no handshake, the model keeps no sequences, …
        """
        offered = [name.strip() for name in request.headers.get(_SUBPROTOCOL, "").split(",") if name.strip()]
        if self._context.tokens is not None:
            key = next((name.removeprefix(_BEARER) for name in offered if name.startswith(_BEARER)), None)
            given = request.headers.get("Authorization", None if key is None else f"Bearer {key}")
            self._context.tokens.check(TokenType.inference, given)
        self._check_origin(request)
        version = values.get("model_version")
        model = self._serving.get(values["model_name"], version)
        if not model.is_stateful:
            message = f'Model "{model.name}" keeps no sequences; set sequenceBatching: true in its model-config.yaml.'
            raise bad_request(message)
        if self._context.is_draining:
            raise DoorError(failure_of_job(Cause.draining, model.name, version))
        form = _form_of([name for name in offered if not name.startswith(_BEARER)])
        socket = WebSocket(request, self._max_message, compress=False)
        if not socket.is_possible:
            raise bad_request(f"GET {request.target.partition('?')[0]} is the handshake of a WebSocket (version 13).")
        return self._serve(request, socket, form, bool(offered), self._terms(request, model, version))

    def _check_origin(self, request: Request) -> None:
        """Refuse pages of other origins, for which browsers do not ask before they open a WebSocket.

        Raises:
            DoorError: The page's origin is not one that `cors_allowed_origin` names.
        """
        origin, settings = request.headers.get("Origin"), self._context.settings
        if origin is None or urlsplit(origin).netloc == request.headers.get("Host"):
            return
        if not (allows_other_origins(settings) and settings.cors_allowed_origin in ("*", origin)):
            message = f"Pages of {origin!a} may not open sessions; see cors_allowed_origin."
            raise DoorError(Failure(403, "OriginNotAllowedException", message))

    def _terms(self, request: Request, model: ServedModel, version: str | None) -> Terms:
        content_type = request.headers.get("Content-Type") or request.parameter("content_type")
        if content_type and not content_type.isascii():
            raise bad_request(f"Content type: {content_type!a} holds characters outside of ASCII.")
        headers = tuple(pair for pair in request.raw_headers if not pair[0].lower().startswith(_OF_HANDSHAKE))
        common = InferenceRequest(
            (*headers, ("url_path", ""), ("explain", "False")),
            b"",
            content_type,
            by_default=version is None,
            priority=priorities.of_request(request),
        )
        return Terms(
            serving=self._serving,
            model=model,
            version=version,
            request=common,
            sequence=self._sequence,
            end_header=self._context.settings.ts_header_key_sequence_end.lower(),
            window=min(MOST_STEPS, model.config.max_sequence_job_queue_size),
            max_message_size=self._max_message,
            max_idle=model.config.sequence_max_idle_ms / 1000 or math.inf,
        )

    def _sequence(self, sequence_id: str, starts: bool, ends: bool, number: int) -> SequenceRequest:
        return self._headers.request_of(sequence_id, "true" if starts else None, "true" if ends else None, str(number))

    async def _serve(self, request: Request, socket: WebSocket, form: Form, names_form: bool, terms: Terms) -> Sent:
        def adopted(session: LiveSession, before: str) -> None:
            request.log_fields = {"sequence_id": session.sequence_id}
            self._adopted(session, before)

        socket.accept([(_SUBPROTOCOL, form.name)] if names_form else [])
        session = LiveSession(socket, form, terms, adopted)
        try:
            await session.run()
        finally:
            self._leave(session)
        return Sent(_SWITCHING_PROTOCOLS)

    # Which session has a sequence.

    def _adopted(self, session: LiveSession, before: str) -> None:
        """Note which sequence a session has; close another session that has it, whose client must have left."""
        self._sessions.pop((session.terms.model.id, before), None)
        key = session.terms.model.id, session.sequence_id
        if (other := self._sessions.get(key)) is not None:
            other.tell(REPLACED)
        self._sessions[key] = session

    def _leave(self, session: LiveSession) -> None:
        """A session is over. Stored steps go on, so that their answers can be asked for; others are cancelled."""
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
        """Read the answers to steps whose client has left, so that their worker is not held up."""
        for step in steps:
            with contextlib.suppress(JobFailed):
                while not step.parts.ended:
                    await step.parts.next()
        self._release(session)

    def _release(self, session: LiveSession) -> None:
        """Close the sequence of a session that is over, unless another session has it."""
        model = session.terms.model
        if session.last and (model.id, session.sequence_id) not in self._sessions:
            self._serving.release_sequence(model, session.sequence_id)

    def _end(self, is_meant: Callable[[LiveSession], bool]) -> None:
        """Close some sessions, because the server shuts down."""
        for session in self._sessions.values():
            if is_meant(session):
                session.close_later()


def _form_of(offered: Sequence[str]) -> Form:
    """Return the first offered form of messages, the first of all if a client offers nothing.

    Raises:
        DoorError: None of those offered is known.
    """
    for name in offered or FORMS:
        if name in FORMS:
            return FORMS[name]
    raise bad_request(f"{_SUBPROTOCOL}: {', '.join(offered)!a} names none of {', '.join(FORMS)}.")
