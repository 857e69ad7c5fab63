"""The door for Truss's interface: finds the model that a request means, and has it answered in Truss's shapes.

What is not for a Truss is passed on to the doors behind this one, which have some of the same paths.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from torchserve_py.doors import priorities
from torchserve_py.doors.answering import AfterBody, Reply
from torchserve_py.doors.pipeline import HttpDialect, HttpExchange
from torchserve_py.doors.request_line import request_line
from torchserve_py.doors.responses import Responses, Sent
from torchserve_py.doors.routing import ROOT, Path, Route, Routes
from torchserve_py.doors.token_authorization import TokenType
from torchserve_py.doors.truss import openapi
from torchserve_py.doors.truss.answers import Answers
from torchserve_py.doors.truss.dialect import TRUSS_DIALECT, ErrorCode
from torchserve_py.doors.truss.probes import Probes
from torchserve_py.doors.truss.targets import Endpoint, Target, target_of
from torchserve_py.doors.truss.trusses import ONLY_NAME, Trusses
from torchserve_py.doors.truss.websocket import WebSocketDialect
from torchserve_py.jobs.inference_request import InferenceRequest
from torchserve_py.transport.http1.request import Request
from torchserve_py.transport.http1.websocket import WebSocket
from ts.protocol.messages import TRUSS

if TYPE_CHECKING:
    from torchserve_py.core.serving import ServedModel, Serving
    from torchserve_py.doors.token_authorization import TokenAuthorization
    from torchserve_py.settings.addresses import Address
    from torchserve_py.settings.table import Settings

_MODEL_NAME: Final = "model_name"


class TrussDoor:
    """Answers requests for Trusses."""

    def __init__(
        self, settings: Settings, serving: Serving, responses: Responses, tokens: TokenAuthorization | None
    ) -> None:
        self._serving = serving
        self._trusses = Trusses(serving)
        self._responses = responses
        self._tokens = tokens
        self._answers = Answers(responses)
        self._probes = Probes(serving, responses, self._answers)
        self._max_body = settings.max_request_size
        self._has_metrics = not settings.enable_metrics_api or not _are_shared(
            settings.metrics_address, settings.inference_address
        )

    @property
    def routes(self) -> Routes:
        """First path segment to route."""
        # The doors behind this one that have some of these paths want other keys: which it is depends on the model.
        serve = Route(self.serve, token=None, claims=lambda path: target_of(path) is not None, dialect=TRUSS_DIALECT)
        first = ("v1", "invocations", "models", "hot-reload", "openapi.json")
        routes = dict.fromkeys(first, serve)
        routes["ping"] = Route(self.ping, TokenType.inference, lambda path: len(path) == 1)
        routes[ROOT] = Route(self.root, token=None)
        if self._has_metrics:  # else that path shows the server's own metrics
            routes["metrics"] = Route(self.metrics, token=None, claims=lambda path: len(path) == 1)
        return routes

    def serve(self, request: Request, path: Path, body: bytes | None = None) -> Reply | None:
        """A path of `targets`; with ``body`` if it has been read."""
        target = target_of(path)
        assert target is not None
        model = self._find(request, target)
        if model is not None:
            return self._answer(request, model, target, body)
        if self._is_named_in_body(target):
            self._check_token(request)
            if body is not None:
                return self._serve_named(request, target, body)
            return self._after_body(lambda read: self._serve_named(request, target, read))
        return self._refuse_unknown(request, target)

    def _serve_named(self, request: Request, target: Target, body: bytes) -> Reply:
        """A request whose body names its model."""
        model = self._trusses.named_in(body)
        return self._refuse_unnamed(request) if model is None else self._answer(request, model, target, body)

    def _after_body(self, then: Callable[[bytes], Reply]) -> AfterBody:
        return AfterBody(self._max_body, then, TRUSS_DIALECT)

    def ping(self, request: Request, path: Path) -> Sent | None:
        """``/ping`` where nothing but Trusses is served: whether they are loaded."""
        if not self._trusses.serve_alone:
            return None
        if request.method != "GET":
            return self._answers.method_not_allowed(request, "GET")
        trusses = self._trusses.all
        missing = next((model for model in trusses if not self._serving.is_loaded(model)), trusses[0])
        return self._probes.loaded(request, missing, self._called(missing))

    def root(self, request: Request, path: Path) -> Sent | None:
        """``GET /`` where nothing but Trusses is served: the server is alive."""
        if path or request.method == "OPTIONS" or not self._trusses.serve_alone:
            return None
        if request.method != "GET":
            return self._answers.method_not_allowed(request, "GET")
        return self._probes.live(request)

    def metrics(self, request: Request, path: Path) -> Reply | None:
        """``/metrics/``: what the code of the only Truss counts with prometheus_client."""
        model = self._trusses.only
        if model is None:
            return None
        if request.method != "GET":
            return self._answers.method_not_allowed(request, "GET")
        if not request.target.partition("?")[0].endswith("/"):
            return self._responses.send(request, 307, b"", (("location", "/metrics/"),))
        return self._answer(request, model, Target(None, Endpoint.metrics), None)

    @property
    def unknown(self) -> Route:
        """What is asked about paths that no door claims: where nothing but Trusses is served, there is no such path."""
        return Route(self._unknown, token=None)

    def _unknown(self, request: Request, path: Path) -> Sent | None:
        return self._answers.not_found(request) if self._trusses.serve_alone else None

    def _check_token(self, request: Request) -> None:
        if self._tokens is not None:
            self._tokens.check(TokenType.inference, request.headers.get("Authorization"))

    def _find(self, request: Request, target: Target) -> ServedModel | None:
        if target.model is not None:
            return self._trusses.named(target.model)
        if target.endpoint is Endpoint.predict:  # /invocations, which other models have as well
            named = request.parameter(_MODEL_NAME)
            if named:
                return self._trusses.named(named)
            return self._trusses.only if self._trusses.serve_alone else None
        return self._trusses.only

    def _is_named_in_body(self, target: Target) -> bool:
        """Whether the model may be told by the body: that of OpenAI's interface and its like has it, in a field."""
        if target.model is not None or target.endpoint in (Endpoint.predict, Endpoint.hot_reload, Endpoint.openapi):
            return False
        return bool(self._trusses.all)

    def _refuse_unknown(self, request: Request, target: Target) -> Sent | None:
        """A name that no model has, where a Truss must be meant; what else it may be, the doors behind this one say."""
        if target.model is None or self._trusses.is_other(target.model) or not self._trusses.all:
            return None
        if target.is_shared and not self._trusses.serve_alone:
            return None
        self._check_token(request)
        return self._answers.error(request, 404, f"There is no model {target.model!r}.", ErrorCode.client)

    def _refuse_unnamed(self, request: Request) -> Sent:
        names = ", ".join(model.name for model in self._trusses.all)
        message = (
            f'There are several models ({names}): name one of them as "model" in a JSON body,'
            " or in the path as in /v1/models/{model}/v1/chat/completions."
        )
        return self._answers.error(request, 404, message, ErrorCode.client)

    def _answer(self, request: Request, model: ServedModel, target: Target, body: bytes | None = None) -> Reply:
        self._check_token(request)
        if request.method != target.endpoint.method:
            return self._answers.method_not_allowed(request, target.endpoint.method)
        name = target.model or self._called(model)
        match target.endpoint:
            case Endpoint.ready:
                return self._probes.ready(request, model, name)
            case Endpoint.loaded:
                return self._probes.loaded(request, model, name)
            case Endpoint.schema:
                return self._probes.schema(request, model, name)
            case Endpoint.openapi if self._serving.is_loaded(model):
                described = openapi.document(model, self._serving.declared(model), name, alone=target.model is None)
                return self._answers.json(request, described)
            case Endpoint.websocket if self._serving.is_loaded(model):
                socket = WebSocket(request, self._max_body)
                if not socket.is_possible:
                    return self._answers.not_found(request)
                intervals = self._serving.declared(model).get("websocket") or {}
                return self._run(request, model, target.endpoint, b"", WebSocketDialect(socket, intervals))
            case Endpoint.hot_reload if (refusal := self._why_not_reloaded(model)) is not None:
                return self._answers.error(request, *refusal, ErrorCode.client)
            case Endpoint.metrics if self._serving.is_loaded(model):
                return self._probes.metrics(request, model)

        def run(body: bytes) -> Reply:
            if not self._serving.is_loaded(model):
                return self._answers.not_ready(request, name)
            return self._run(request, model, target.endpoint, body)

        return self._after_body(run) if body is None else run(body)

    def _run(
        self,
        request: Request,
        model: ServedModel,
        endpoint: Endpoint,
        body: bytes,
        dialect: HttpDialect = TRUSS_DIALECT,
    ) -> HttpExchange:
        """Run a request on a model; its line goes to the worker in pseudo headers.

        Raises:
            DoorError: Its priority is invalid.
        """
        is_socket = endpoint is Endpoint.websocket
        asked = InferenceRequest(
            request.raw_headers + request_line(request, endpoint.value, "ws" if is_socket else "http"),
            body,
            request.headers.get("Content-Type"),
            TRUSS,
            by_default=True,
            priority=priorities.of_request(request),
            more_input=is_socket,
        )
        return HttpExchange(self._responses, dialect, request, self._serving, model, asked)

    def _called(self, model: ServedModel) -> str:
        """The name for a model that the request does not name."""
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
    """Whether two settings name one listener: port 0 is another free port each time."""
    return one == other and (one.is_unix or one.port != 0)
