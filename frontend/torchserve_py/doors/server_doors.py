"""The doors for probes, metrics and the description of the API.

``/ping`` (TorchServe's) says whether every model has its workers. ``/live`` says whether the process serves; if not,
restart it. ``/ready`` says whether the server should get traffic: every start-up model is loaded and has its workers,
and the server does not shut down. ``/metrics`` is for Prometheus. ``OPTIONS /`` and the deprecated ``/api-description``
describe the API of a listener.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from torchserve_py.doors.openapi import JSON, OBJECT, STATUS, TEXT, Operation, Parameter, described, document
from torchserve_py.doors.responses import JSON_TYPE, Responses, Sent, to_json
from torchserve_py.doors.routing import READING, DoorContext, PathValues, Route
from torchserve_py.settings.model_spec import fallback_name
from torchserve_py.transport.http1.request import Request

METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_METRICS: Final = Operation(
    "metrics",
    "Metrics in Prometheus' text format",
    (200, 500),
    (Parameter("name[]", "Names of the metrics to show, all if none is given", "array"),),
    gives={METRICS_TYPE: TEXT},
)
_PING: Final = Operation(
    "ping", "Whether every model has the workers it should have", (200, 500), error=STATUS, method="GET"
)
_LIVE: Final = Operation("liveness", "Whether the process serves at all", (200,), method="GET")
_READY: Final = Operation("readiness", "Whether the server should get traffic", (200, 503), error=STATUS, method="GET")

_SHOW: Final = Operation("apiDescription", "The OpenAPI description of this listener", (200, 500), gives={JSON: OBJECT})


class HealthDoor:
    """Answers probes."""

    def __init__(self, context: DoorContext) -> None:
        self._context = context
        self._serving = context.serving
        self._responses = context.responses

    @property
    def routes(self) -> Sequence[Route]:
        return [
            Route("/ping", self._ping, operations=(_PING,)),
            Route("/live", self._live, token=None, operations=(_LIVE,)),
            Route("/ready", self._ready, token=None, operations=(_READY,)),
            *([Route(also, self._ready, READING, token=None)] if (also := self._context.settings.health_route) else []),
        ]

    def _ping(self, request: Request, values: PathValues) -> Sent:
        if self._serving.healthy():
            return self._responses.send_json(request, 200, {"status": "Healthy"})
        return self._responses.send_json(request, 500, {"status": "Unhealthy"})

    def _live(self, request: Request, values: PathValues) -> Sent:
        return self._responses.send_json(request, 200, {"status": "Live"})

    def _ready(self, request: Request, values: PathValues) -> Sent:
        reasons = list(self._reasons())
        if reasons:
            return self._responses.send_json(request, 503, {"status": "NotReady", "reasons": reasons})
        return self._responses.send_json(request, 200, {"status": "Ready"})

    def _reasons(self) -> Iterator[str]:
        """Yield why the server is not ready; the texts hold no secrets, because probes need no token."""
        if self._context.is_draining:
            yield "The server is shutting down."
        for spec in self._serving.not_loaded:  # the error and the location may hold a path or a token
            name = spec.name or fallback_name(spec.location)
            yield f'The start-up model "{name}" could not be loaded; the log says why.'
        for default in self._serving.models():
            for model in self._serving.versions(default.name):
                status = self._serving.status(model)
                ready, least = sum(worker.ready for worker in status.workers), status.min_workers
                if model.loaded_at_startup and ready < least:
                    named = f'The start-up model "{model.name}" (version {model.version})'
                    yield f"{named} does not have its minimum of workers yet: {ready} of {least} are ready."


class MetricsDoor:
    """Shows the server's metrics; no token is needed."""

    def __init__(self, context: DoorContext) -> None:
        self._metrics = context.metrics
        self._responses = context.responses

    @property
    def routes(self) -> Sequence[Route]:
        """The door's table. Further segments of the path are ignored, as in TorchServe."""
        return [
            Route("/metrics", self._show, READING, token=None, operations=(_METRICS,)),
            Route("/metrics/{rest:path}", self._show, READING, token=None),
        ]

    def _show(self, request: Request, values: PathValues) -> Sent:
        """Show all series, or those that the query names (``name[]``)."""
        names = {value for name, value in request.query if name == "name[]"}
        shown = self._metrics.expose(names or None)
        return self._responses.send(request, 200, shown, (("content-type", METRICS_TYPE),))


class DescriptionDoor:
    """Shows the OpenAPI document of one listener.

    Args:
        responses: Writes answers.
        routes: The tables of the listener's other doors.
    """

    def __init__(self, responses: Responses, routes: Sequence[Route]) -> None:
        self._responses = responses
        self._document = to_json(document("TorchServe APIs", described([*self.routes, *routes])))

    @property
    def routes(self) -> Sequence[Route]:
        deprecated = _SHOW._replace(id="api-description", method="GET", deprecated=True)
        return [
            Route("/", self._show, ("OPTIONS",), token=None, operations=(_SHOW,)),
            Route("/api-description", self._show, token=None, operations=(deprecated,)),
        ]

    def _show(self, request: Request, values: PathValues) -> Sent:
        return self._responses.send(request, 200, self._document, (JSON_TYPE,))
