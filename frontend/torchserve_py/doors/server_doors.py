"""The doors for probes, metrics and the description of the API.

``/ping`` (TorchServe's) says whether every model has its workers. ``/live`` says whether the process serves; if not,
restart it. ``/ready`` says whether the server should get traffic: every start-up model is loaded and has its workers,
and the server does not shut down. ``/metrics`` is for Prometheus. ``OPTIONS /`` and the deprecated ``/api-description``
describe the API of a listener.
"""

from collections.abc import Iterator, Sequence
from time import monotonic
from typing import Final

from torchserve_py.doors.openapi import JSON, OBJECT, STATUS, TEXT, Operation, Parameter, described, document
from torchserve_py.doors.responses import Answer, json_answer
from torchserve_py.doors.routing import READING, Door, DoorContext, PathValues, Route
from torchserve_py.serving.serving import Serving
from torchserve_py.settings.model_spec import fallback_name
from torchserve_py.transport.http1.request import Request
from torchserve_py.transport.turns import running_turns

SHUTTING_DOWN: Final = "The server is shutting down."
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


class HealthDoor(Door):
    """Answers probes."""

    def routes(self) -> Iterator[Route]:
        yield Route("/ping", self._ping, operations=(_PING,))
        yield Route("/live", self._live, token=None, operations=(_LIVE,))
        yield Route("/ready", self._ready, token=None, operations=(_READY,))
        if self.settings.health_route:
            yield Route(self.settings.health_route, self._ready, READING, token=None)

    def _ping(self, request: Request, values: PathValues) -> Answer:
        healthy = self.serving.healthy()
        return json_answer({"status": "Healthy" if healthy else "Unhealthy"}, 200 if healthy else 500)

    def _live(self, request: Request, values: PathValues) -> Answer:
        return json_answer({"status": "Live"})

    def _ready(self, request: Request, values: PathValues) -> Answer:
        if reasons := list(self._reasons()):
            return json_answer({"status": "NotReady", "reasons": reasons}, 503)
        return json_answer({"status": "Ready"})

    def _reasons(self) -> Iterator[str]:
        """Yield why the server is not ready; the texts hold no secrets, because probes need no token."""
        if self.context.is_leaving:
            yield SHUTTING_DOWN
        yield from not_loaded(self.serving)
        for default in self.serving.models():
            for model in self.serving.versions(default.name):
                status = self.serving.status(model)
                ready, least = sum(worker.ready for worker in status.workers), status.min_workers
                if model.loaded_at_startup and ready < least:
                    named = f'The start-up model "{model.name}" (version {model.version})'
                    yield f"{named} does not have its minimum of workers yet: {ready} of {least} are ready."


def not_loaded(serving: Serving) -> Iterator[str]:
    """Yield a sentence about each start-up model that could not be loaded."""
    for spec in serving.not_loaded:  # the error and the location may hold a path or a token
        name = spec.name or fallback_name(spec.location)
        yield f'The start-up model "{name}" could not be loaded; the log says why.'


class MetricsDoor(Door):
    """Shows the server's metrics; no token is needed."""

    def routes(self) -> Iterator[Route]:
        """Yield the table. Further segments of the path are ignored, as in TorchServe."""
        yield Route("/metrics", self._show, READING, token=None, operations=(_METRICS,))
        yield Route("/metrics/{rest:path}", self._show, READING, token=None)

    async def _show(self, request: Request, values: PathValues) -> Answer:
        """Show all series, or those that the query names (``name[]``)."""
        names = {value for name, value in request.query if name == "name[]"}
        turns, lines, written = running_turns(), list[str](), list[bytes]()
        end = turns.end_of_slice()
        for line in self.context.metrics.expose(names or None):
            lines.append(line)
            if monotonic() > end:
                written.append("".join(lines).encode())
                lines.clear()
                await turns.next()
                end = turns.end_of_slice()
        written.append("".join(lines).encode())
        return Answer(200, b"".join(written), (("content-type", METRICS_TYPE),))


class DescriptionDoor(Door):
    """Shows the OpenAPI document of one listener, whose other doors have the routes ``others``."""

    def __init__(self, context: DoorContext, others: Sequence[Route]) -> None:
        super().__init__(context)
        self._answer = json_answer(document("TorchServe APIs", described([*self.routes(), *others])))

    def routes(self) -> Iterator[Route]:
        deprecated = _SHOW._replace(id="api-description", method="GET", deprecated=True)
        yield Route("/", self._show, ("OPTIONS",), token=None, operations=(_SHOW,))
        yield Route("/api-description", self._show, token=None, operations=(deprecated,))

    def _show(self, request: Request, values: PathValues) -> Answer:
        return self._answer
