"""Whether the server is well: three questions that are not the same.

``/ping`` is TorchServe's: does every model have the workers it should have. ``/live``: does this process serve at all;
if not, restart it. ``/ready``: should it get traffic; not before every start-up model has its workers, not when one
could not be loaded at all, and not while it shuts down.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchserve_py.doors.errors import check_method, not_found
from torchserve_py.doors.responses import Responses, Sent
from torchserve_py.doors.routing import Route, Routes
from torchserve_py.doors.token_authorization import TokenType
from torchserve_py.settings.model_spec import fallback_name
from torchserve_py.transport.http1.request import Request

if TYPE_CHECKING:
    from torchserve_py.core.serving import Serving


class HealthDoor:
    """Answers probes."""

    def __init__(self, serving: Serving, responses: Responses) -> None:
        self._serving = serving
        self._responses = responses
        #: Set when the server begins to shut down.
        self.draining = False

    @property
    def routes(self) -> Routes:
        """First path segment to handler."""
        return {
            "ping": Route(self.ping, TokenType.inference),
            "live": Route(self.live, token=None),
            "ready": Route(self.ready, token=None),
        }

    def ping(self, request: Request, path: tuple[str, ...]) -> Sent:
        """``/ping``: 200, or 500 while a model lacks workers."""
        _exact(request, path)
        if self._serving.healthy():
            return self._responses.send_json(request, 200, {"status": "Healthy"})
        return self._responses.send_json(request, 500, {"status": "Unhealthy"})

    def live(self, request: Request, path: tuple[str, ...]) -> Sent:
        """``/live``: 200 whenever it answers."""
        _exact(request, path)
        return self._responses.send_json(request, 200, {"status": "Live"})

    def ready(self, request: Request, path: tuple[str, ...]) -> Sent:
        """``/ready``: 200, or 503 with the reasons."""
        _exact(request, path)
        reasons = []
        if self.draining:
            reasons.append("The server is shutting down.")
        # Without the error and the place, which may hold a path or a token: whoever probes need not have a key.
        reasons += [
            f'The start-up model "{spec.name or fallback_name(spec.location)}" could not be loaded; the log says why.'
            for spec in self._serving.not_loaded
        ]
        if not self._serving.not_loaded and not self._serving.startup_ready():
            reasons.append("A start-up model does not have its minimum of workers yet.")
        if reasons:
            return self._responses.send_json(request, 503, {"status": "NotReady", "reasons": reasons})
        return self._responses.send_json(request, 200, {"status": "Ready"})


def _exact(request: Request, path: tuple[str, ...]) -> None:
    if len(path) != 1:
        raise not_found()
    check_method(request.method)
