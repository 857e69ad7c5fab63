"""The metrics door: ``GET /metrics`` in Prometheus' text format."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from torchserve_py.doors.responses import Responses, Sent
from torchserve_py.doors.routing import Route, Routes
from torchserve_py.transport.http1.request import Request

if TYPE_CHECKING:
    from torchserve_py.metrics.server_metrics import ServerMetrics

_TEXT_FORMAT: Final = ("content-type", "text/plain; version=0.0.4; charset=utf-8")


class MetricsDoor:
    """Shows the server's metrics; no token is needed."""

    def __init__(self, metrics: ServerMetrics, responses: Responses) -> None:
        self._metrics = metrics
        self._responses = responses

    @property
    def routes(self) -> Routes:
        """First path segment to route."""
        return {"metrics": Route(self.show, token=None, methods=("GET", "HEAD"))}

    def show(self, request: Request, path: tuple[str, ...]) -> Sent:
        """``/metrics[?name[]=X…]``: all series, or those with one of the names. Further path segments are ignored."""
        names = {value for name, value in request.query if name == "name[]"}
        return self._responses.send(request, 200, self._metrics.expose(names or None), (_TEXT_FORMAT,))
