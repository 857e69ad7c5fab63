"""The door for OpenAI's realtime API, as far as it transcribes: models that declare ``realtime: true``.

    GET /v1/realtime?intent=transcription[&model=…]

It is a WebSocket. vLLM's clients use the same path without the query; what they send tells them apart.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from torchserve_py.doors.failures import DoorError, Failure, bad_request
from torchserve_py.doors.live.handshakes import (
    SUBPROTOCOL,
    admit,
    first_known,
    socket_of,
)
from torchserve_py.doors.live.open_sessions import OpenSessions
from torchserve_py.doors.openai import DIALECT
from torchserve_py.doors.realtime.client_events import BadEvent
from torchserve_py.doors.realtime.realtime_session import RealtimeSession
from torchserve_py.doors.realtime.session_config import SessionConfig
from torchserve_py.doors.responses import Sent
from torchserve_py.doors.routing import DoorContext, PathValues, Route

if TYPE_CHECKING:
    from torchserve_py.doors.live.live_steps import Terms
    from torchserve_py.transport.http1.request import Request

#: Subprotocols of OpenAI's browser clients: that of the API, the beta, and the beginning of the one with the key.
_REALTIME: Final = "realtime"
_BETA: Final = "openai-beta.realtime-v1"
_KEY: Final = "openai-insecure-api-key."
_BETA_HEADER: Final = "OpenAI-Beta"
_TRANSCRIPTION: Final = "transcription"


class RealtimeDoor:
    """Opens sessions of the realtime API."""

    def __init__(self, context: DoorContext) -> None:
        self._context = context
        self._serving = context.serving
        self._sessions = OpenSessions(context)

    @property
    def routes(self) -> Sequence[Route]:
        """The door's table; the door itself checks keys, which browsers cannot send in a header."""
        return [Route("/v1/realtime", self._open, ("GET",), token=None, dialect=DIALECT)]

    def _open(self, request: Request, values: PathValues) -> Coroutine[Any, Any, Sent]:
        """Open a session.

        Raises:
            DoorError: The key is wrong, the request is no handshake, no model transcribes, …
        """
        offered = admit(self._context, request, key_prefix=_KEY)
        intent = request.parameter("intent") or _TRANSCRIPTION
        if intent != _TRANSCRIPTION:
            raise bad_request(f"intent={intent!a}: this server has sessions with intent=transcription.")
        try:
            name = self._named(request.parameter("model"))
        except BadEvent as error:
            raise DoorError(Failure(404, "ModelNotFoundException", str(error), error.code)) from error
        return self.open(request, name, offered)

    def open(self, request: Request, name: str, offered: Sequence[str] = ()) -> Coroutine[Any, Any, Sent]:
        """Open a session that begins with this model, whose client offers these subprotocols.

        Raises:
            DoorError: The request is no handshake, no subprotocol is known, the server shuts down, …
        """
        socket = socket_of(self._context, request, self._serving.get(name))
        beta = _BETA in offered or "realtime=v1" in request.headers.get(_BETA_HEADER, "")
        answered = [(SUBPROTOCOL, first_known(offered, (_REALTIME, _BETA)))] if offered else []
        terms = self._terms(request, name)

        def make() -> RealtimeSession:
            return RealtimeSession(
                socket, SessionConfig(name), terms, partial(self._terms, request), self._named, beta=beta
            )

        return self._sessions.serve(request, socket, make, answered)

    def _terms(self, request: Request, name: str) -> Terms:
        return self._sessions.terms(request, self._serving.get(name))

    def _named(self, name: str | None) -> str:
        """Return the model that a client means by a name; the only one, whatever the name is.

        Raises:
            BadEvent: There is none.
        """
        names = [model.name for model in self._serving.models() if model.config.realtime]
        if name in names:
            return str(name)
        if names and (name is None or len(names) == 1):
            return names[0]
        known = f"Models that transcribe: {', '.join(names)}." if names else "No model declares realtime: true."
        raise BadEvent(f"The model {name!a} does not exist. {known}", "model_not_found", "model")
