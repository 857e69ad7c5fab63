"""What the endpoints of live sessions share: the checks of a handshake, and a session from its upgrade to its end."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final

from torchserve_py.apis.live.live_steps import StepTemplate
from torchserve_py.apis.live.socket_session import SocketSession
from torchserve_py.base.causes import Cause
from torchserve_py.core.jobs.call import Call
from torchserve_py.core.serving.serving import ServedModel
from torchserve_py.endpoints.credentials import Credential, without_keys
from torchserve_py.endpoints.failures import EndpointError, bad_request, failure_of_job
from torchserve_py.endpoints.requests import priority_of
from torchserve_py.endpoints.responses import ALREADY_SENT, AlreadySent
from torchserve_py.endpoints.routing import EndpointContext, Endpoints
from torchserve_py.endpoints.sequences import SequenceHeaders
from torchserve_py.endpoints.time_limits import read_deadline
from torchserve_py.net.http1.request import Request
from torchserve_py.net.websocket import WebSocket
from torchserve_py.ops.browser_guard.browser_guard import check_origin

#: The beginning of the names of headers that are also query parameters, since browsers set no headers.
_PREFIX: Final = "ts_request_"
SUBPROTOCOL: Final = "Sec-WebSocket-Protocol"
#: The beginnings of the handshake's headers that are not passed on with steps.
_OF_HANDSHAKE: Final = (b"connection", b"upgrade", b"sec-websocket-", b"content-length")


class SessionEndpoints(Endpoints):
    """Opens sessions, and closes them when the server shuts down or their keys are good no more."""

    def __init__(self, context: EndpointContext) -> None:
        super().__init__(context)
        self._headers = SequenceHeaders(context.settings)
        self._open_sessions: set[SocketSession] = set()
        context.on_close.append(lambda: self.close_sessions(lambda session: True))

    def offered_to(self, request: Request) -> Sequence[str]:
        """Return the subprotocols that a client offers, without keys. Raises EndpointError: its page is of another
        origin.

        Any page may open a WebSocket to any server, and the browser sends what it knows of the server.
        """
        check_origin(request, self.settings)
        return without_keys(offered_by(request))

    def _socket_of(self, request: Request, model: ServedModel, version: str | None) -> WebSocket:
        if self.context.is_draining:
            raise EndpointError(failure_of_job(Cause.draining, model.name, version))
        socket = WebSocket(request, self.max_body, compress=False)
        if not socket.is_possible:
            raise bad_request(f"GET {request.target.partition('?')[0]} is the handshake of a WebSocket (version 13).")
        return socket

    def template(
        self, request: Request, model: ServedModel, version: str | None = None, workflow: str = ""
    ) -> StepTemplate:
        """Return what the steps of a session share; they have the headers of the handshake.

        Raises EndpointError: the content type, the priority or a deadline is unusable, or the client's key is not for
        the model, or for the workflow of which the model is a node.
        """
        account = self.context.account(request, workflow or model.name)
        content_type = request.headers.get("Content-Type") or request.parameter("content_type")
        if content_type and not (content_type.isascii() and content_type.isprintable()):
            raise bad_request(
                f"Content type: {content_type!a} holds other characters than the printable ones of ASCII."
            )
        headers = tuple(pair for pair in request.raw_headers if not pair[0].lower().startswith(_OF_HANDSHAKE))
        common = Call(
            (*headers, ("url_path", ""), ("explain", "False")),
            b"",
            content_type,
            by_default=version is None,
            priority=priority_of(request),
            via="websocket",
            client=request.connection.client,
            account=account,
        )
        read_deadline(common, partial(_named, request), "Header", is_session=True)
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

        Raises EndpointError: the model keeps no sequences, the server shuts down, the request is no handshake, or its
        content type or priority is unusable.
        """
        if not model.is_stateful:
            message = f'Model "{model.name}" keeps no sequences; set sequenceBatching: true in its model-config.yaml.'
            raise bad_request(message)
        socket = self._socket_of(request, model, version)
        session = make(socket, self.template(request, model, version))
        return await self._serve(request, model, (model.name,), session, socket, headers)

    async def serve_several(
        self,
        request: Request,
        models: Sequence[ServedModel],
        make: Callable[[WebSocket, Mapping[str, StepTemplate]], SocketSession],
        headers: Iterable[tuple[str, str]] = (),
        workflow: str = "",
    ) -> AlreadySent:
        """Serve a session with several models, each of which may keep sequences; ``make`` gets templates by name.

        If the models are nodes of a workflow, the client's key must be for that, and their versions stay.

        Raises EndpointError: as `serve`; the client's key is not for one of the models.
        """
        socket = self._socket_of(request, models[0], None)
        templates = {
            model.name: self.template(request, model, model.version if workflow else None, workflow) for model in models
        }
        names = (workflow,) if workflow else [model.name for model in models]
        return await self._serve(request, models[0], names, make(socket, templates), socket, headers)

    async def _serve(
        self,
        request: Request,
        model: ServedModel,
        names: Iterable[str],
        session: SocketSession,
        socket: WebSocket,
        headers: Iterable[tuple[str, str]],
    ) -> AlreadySent:
        """Serve a session to its end, or until its key is not for one of these names any more."""
        request.log_fields = {
            "sequence_id": session.sequence_id,
            "model": model.name,
            "model_version": model.version,
        }
        credential: Credential | None = request.credential
        held = () if credential is None else [credential.hold(name, session.lose_right) for name in names]
        self._open_sessions.add(session)
        try:
            socket.accept(headers)
            await session.run()
        finally:
            self._open_sessions.discard(session)
            for forget in held:
                forget()
            self.leave(session)
        return ALREADY_SENT

    @property
    def open_sessions(self) -> Sequence[SocketSession]:
        """The sessions that are open now."""
        return tuple(self._open_sessions)

    def leave(self, session: SocketSession) -> None:
        """Clean up after a session: its sequence ends with its connection."""
        for step in session.take_unanswered():
            step.cancel()
        self.serving.release_sequence(session.template.model, session.sequence_id)

    def close_sessions(self, is_meant: Callable[[SocketSession], bool]) -> None:
        """Close some sessions once their steps have answers, because the server shuts down."""
        for session in filter(is_meant, self._open_sessions):
            session.close_later()


def _named(request: Request, name: str) -> str | None:
    """Return the value of a header, or of the query parameter that goes by its name without the prefix."""
    value = request.headers.get(name)
    return value if value is not None else request.parameter(name.removeprefix(_PREFIX)) or None


def first_known(offered: Sequence[str], known: Sequence[str]) -> str:
    """Return the first subprotocol offered that is known, the first of all if the client offers none.

    Raises EndpointError: none of the offered forms is known.
    """
    for name in offered or known:
        if name in known:
            return name
    raise bad_request(f"{SUBPROTOCOL}: {', '.join(offered)!a} names none of {', '.join(known)}.")


def offered_by(request: Request) -> list[str]:
    """Return the subprotocols that a client offers."""
    return [name.strip() for name in request.headers.get(SUBPROTOCOL, "").split(",") if name.strip()]
