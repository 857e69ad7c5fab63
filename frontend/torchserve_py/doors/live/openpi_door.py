"""The door for robots: the protocol of openpi's policy server, a WebSocket for each episode (``docs/robots.md``).

    GET /                           the only model that declares ``openpi``, or that of the query's ``model``
    GET /openpi/{model}             GET /openpi/{model}/{version}
    GET /healthz                    whether the server serves at all

An episode is a sequence. The first message tells the client of the policy; then each observation has its answer.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final

from torchserve_py.doors.failures import bad_request
from torchserve_py.doors.live.handshakes import admit, socket_of
from torchserve_py.doors.live.open_sessions import OpenSessions
from torchserve_py.doors.live.openpi_session import OpenpiSession
from torchserve_py.doors.openapi import TEXT, Operation
from torchserve_py.doors.responses import Responses, Sent
from torchserve_py.doors.routing import READING, DoorContext, PathValues, Route
from ts.protocol.messages import OPENPI

if TYPE_CHECKING:
    from torchserve_py.core.serving import ServedModel
    from torchserve_py.transport.http1.request import Request

_PLAIN: Final = "text/plain"
_HEALTHZ: Final = Operation(
    "healthz", "Whether the process serves at all, as openpi's policy server says it", (200,), gives={_PLAIN: TEXT}
)


class OpenpiDoor:
    """Opens episodes."""

    def __init__(self, context: DoorContext) -> None:
        self._context = context
        self._serving = context.serving
        self._responses: Responses = context.responses
        self._sessions = OpenSessions(context)

    @property
    def routes(self) -> Sequence[Route]:
        """The door's table; the door itself checks keys, because the path ``/`` is also an open one."""
        paths = ("/", "/openpi/{model_name}", "/openpi/{model_name}/{model_version}")
        opening = [Route(path, self._open, ("GET",), token=None) for path in paths]
        return [*opening, Route("/healthz", self._healthy, READING, token=None, operations=(_HEALTHZ,))]

    def _healthy(self, request: Request, values: PathValues) -> Sent:
        return self._responses.send(request, 200, b"OK\n", (("content-type", _PLAIN),))

    def _open(self, request: Request, values: PathValues) -> Coroutine[Any, Any, Sent] | None:
        """Open an episode; pass on what is no WebSocket for the path ``/``.

        Raises:
            DoorError: The key is wrong, the request is no handshake, no model is a policy, …
        """
        if not values and request.headers.get("Upgrade", "").lower() != "websocket":
            return None
        admit(self._context, request)
        version = values.get("model_version")
        name = values.get("model_name") or request.parameter("model")
        model = self._serving.get(name, version) if name else self._only_policy()
        socket = socket_of(self._context, request, model, version)
        terms = self._sessions.terms(request, model, version)
        terms = terms._replace(request=terms.request._replace(protocol=OPENPI))
        return self._sessions.serve(request, socket, lambda: OpenpiSession(socket, terms, model.config.openpi or {}))

    def _only_policy(self) -> ServedModel:
        """Return the model that declares itself a policy.

        Raises:
            DoorError: None does, or several do.
        """
        policies = [model for model in self._serving.models() if model.config.openpi is not None]
        if len(policies) == 1:
            return policies[0]
        names = ", ".join(model.name for model in policies)
        told = f"several models declare openpi: {names}" if policies else "no model declares openpi"
        raise bad_request(f"Name the model, as in /openpi/NAME or /?model=NAME: {told} in its model-config.yaml.")
