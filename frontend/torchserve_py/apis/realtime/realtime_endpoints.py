"""The endpoint for OpenAI's realtime API, as far as it transcribes: models that declare ``realtime: true``.

    GET /v1/realtime?intent=transcription[&model=…]

It is a WebSocket. vLLM's clients use the same path without the query; what they send tells them apart.
"""

from collections.abc import Coroutine, Iterator, Sequence
from functools import partial
from typing import Any, Final

from torchserve_py.apis.live.session_endpoints import SUBPROTOCOL, SessionEndpoints, first_known
from torchserve_py.apis.openai.openai_endpoints import DIALECT
from torchserve_py.apis.realtime.client_events import BadEvent
from torchserve_py.apis.realtime.realtime_keys import transcribes
from torchserve_py.apis.realtime.realtime_session import RealtimeSession
from torchserve_py.endpoints.failures import EndpointError, Failure, bad_request
from torchserve_py.endpoints.responses import AlreadySent
from torchserve_py.endpoints.routing import PathValues, Route
from torchserve_py.net.http1.request import Request

#: Subprotocols of OpenAI's browser clients: that of the API, and the beta.
_REALTIME: Final = "realtime"
_BETA: Final = "openai-beta.realtime-v1"
_BETA_HEADER: Final = "OpenAI-Beta"
_TRANSCRIPTION: Final = "transcription"


class RealtimeEndpoints(SessionEndpoints):
    """Opens sessions of the realtime API."""

    def routes(self) -> Iterator[Route]:
        yield Route("/v1/realtime", self._open, ("GET",), dialect=DIALECT)

    def _open(self, request: Request, values: PathValues) -> Coroutine[Any, Any, AlreadySent]:
        offered = self.offered_to(request)
        intent = request.parameter("intent") or _TRANSCRIPTION
        if intent != _TRANSCRIPTION:
            raise bad_request(f"intent={intent!a}: this server has sessions with intent=transcription.")
        try:
            name = self.named(request.parameter("model"))
        except BadEvent as error:
            raise EndpointError(Failure(404, "ModelNotFoundException", str(error), error.code)) from error
        return self.open(request, name, offered)

    def open(self, request: Request, name: str, offered: Sequence[str] = ()) -> Coroutine[Any, Any, AlreadySent]:
        """Open a session that begins with this model, whose client offers these subprotocols.

        Raises EndpointError: the request is no handshake, no subprotocol is known, the server shuts down, …
        """
        beta = _BETA in offered or "realtime=v1" in request.headers.get(_BETA_HEADER, "")
        answered = [(SUBPROTOCOL, first_known(offered, (_REALTIME, _BETA)))] if offered else []
        make = partial(RealtimeSession, endpoint=self, request=request, beta=beta)
        return self.serve(request, self.serving.get(name), make, headers=answered)

    def named(self, name: str | None) -> str:
        """Return the model that a name means; the only one, whatever the name is. Raises BadEvent: there is none."""
        names = [model.name for model in self.serving.models() if transcribes(model)]
        if name in names:
            return str(name)
        if names and (name is None or len(names) == 1):
            return names[0]
        known = f"Models that transcribe: {', '.join(names)}." if names else "No model declares realtime: true."
        raise BadEvent(f"The model {name!a} does not exist. {known}", "model_not_found", "model")
