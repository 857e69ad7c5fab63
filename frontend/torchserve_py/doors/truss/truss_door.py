"""The door for Truss's interface: finds the Truss for a request, and answers in Truss's shapes.

Trusses share some paths with models of other contracts; a route applies only if the request means a Truss.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from torchserve_py.doors import priorities
from torchserve_py.doors.failures import not_found
from torchserve_py.doors.pipeline import Answer, HttpDialect, HttpExchange
from torchserve_py.doors.requests import request_line
from torchserve_py.doors.responses import Sent
from torchserve_py.doors.routing import ANY_METHOD, ANY_PATH, AfterBody, DoorContext, PathValues, Reply, Route
from torchserve_py.doors.surfaces import BIDIRECTIONAL_STREAM
from torchserve_py.doors.truss import probes, truss_document
from torchserve_py.doors.truss.endpoints import ALIASES, PATHS, Endpoint, method_of
from torchserve_py.doors.truss.truss_dialect import TRUSS_DIALECT, ErrorCode, error_answer, json_answer, not_ready
from torchserve_py.doors.truss.trusses import ONLY_NAME, Trusses, name_in
from torchserve_py.doors.truss.websocket import WebSocketDialect
from torchserve_py.jobs.inference_request import InferenceRequest
from torchserve_py.transport.http1.request import Request
from torchserve_py.transport.http1.websocket import WebSocket
from ts.protocol.messages import TRUSS

if TYPE_CHECKING:
    from torchserve_py.core.serving import ServedModel
    from torchserve_py.settings.addresses import Address

_MODEL_NAME: Final = "model_name"
_GET: Final = ("GET",)
#: Endpoints whose body may name the model if the path does not, as OpenAI's clients do.
_NAMED_IN_BODY: Final = frozenset(ALIASES.values())


class TrussDoor:
    """Answers requests for Trusses."""

    def __init__(self, context: DoorContext) -> None:
        settings = context.settings
        self._serving = context.serving
        self._trusses = Trusses(context.serving)
        self._responses = context.responses
        self._max_body = settings.max_request_size
        self._has_metrics = not settings.enable_metrics_api or not _are_shared(
            settings.metrics_address, settings.inference_address
        )

    @property
    def routes(self) -> Sequence[Route]:
        return list(self._rows())

    def _rows(self) -> Iterator[Route]:
        for path, endpoint in PATHS:
            serve, is_meant = partial(self._serve, endpoint), partial(self._is_meant, endpoint)
            yield Route(path, serve, (method_of(endpoint),), dialect=TRUSS_DIALECT, applies=is_meant)
        stream = partial(self._serve, Endpoint.websocket)
        yield Route(BIDIRECTIONAL_STREAM, stream, _GET, dialect=TRUSS_DIALECT, applies=self._serve_alone)
        yield Route("/ping", self._ping, _GET, dialect=TRUSS_DIALECT, applies=self._serve_alone)
        yield Route("/", self._live, _GET, None, TRUSS_DIALECT, applies=self._is_root)
        if self._has_metrics:  # otherwise the path shows the server's metrics
            has_one = partial(self._is_meant, Endpoint.metrics)
            yield Route("/metrics", self._metrics, _GET, dialect=TRUSS_DIALECT, applies=has_one)
        yield Route(ANY_PATH, self._unknown, ANY_METHOD, None, TRUSS_DIALECT, applies=self._serve_alone)

    # Whether a request means a Truss.

    def _is_meant(self, endpoint: Endpoint, request: Request, values: PathValues) -> bool:
        """Return whether a path is for a Truss, or names a model that does not exist and could only be a Truss."""
        trusses, name = self._trusses, values.get(_MODEL_NAME)
        if name is not None:
            if trusses.named(name) is not None:
                return True
            is_shared = endpoint is Endpoint.predict and not trusses.serve_alone
            return not is_shared and bool(trusses.all) and not trusses.is_other(name)
        if endpoint in _NAMED_IN_BODY or endpoint is Endpoint.websocket:
            return bool(trusses.all)
        return self._find(endpoint, request, values) is not None

    def _serve_alone(self, request: Request, values: PathValues) -> bool:
        return self._trusses.serve_alone

    def _is_root(self, request: Request, values: PathValues) -> bool:
        return request.method != "OPTIONS" and self._trusses.serve_alone

    def _find(self, endpoint: Endpoint, request: Request, values: PathValues) -> ServedModel | None:
        name = values.get(_MODEL_NAME)
        if name is None and endpoint is Endpoint.predict:  # /invocations, which other models have as well
            name = request.parameter(_MODEL_NAME)
            if not name:
                return self._trusses.only if self._trusses.serve_alone else None
        return self._trusses.only if name is None else self._trusses.named(name)

    # Paths.

    def _serve(self, endpoint: Endpoint, request: Request, values: PathValues) -> Reply:
        name = values.get(_MODEL_NAME)
        model = self._find(endpoint, request, values)
        if model is not None and (self._trusses.serve_alone or endpoint not in _NAMED_IN_BODY or name):
            return self._answer(request, model, endpoint, name)
        if name is not None:
            return self._send(request, error_answer(404, f"There is no model {name!r}.", ErrorCode.client))
        if endpoint not in _NAMED_IN_BODY:
            return self._refuse_unnamed(request)
        return AfterBody(self._max_body, lambda body: self._serve_named(request, endpoint, body))

    def _serve_named(self, request: Request, endpoint: Endpoint, body: bytes) -> Reply | None:
        """Serve a request whose body may name its model; None if that model is not a Truss."""
        name = name_in(body)
        if name is not None and self._trusses.is_other(name):
            return None
        model = (self._trusses.named(name) if name is not None else None) or self._trusses.only
        return self._refuse_unnamed(request) if model is None else self._answer(request, model, endpoint, None, body)

    def _ping(self, request: Request, values: PathValues) -> Sent:
        """Answer ``/ping`` of a server with Trusses alone: whether they are loaded."""
        trusses = self._trusses.all
        missing = next((model for model in trusses if not self._serving.is_loaded(model)), trusses[0])
        return self._send(request, probes.loaded(self._serving, missing, self._called(missing)), is_quiet=True)

    def _live(self, request: Request, values: PathValues) -> Sent:
        return self._send(request, probes.LIVE, is_quiet=True)

    def _metrics(self, request: Request, values: PathValues) -> Reply:
        """Answer ``/metrics/`` with the metrics of the only Truss's own code."""
        if not request.target.partition("?")[0].endswith("/"):
            return self._responses.send(request, 307, b"", (("location", "/metrics/"),))
        return self._serve(Endpoint.metrics, request, values)

    def _unknown(self, request: Request, values: PathValues) -> Sent:
        raise not_found()

    def _refuse_unnamed(self, request: Request) -> Sent:
        names = ", ".join(model.name for model in self._trusses.all)
        message = (
            f'There are several models ({names}): name one of them as "model" in a JSON body,'
            " or in the path as in /v1/models/{model}/v1/chat/completions."
        )
        return self._send(request, error_answer(404, message, ErrorCode.client))

    def _answer(
        self, request: Request, model: ServedModel, endpoint: Endpoint, named: str | None, body: bytes | None = None
    ) -> Reply:
        name = named or self._called(model)
        match endpoint:
            case Endpoint.ready:
                return self._wait(request, probes.ready(self._serving, model, name))
            case Endpoint.loaded:
                return self._send(request, probes.loaded(self._serving, model, name), is_quiet=True)
            case Endpoint.schema:
                return self._send(request, probes.schema(self._serving, model, name))
            case Endpoint.openapi if self._serving.is_loaded(model):
                described = truss_document.document_of(model, self._serving.declared(model), name, alone=named is None)
                return self._send(request, json_answer(described))
            case Endpoint.websocket if self._serving.is_loaded(model):
                socket = WebSocket(request, self._max_body)
                if not socket.is_possible:
                    raise not_found()
                intervals = self._serving.declared(model).get("websocket") or {}
                return self._run(request, model, endpoint, b"", WebSocketDialect(socket, intervals))
            case Endpoint.hot_reload if (refusal := self._why_not_reloaded(model)) is not None:
                return self._send(request, error_answer(*refusal, ErrorCode.client))
            case Endpoint.metrics if self._serving.is_loaded(model):
                return self._wait(request, probes.metrics(self._serving, model))

        def run(body: bytes) -> Reply:
            if not self._serving.is_loaded(model):
                return self._send(request, not_ready(name))
            return self._run(request, model, endpoint, body)

        return AfterBody(self._max_body, run) if body is None else run(body)

    async def _wait(self, request: Request, answer: Coroutine[Any, Any, Answer]) -> Sent:
        return self._send(request, await answer, is_quiet=True)

    def _send(self, request: Request, answer: Answer, *, is_quiet: bool = False) -> Sent:
        """Send an answer; ``is_quiet`` keeps it out of the access log, as a probe's."""
        return self._responses.send_answer(request, answer)._replace(is_quiet=is_quiet)

    def _run(
        self,
        request: Request,
        model: ServedModel,
        endpoint: Endpoint,
        body: bytes,
        dialect: HttpDialect = TRUSS_DIALECT,
    ) -> HttpExchange:
        """Run a request on a model; pseudo headers pass the request line to the worker.

        Raises DoorError: the priority is invalid.
        """
        is_socket = endpoint is Endpoint.websocket
        inference = InferenceRequest(
            request.raw_headers + request_line(request, endpoint.value, "ws" if is_socket else "http"),
            body,
            request.headers.get("Content-Type"),
            TRUSS,
            by_default=True,
            priority=priorities.of_request(request),
            more_input=is_socket,
        )
        return HttpExchange(self._responses, dialect, request, self._serving, model, inference)

    def _called(self, model: ServedModel) -> str:
        """Return the name of a model that the request does not name."""
        return ONLY_NAME if self._trusses.only is model else model.name

    def _why_not_reloaded(self, model: ServedModel) -> tuple[int, str] | None:
        """Return the status and the text of a refusal to reload the code of a model, None if it may be reloaded."""
        if self._serving.is_loaded(model) and not self._serving.declared(model).get("hot_reload"):
            return 404, "Hot reload is off. It is on with truss: {hotReload: true} in the model's model-config.yaml."
        most = self._serving.status(model).max_workers
        if most > 1:
            return 409, f"Only one worker could be reloaded, but the model may have {most}."
        return None


def _are_shared(one: Address, other: Address) -> bool:
    """Return whether two settings name the same listener; port 0 is another free port each time."""
    return one == other and (one.is_unix or one.port != 0)
