"""The endpoint for probes.

``/ping`` (TorchServe's) says whether every model has its workers; as the setting ``health_route`` it is 503 until the
start-up models are loaded. ``/live`` says whether the process serves; if not,
restart it. ``/ready`` says whether the server should get traffic: every start-up model is loaded and has its workers,
every start-up workflow is registered, and the server does not shut down. ``/health`` is the same.
"""

from collections.abc import Iterator
from typing import Final

from torchserve_py.base.causes import Cause
from torchserve_py.base.settings.model_spec import fallback_name
from torchserve_py.core.serving.serving import Serving
from torchserve_py.endpoints.failures import UNAVAILABLE, EndpointError, Failure
from torchserve_py.endpoints.openapi import STATUS, Operation
from torchserve_py.endpoints.responses import Answer, json_answer
from torchserve_py.endpoints.routing import READING, Endpoints, PathValues, Route
from torchserve_py.net.http1.request import Request

_PING_PATH: Final = "/ping"
SHUTTING_DOWN: Final = "The server is shutting down."
_PING: Final = Operation(
    "ping", "Whether every model has the workers it should have", (200, 500), error=STATUS, method="GET"
)
_LIVE: Final = Operation("liveness", "Whether the process serves at all", (200,), method="GET")
_READY: Final = Operation("readiness", "Whether the server should get traffic", (200, 503), error=STATUS, method="GET")
_HEALTH: Final = Operation("health", "The same as /ready", (200, 503), error=STATUS, method="GET")


class ProbesEndpoints(Endpoints):
    """Answers probes."""

    _was_ready = False

    def routes(self) -> Iterator[Route]:
        is_readiness = self.settings.health_route == _PING_PATH
        yield Route(_PING_PATH, self._first_ready if is_readiness else self._ping, operations=(_PING,), is_probe=True)
        yield Route("/live", self._live, token=None, operations=(_LIVE,), is_probe=True)
        yield Route("/ready", self._ready, token=None, operations=(_READY,), is_probe=True)
        # The name that clients of OpenAI's API know from other servers.
        yield Route("/health", self._ready, token=None, operations=(_HEALTH,), is_probe=True)
        if self.settings.health_route not in (None, "", "/health", _PING_PATH):
            yield Route(self.settings.health_route, self._ready, READING, token=None, is_probe=True)

    def _ping(self, request: Request, values: PathValues) -> Answer:
        healthy = self.serving.healthy()
        return json_answer({"status": "Healthy" if healthy else "Unhealthy"}, 200 if healthy else 500)

    def _first_ready(self, request: Request, values: PathValues) -> Answer:
        """Answer as `_ready` until the start-up models are loaded, then as `_ping`: a worker may be replaced."""
        self._was_ready = self._was_ready or self.serving.startup_ready()
        return self._ping(request, values) if self._was_ready else self._ready(request, values)

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
                    why = " They cannot load it; the log says why." if model.load_failure() else ""
                    yield f"{named} does not have its minimum of workers yet: {ready} of {least} are ready.{why}"
        for workflow in self.serving.awaited_workflows:
            problem = "could not be registered; the log says why" if workflow.failed else "is not registered yet"
            yield f'The start-up workflow "{workflow.name}" {problem}.'


def not_loaded(serving: Serving) -> Iterator[str]:
    """Yield a sentence about each model that is to be served and could not be loaded."""
    for spec in serving.not_loaded:  # the error and the location may hold a path or a token
        name = spec.name or fallback_name(spec.location)
        yield f'The start-up model "{name}" could not be loaded; the log says why.'
    for (name, version), awaited in serving.awaited.items():
        if awaited.failed:
            named = f'Model "{name}" (version {version}), which the fleet serves,'
            yield f"{named} could not be loaded on this server; the log says why."


def check_loaded(serving: Serving) -> None:
    """Raise EndpointError if a model that is to be served could not be loaded: a request without a name may mean it."""
    if reasons := " ".join(not_loaded(serving)):
        raise EndpointError(Failure(503, UNAVAILABLE, reasons, Cause.no_worker, overloaded=True))
