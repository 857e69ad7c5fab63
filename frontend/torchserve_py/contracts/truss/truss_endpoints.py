"""The endpoint for Truss's interface: finds the Truss for a request, and answers in Truss's shapes.

Trusses share some paths with models of other contracts; a route applies only if the request means a Truss.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple, Self

from torchserve_py.apis.sagemaker.bidirectional_stream import BIDIRECTIONAL_STREAM
from torchserve_py.base.metrics.families import METRICS_TYPE
from torchserve_py.contracts.truss.endpoints import (
    ALIASES,
    DEPLOYED_PATHS,
    DEPLOYMENTS,
    PATHS,
    PLATFORMS_PATHS,
    READING,
    Endpoint,
    document_of,
)
from torchserve_py.contracts.truss.merged_metrics import merged
from torchserve_py.contracts.truss.truss_dialect import (
    MODEL_FAILED,
    TRUSS_DIALECT,
    TrussErrorCode,
    error_answer,
    not_ready,
    truss_answer,
)
from torchserve_py.contracts.truss.websocket import WebSocketDialect
from torchserve_py.core.serving.errors import ModelNotFound
from torchserve_py.core.serving.serving import ServedModel
from torchserve_py.endpoints.client_call import HttpCall, HttpDialect
from torchserve_py.endpoints.failures import not_found
from torchserve_py.endpoints.model_index import ModelIndex
from torchserve_py.endpoints.requests import model_in, request_line
from torchserve_py.endpoints.responses import JSON_TYPE, Answer
from torchserve_py.endpoints.routing import ANY_METHOD, ANY_PATH, EndpointContext, Endpoints, PathValues, Reply, Route
from torchserve_py.net.http1.request import Request
from torchserve_py.net.websocket import WebSocket
from ts.protocol.messages import TRUSS

_MODEL_NAME: Final = "model_name"
_GET: Final = ("GET",)
_PROBES: Final = (Endpoint.ready, Endpoint.loaded, Endpoint.metrics)
#: What a Truss's own server calls its one model.
_ONLY_NAME: Final = "model"
#: Seconds within which a model must say whether it is healthy; Truss waits for ever, and a prober gives up.
_HEALTH_LIMIT: Final = 30.0
#: Seconds within which its metrics must be collected; Prometheus waits for 10 seconds.
_METRICS_LIMIT: Final = 10.0
#: Endpoints whose body may name the model if the path does not, as OpenAI's clients do.
_NAMED_IN_BODY: Final = frozenset(ALIASES.values())


class _Models(NamedTuple):
    """The registered models in their default versions: Trusses, sorted by name, and the names of all others."""

    trusses: tuple[ServedModel, ...]
    others: frozenset[str]

    @classmethod
    def of(cls, models: Sequence[ServedModel]) -> Self:
        """Return the models by contract."""
        others = frozenset(model.name for model in models if not model.contract.truss_api)
        return cls(tuple(model for model in models if model.contract.truss_api), others)


class TrussEndpoints(Endpoints):
    """Answers requests for Trusses. Probes do not wait for running requests, and the access log leaves them out."""

    def __init__(self, context: EndpointContext) -> None:
        super().__init__(context)
        self._models = ModelIndex(self.serving, _Models.of)

    def routes(self) -> Iterator[Route]:
        for path, endpoint in PATHS:
            serve, is_meant = partial(self._serve, endpoint), partial(self._is_meant, endpoint)
            methods, is_quiet = _GET if endpoint in READING else ("POST",), endpoint in _PROBES
            yield Route(
                *(path, serve, methods),
                dialect=TRUSS_DIALECT,
                applies=is_meant,
                is_quiet=is_quiet,
                takes_json=endpoint in _NAMED_IN_BODY,
            )
        for base in DEPLOYMENTS:
            is_meant = partial(self._is_deployment, base)
            for path, endpoint in DEPLOYED_PATHS:
                serve, methods = partial(self._serve_deployed, endpoint), _GET if endpoint in READING else ("POST",)
                yield Route(f"{base}{path}", serve, methods, dialect=TRUSS_DIALECT, applies=is_meant)
            for path, advice in PLATFORMS_PATHS.items():
                refuse = partial(self._refuse, advice)
                yield Route(f"{base}{path}", refuse, ("POST",), dialect=TRUSS_DIALECT, applies=is_meant)
        stream = partial(self._serve, Endpoint.websocket)
        yield Route(BIDIRECTIONAL_STREAM, stream, _GET, dialect=TRUSS_DIALECT, applies=self._serve_alone)
        probe = partial(Route, dialect=TRUSS_DIALECT, is_quiet=True, is_probe=True)
        yield probe("/ping", self._ping, _GET, applies=self._serve_alone)
        yield probe("/", self._live, _GET, None, applies=self._is_root)
        settings = self.settings
        if not (settings.enable_metrics_api and settings.metrics_address.shares_listener(settings.inference_address)):
            has_one = partial(self._is_meant, Endpoint.metrics)  # otherwise the path shows the server's metrics
            yield Route("/metrics", self._metrics, _GET, dialect=TRUSS_DIALECT, applies=has_one, is_quiet=True)
        yield Route(ANY_PATH, self._unknown, ANY_METHOD, None, TRUSS_DIALECT, applies=self._serve_alone)

    # The registered models that are Trusses, in their default versions.

    @property
    def _trusses(self) -> Sequence[ServedModel]:
        """All Trusses, sorted by name."""
        return self._models.get().trusses

    @property
    def _only(self) -> ServedModel | None:
        """The only Truss; None if the server has no Truss or several. Models of other contracts do not count."""
        trusses = self._trusses
        return trusses[0] if len(trusses) == 1 else None

    @property
    def _serves_no_other(self) -> bool:
        """Whether every registered model is a Truss, and there is at least one."""
        models = self._models.get()
        return bool(models.trusses) and not models.others

    def _named(self, name: str) -> ServedModel | None:
        """Return the Truss of that name, or None; the name ``model`` also means the only Truss."""
        try:
            model = self.serving.get(name)
        except ModelNotFound:
            return self._only if name == _ONLY_NAME else None
        return model if model.contract.truss_api else None

    def _is_other(self, name: str) -> bool:
        """Return whether a model of that name is served and is not a Truss."""
        return name in self._models.get().others

    # Whether a request means a Truss.

    def _is_meant(self, endpoint: Endpoint, request: Request, values: PathValues) -> bool:
        """Return whether a path is for a Truss, or names a model that does not exist and could only be a Truss."""
        name = values.get(_MODEL_NAME)
        if name is not None:
            if self._named(name) is not None:
                return True
            is_shared = endpoint is Endpoint.predict and not self._serves_no_other
            return not is_shared and bool(self._trusses) and not self._is_other(name)
        if endpoint in _NAMED_IN_BODY or endpoint is Endpoint.websocket:
            return bool(self._trusses)
        return self._find(endpoint, request, values) is not None

    def _is_deployment(self, base: str, request: Request, values: PathValues) -> bool:
        """Return whether a path means a deployment; in TorchServe's own ``/{model_name}/predict`` it may be a model."""
        return bool(self._trusses) and not self._is_other(base.removeprefix("/"))

    def _serve_alone(self, request: Request, values: PathValues) -> bool:
        return self._serves_no_other

    def _is_root(self, request: Request, values: PathValues) -> bool:
        return request.method != "OPTIONS" and self._serves_no_other

    def _find(self, endpoint: Endpoint, request: Request, values: PathValues) -> ServedModel | None:
        name = values.get(_MODEL_NAME)
        if name is None and endpoint is Endpoint.predict:  # /invocations, which other models have as well
            name = request.parameter(_MODEL_NAME)
            if not name:
                return self._only if self._serves_no_other else None
        return self._only if name is None else self._named(name)

    # Paths.

    def _serve(self, endpoint: Endpoint, request: Request, values: PathValues) -> Reply:
        name = values.get(_MODEL_NAME)
        model = self._find(endpoint, request, values)
        if model is not None and (self._serves_no_other or endpoint not in _NAMED_IN_BODY or name):
            return self._answer(request, model, endpoint, name)
        if name is not None:
            return error_answer(404, f"There is no model {name!r}.", TrussErrorCode.client)
        if endpoint not in _NAMED_IN_BODY:
            return self._refuse_unnamed()
        return lambda body: self._serve_named(request, endpoint, body)

    def _serve_deployed(self, endpoint: Endpoint, request: Request, values: PathValues) -> Reply:
        """Serve a path that names a deployment of the one model: the only Truss, or the one that the query names."""
        if endpoint in _NAMED_IN_BODY:
            return self._serve(endpoint, request, {})
        name = request.parameter(_MODEL_NAME)
        model = self._named(name) if name else self._only
        if model is not None:
            return self._answer(request, model, endpoint, name or None)
        if name:
            return error_answer(404, f"There is no model {name!r}.", TrussErrorCode.client)
        names = ", ".join(each.name for each in self._trusses)
        message = f"There are several models ({names}): name one of them in the query, as in ?{_MODEL_NAME}=…"
        return error_answer(404, message, TrussErrorCode.client)

    def _refuse(self, advice: str, request: Request, values: PathValues) -> Answer:
        return error_answer(501, advice, TrussErrorCode.client)

    def _serve_named(self, request: Request, endpoint: Endpoint, body: bytes) -> Reply | None:
        """Serve a request whose body may name its model; None if that model is not a Truss."""
        name = model_in(body)
        if name is not None and self._is_other(name):
            return None
        model = (self._named(name) if name is not None else None) or self._only
        return self._refuse_unnamed() if model is None else self._answer(request, model, endpoint, None, body)

    def _ping(self, request: Request, values: PathValues) -> Answer:
        """Answer ``/ping`` of a server with Trusses alone: whether they are loaded."""
        trusses = self._trusses
        missing = next((model for model in trusses if not self.serving.is_loaded(model)), trusses[0])
        return self._loaded(missing, self._called(missing))

    def _live(self, request: Request, values: PathValues) -> Answer:
        return Answer(200, b"true", (JSON_TYPE,))

    def _metrics(self, request: Request, values: PathValues) -> Reply:
        """Answer ``/metrics/`` with the metrics of the only Truss's own code."""
        if not request.path.endswith("/"):
            return Answer(307, b"", (("location", "/metrics/"),))
        return self._serve(Endpoint.metrics, request, values)

    def _unknown(self, request: Request, values: PathValues) -> Reply:
        raise not_found()

    def _refuse_unnamed(self) -> Answer:
        names = ", ".join(model.name for model in self._trusses)
        message = (
            f'There are several models ({names}): name one of them as "model" in a JSON body,'
            " or in the path as in /v1/models/{model}/v1/chat/completions."
        )
        return error_answer(404, message, TrussErrorCode.client)

    def _answer(
        self, request: Request, model: ServedModel, endpoint: Endpoint, named: str | None, body: bytes | None = None
    ) -> Reply:
        name, is_loaded = named or self._called(model), self.serving.is_loaded(model)
        match endpoint:
            case Endpoint.ready:
                return self._ready(model, name)
            case Endpoint.loaded:
                return self._loaded(model, name)
            case Endpoint.schema:
                return self._schema(model) if is_loaded else not_ready(name)
            case Endpoint.openapi if is_loaded:
                declared = self.serving.declared(model)
                return truss_answer(document_of(model, declared, name, alone=named is None))
            case Endpoint.websocket if is_loaded:
                socket = WebSocket(request, self.max_body)
                if not socket.is_possible:
                    raise not_found()
                intervals = self.serving.declared(model).get("websocket") or {}
                return self._run(request, model, endpoint, b"", WebSocketDialect(socket, intervals))
            case Endpoint.hot_reload if (refusal := self._why_not_reloaded(model)) is not None:
                return error_answer(*refusal, TrussErrorCode.client)
            case Endpoint.metrics if is_loaded:
                return self._metrics_of(model)

        def run(body: bytes) -> Reply:
            return self._run(request, model, endpoint, body) if self.serving.is_loaded(model) else not_ready(name)

        return run if body is None else run(body)

    def _loaded(self, model: ServedModel, name: str) -> Answer:
        """Return whether a worker has loaded the model, well or not."""
        return truss_answer({}) if self.serving.is_loaded(model) else not_ready(name)

    async def _ready(self, model: ServedModel, name: str) -> Answer:
        """Return whether the model has been loaded and says that it is well."""
        is_well = self.serving.is_loaded(model) and await self.serving.check_health(model, _HEALTH_LIMIT)
        return truss_answer({}) if is_well else not_ready(name)

    def _schema(self, model: ServedModel) -> Answer:
        """Return what the model takes and gives, as far as its annotations say."""
        schema = self.serving.declared(model).get("schema")
        return error_answer(404, "No schema found", TrussErrorCode.model) if schema is None else truss_answer(schema)

    async def _metrics_of(self, model: ServedModel) -> Answer:
        """Return what the model's code counts itself; if there may be several workers, each series names its own."""
        told = await self.serving.expose_metrics(model, _METRICS_LIMIT)
        if told is None:
            return error_answer(500, MODEL_FAILED, TrussErrorCode.model)
        text = merged(told) if self.serving.status(model).max_workers > 1 else "".join(told.values())
        return Answer(200, text.encode(), (("content-type", METRICS_TYPE),))

    def _run(
        self,
        request: Request,
        model: ServedModel,
        endpoint: Endpoint,
        body: bytes,
        dialect: HttpDialect = TRUSS_DIALECT,
    ) -> HttpCall:
        """Run a request on a model; pseudo headers pass the request line to the worker."""
        is_socket = endpoint is Endpoint.websocket
        line = request_line(request, endpoint.value, "ws" if is_socket else "http")
        call = self.context.call_of(request, dialect, model, line, TRUSS)
        if is_socket:
            call.open_ended, call.via = True, "websocket"
        return self.context.submit(call, body)

    def _called(self, model: ServedModel) -> str:
        """Return the name of a model that the request does not name."""
        return _ONLY_NAME if self._only is model else model.name

    def _why_not_reloaded(self, model: ServedModel) -> tuple[int, str] | None:
        """Return the status and the text of a refusal to reload the code of a model, None if it may be reloaded."""
        if self.serving.is_loaded(model) and not self.serving.declared(model).get("hot_reload"):
            return 404, "Hot reload is off. It is on with truss: {hotReload: true} in the model's model-config.yaml."
        most = self.serving.status(model).max_workers
        if most > 1:
            return 409, f"Only one worker could be reloaded, but the model may have {most}."
        return None
