"""What the doors of live sessions share: the checks of a handshake, and a session from its upgrade to its end."""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from torchserve_py.doors.failures import DoorError, bad_request, failure_of_job
from torchserve_py.doors.requests import client_of, priority_of
from torchserve_py.doors.responses import ALREADY_SENT, AlreadySent
from torchserve_py.doors.routing import Door, DoorContext
from torchserve_py.doors.sequences import SequenceHeaders
from torchserve_py.doors.token_authorization import TokenType
from torchserve_py.features.browser_guard.browser_guard import check_origin
from torchserve_py.features.live.live_steps import StepTemplate
from torchserve_py.features.live.socket_session import SocketSession
from torchserve_py.features.live.websocket import WebSocket
from torchserve_py.jobs.inference_request import InferenceRequest
from torchserve_py.scheduling.effects import Cause
from torchserve_py.serving.serving import ServedModel
from torchserve_py.transport.http1.request import Request

SUBPROTOCOL: Final = "Sec-WebSocket-Protocol"
#: What precedes the key in the subprotocol that OpenAI's clients send.
OPENAI_KEY: Final = "openai-insecure-api-key."
_BEARER: Final = "bearer."
#: What precedes a key in a subprotocol, in any of the APIs.
_KEY_PREFIXES: Final = (_BEARER, OPENAI_KEY)
#: The beginnings of the handshake's headers that are not passed on with steps.
_OF_HANDSHAKE: Final = (b"connection", b"upgrade", b"sec-websocket-", b"content-length")


class SessionDoor(Door):
    """Opens sessions, and closes them when the server shuts down.

    Its routes need no token: the door itself checks keys, which browsers cannot send in a header.
    """

    def __init__(self, context: DoorContext) -> None:
        super().__init__(context)
        self._headers = SequenceHeaders(context.settings)
        self._open_sessions: set[SocketSession] = set()
        context.on_close.append(lambda: self.close_sessions(lambda session: True))

    def admit(
        self, request: Request, token: TokenType = TokenType.inference, key_prefix: str = _BEARER
    ) -> Sequence[str]:
        """Check the client's key and its page's origin, and return the subprotocols that it offers.

        A browser, which cannot set headers, sends its key in the subprotocol that begins with ``key_prefix``. Raises
        DoorError: the key is wrong, or the page is of another origin.
        """
        offered = offered_by(request)
        if self.context.tokens is not None:
            self.context.tokens.check(token, _authorization(request, key_prefix))
        check_origin(request, self.settings)
        return [name for name in offered if not name.startswith(key_prefix)]

    def _socket_of(self, request: Request, model: ServedModel, version: str | None) -> WebSocket:
        if not model.is_stateful:
            message = f'Model "{model.name}" keeps no sequences; set sequenceBatching: true in its model-config.yaml.'
            raise bad_request(message)
        if self.context.is_draining:
            raise DoorError(failure_of_job(Cause.draining, model.name, version))
        socket = WebSocket(request, self.max_body, compress=False)
        if not socket.is_possible:
            raise bad_request(f"GET {request.target.partition('?')[0]} is the handshake of a WebSocket (version 13).")
        return socket

    def template(self, request: Request, model: ServedModel, version: str | None = None) -> StepTemplate:
        """Return what the steps of a session share; they have the headers of the handshake.

        Raises DoorError: the content type or the priority is unusable, or the client's key is not for the model.
        """
        account = None
        if self.context.tokens is not None:
            account = self.context.tokens.check_model(_authorization(request, *_KEY_PREFIXES), model.name)
        content_type = request.headers.get("Content-Type") or request.parameter("content_type")
        if content_type and not (content_type.isascii() and content_type.isprintable()):
            raise bad_request(
                f"Content type: {content_type!a} holds other characters than the printable ones of ASCII."
            )
        headers = tuple(pair for pair in request.raw_headers if not pair[0].lower().startswith(_OF_HANDSHAKE))
        common = InferenceRequest(
            (*headers, ("url_path", ""), ("explain", "False")),
            b"",
            content_type,
            by_default=version is None,
            priority=priority_of(request),
            via="websocket",
            client=client_of(request),
            account=account,
        )
        return StepTemplate(self.serving, self.settings, self._headers, model, version, common)

    async def serve(
        self,
        request: Request,
        model: ServedModel,
        make: Callable[[WebSocket, StepTemplate], SocketSession],
        version: str | None = None,
        headers: Iterable[tuple[str, str]] = (),
    ) -> AlreadySent:
        """Accept a handshake with these headers, and serve a session with a model to its end.

        Raises DoorError: the model keeps no sequences, the server shuts down, the request is no handshake, or its
        content type or priority is unusable.
        """
        socket = self._socket_of(request, model, version)
        session = make(socket, self.template(request, model, version))
        request.log_fields = {
            "sequence_id": session.sequence_id,
            "model": model.name,
            "model_version": model.version,
        }
        self._open_sessions.add(session)
        try:
            socket.accept(headers)
            await session.run()
        finally:
            self._open_sessions.discard(session)
            self.leave(session)
        return ALREADY_SENT

    def leave(self, session: SocketSession) -> None:
        """Clean up after a session: its sequence ends with its connection."""
        for step in session.take_unanswered():
            step.cancel()
        self.serving.release_sequence(session.template.model, session.sequence_id)

    def close_sessions(self, is_meant: Callable[[SocketSession], bool]) -> None:
        """Close some sessions once their steps have answers, because the server shuts down."""
        for session in filter(is_meant, self._open_sessions):
            session.close_later()


def first_known(offered: Sequence[str], known: Sequence[str]) -> str:
    """Return the first subprotocol offered that is known, the first of all if the client offers none.

    Raises DoorError: none of the offered forms is known.
    """
    for name in offered or known:
        if name in known:
            return name
    raise bad_request(f"{SUBPROTOCOL}: {', '.join(offered)!a} names none of {', '.join(known)}.")


def offered_by(request: Request) -> list[str]:
    """Return the subprotocols that a client offers."""
    return [name.strip() for name in request.headers.get(SUBPROTOCOL, "").split(",") if name.strip()]


def _authorization(request: Request, *prefixes: str) -> str | None:
    """Return the header ``Authorization``, or what it would be for the key in a subprotocol."""
    keys = (name.removeprefix(prefix) for name in offered_by(request) for prefix in prefixes if name.startswith(prefix))
    key = next(keys, None)
    return request.headers.get("Authorization", None if key is None else f"Bearer {key}")
