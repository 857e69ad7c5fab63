"""The endpoint for the Open Inference Protocol over REST: the paths under ``/v2``, and the models' own routes.

Refusals have the protocol's shape. The endpoint ignores ``Content-Type``: clients in use send any value, or none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Final

from torchserve_py.apis.kserve.kserve_dialect import KServeDialect
from torchserve_py.apis.open_inference import descriptions, documents
from torchserve_py.apis.open_inference.answers import compressed_for, to_json
from torchserve_py.apis.open_inference.custom_routes import CustomRoutes
from torchserve_py.apis.open_inference.infer_endpoints import ENDPOINTS, INFER, LENGTH_HEADER, OpenInferenceCalls
from torchserve_py.apis.open_inference.open_inference_keys import gets_body
from torchserve_py.apis.open_inference.open_inference_settings import OpenInferenceSettings
from torchserve_py.apis.open_inference.repository import Repository
from torchserve_py.apis.open_inference.rest_dialect import CUSTOM_DIALECT
from torchserve_py.apis.open_inference.shared_memory import SharedMemory
from torchserve_py.apis.openai.openai_endpoints import PATHS as OPENAI_PATHS
from torchserve_py.apis.openai.openai_keys import answers_openai
from torchserve_py.core.serving.serving import ServedModel
from torchserve_py.endpoints.failures import bad_request, unsupported
from torchserve_py.endpoints.management.parameters import read_object
from torchserve_py.endpoints.model_index import ModelIndex
from torchserve_py.endpoints.openapi import OPEN_INFERENCE_ERROR
from torchserve_py.endpoints.predictions import PREDICT, PREDICTING, InferenceEndpoints, predict_document
from torchserve_py.endpoints.requests import read_small_body
from torchserve_py.endpoints.responses import JSON_TYPE, Answer
from torchserve_py.endpoints.routing import (
    ANY_PATH,
    READING,
    EndpointContext,
    Endpoints,
    Handler,
    PathValues,
    PredictPath,
    Reply,
    Route,
)
from torchserve_py.endpoints.token_authorization import TokenType
from torchserve_py.net.http1.request import Request

#: The envelope under which TorchServe serves ``infer`` itself, in its own way.
_KSERVE_V2: Final = "kservev2"
#: How the parameters begin that are about binary tensors.
_BINARY: Final = b'"binary_data'
_HTML: Final = ("content-type", "text/html; charset=utf-8")
_MODEL: Final = "/v2/models/{model_name}"
_VERSION: Final = f"{_MODEL}/versions/{{model_version}}"
#: What describes ``infer`` among the ways to predict.
_PREDICTION: Final = PREDICT._replace(
    id="v2_predictions", statuses=(*PREDICT.statuses, 422, 501), error=OPEN_INFERENCE_ERROR
)
#: OPTIONS describes how to predict, as on TorchServe's own paths.
_INFERRING: Final = ("POST", "OPTIONS")
_DOCUMENT: Final = "dataplane.json"
_CUDA: Final = "Shared memory of CUDA is not supported; send tensors in the body."
_TRACES: Final = "Traces cannot be set over this protocol."
#: Paths of the protocol's extensions that this server does not have.
_UNSUPPORTED: Final = {
    "/v2/cudasharedmemory/{rest:path}": _CUDA,
    "/v2/trace/{rest:path}": _TRACES,
    f"{_MODEL}/trace/setting": _TRACES,
    "/v2/logging": "The log cannot be set over this protocol; the setting log_config names its configuration.",
    "/v2/repository/{repository}/models/{model_name}/{change}": (
        "There is one repository, which has no name: leave it out of the path."
    ),
}

_SHARED_MEMORY: Final = "/v2/systemsharedmemory"
_REGION: Final = f"{_SHARED_MEMORY}/region/{{region}}"


class OpenInferenceEndpoints(Endpoints):
    """Answers requests under ``/v2``, and on the routes that models declare."""

    def __init__(self, context: EndpointContext) -> None:
        super().__init__(context)
        self._repository = context.shared(Repository.of)
        self._memory = context.shared(SharedMemory.of)
        context.predict_paths.append(PredictPath("/v2/models/{}/infer".format, "v2_", _PREDICTION))
        self._predictions = InferenceEndpoints(context, KServeDialect)
        self._calls = OpenInferenceCalls(context)
        self._custom = CustomRoutes(context)
        self._has_openai = ModelIndex(self.serving, lambda models: any(answers_openai(model) for model in models))
        self._kserve_v2 = self.settings.service_envelope == _KSERVE_V2

    def routes(self) -> Iterator[Route]:
        return (replace(row, dialect=CUSTOM_DIALECT) for row in self._rows())

    def _rows(self) -> Iterator[Route]:
        for path in ("/invocations", "/ping", "/", *OPENAI_PATHS):
            # A model may declare these paths of the server. The server keeps all its other paths: a model that took
            # one would get requests for other models.
            yield Route(path, self._serve_instead, applies=self._is_declared)
        yield from self._server_rows()
        yield from self._model_rows()
        for base in ("/v2", _MODEL, _VERSION):
            yield Route(f"{base}/docs", self._page, READING)
            yield Route(f"{base}/docs/{_DOCUMENT}", self._document, READING)
        for base in (_SHARED_MEMORY, _REGION):
            yield Route(f"{base}/status", self._regions, READING)
            yield Route(f"{base}/unregister", self._unregister_region, ("POST",))
        yield Route(f"{_REGION}/register", self._register_region, ("POST",))
        for path, why in _UNSUPPORTED.items():
            yield Route(path, partial(self._refuse, why))
        yield Route("/v2/{rest:path}", self._pass_on)
        yield Route(ANY_PATH, self._serve_custom, applies=self._has_custom, passes_encoding_on=True)

    def _server_rows(self) -> Iterator[Route]:
        for path, serve in (
            ("/v2", self._metadata),
            ("/v2/health/live", self._live),
            ("/v2/health/ready", self._ready),
            ("/v2/models/stats", self._statistics),
            ("/v2/repository/index", self._index),
            ("/v2/repository/models/{model_name}/load", self._load),
            ("/v2/repository/models/{model_name}/unload", self._unload),
        ):
            token = TokenType.management if "/repository/" in path else TokenType.inference
            methods = ("POST",) if token is TokenType.management else READING
            is_probe = path.startswith("/v2/health/")
            yield Route(path, serve, methods, token, operations=(documents.SERVER[path],), is_probe=is_probe)
        yield Route("/v2/repository/{repository}/index", self._index, ("POST",), TokenType.management)

    def _model_rows(self) -> Iterator[Route]:
        rows: list[tuple[str, Handler, tuple[str, ...]]] = [
            ("", self._model_metadata, READING),
            ("/ready", self._model_ready, READING),
            ("/config", self._model_config, READING),
            ("/stats", self._statistics, READING),
            *((f"/{endpoint}", partial(self._infer, endpoint), _INFERRING) for endpoint in ENDPOINTS),
        ]
        for path, handler, methods in rows:
            operation, more = documents.MODEL[path], (_PREDICTION,) if path == f"/{INFER}" else ()
            of_version = operation._replace(id=f"version-{operation.id}")
            yield Route(f"{_MODEL}{path}", handler, methods, operations=(operation, *more))
            yield Route(f"{_VERSION}{path}", handler, methods, operations=(of_version,))

    async def _json(self, request: Request, value: Any, status: int = 200) -> Answer:
        """Return an answer with JSON of the server's own, compressed if the client accepts that."""
        least = self.settings.of(OpenInferenceSettings).response_compression_min_size
        body, added = await compressed_for(request, to_json(value), least)
        return Answer(status, body, (JSON_TYPE, *added))

    # Models' own routes, and unknown paths.

    def _has_custom(self, request: Request, values: PathValues) -> bool:
        return self._custom.exist()

    def _is_declared(self, request: Request, values: PathValues) -> bool:
        """Return whether a model declares a path of the server; OpenAI's are those of models with its interface."""
        if request.target.startswith("/v1/") and self._has_openai.get():
            return False
        return self._custom.declares(request)

    def _serve_instead(self, request: Request, values: PathValues) -> Reply | None:
        """Serve a path of the server that a model has declared, or pass the request on."""
        return self._custom.serve_instead(request, refuses=request.method not in READING)

    def _serve_custom(self, request: Request, values: PathValues) -> Reply | None:
        return self._custom.serve(request)

    def _pass_on(self, request: Request, values: PathValues) -> None:
        """Pass unknown paths on to the models' routes; this endpoint's dialect words the refusal."""

    def _refuse(self, message: str, request: Request, values: PathValues) -> Reply:
        raise unsupported(message)

    # Inference.

    def _infer(self, endpoint: str, request: Request, values: PathValues) -> Reply:
        name, version = values["model_name"], values.get("model_version")
        model = self.serving.get_latest(name, version)
        if request.method == "OPTIONS":  # as on TorchServe's own paths
            return self._json(request, predict_document(self.context.predict_paths, name))
        if endpoint == INFER and model.contract.handlers:
            if gets_body(model.config.plugin_keys, self.settings):
                return self._predictions.infer(request, name, version, PREDICTING)
            if self._kserve_v2 and version is None:
                return partial(self._infer_in_envelope, request, model)
        return self._calls.begin(request, model, version, endpoint)

    def _infer_in_envelope(self, request: Request, model: ServedModel, body: bytes) -> Reply | None:
        """Pass JSON on to the envelope, which decodes it; it knows no binary tensors."""
        if LENGTH_HEADER in request.headers or _BINARY in body:
            return self._calls.begin(request, model, None, INFER)(body)
        return self._predictions.infer(request, model.name, None, PREDICTING, body=body)

    # The server.

    def _metadata(self, request: Request, values: PathValues) -> Reply:
        metadata = descriptions.server_metadata(self.settings)
        if self.settings.of(OpenInferenceSettings).ts_open_inference_protocol:
            # TorchServe's answer, whose misspelt key is part of its API.
            metadata |= {"name": "Torchserve", "extenstion": ["kserve", "kubeflow"]}
        return self._json(request, metadata)

    def _live(self, request: Request, values: PathValues) -> Reply:
        return self._json(request, {"live": True})

    def _ready(self, request: Request, values: PathValues) -> Reply:
        ready = not self.context.is_leaving and self.serving.startup_ready()
        return self._json(request, {"ready": ready}, 200 if ready else 400)

    async def _index(self, request: Request, values: PathValues) -> Answer:
        ready = (await self._members(request)).get("ready")
        if ready is not None and not isinstance(ready, bool):
            raise bad_request(f'The member "ready" must be true or false, it is {ready!r}.')
        return await self._json(request, await self._repository.index(ready_only=bool(ready)))

    async def _load(self, request: Request, values: PathValues) -> Answer:
        parameters = (await self._members(request)).get("parameters") or {}
        if not isinstance(parameters, dict):
            raise bad_request('The member "parameters" must be an object.')
        await self._repository.load(values["model_name"], parameters)
        return Answer(200)

    async def _unload(self, request: Request, values: PathValues) -> Answer:
        await self._members(request)
        await self._repository.unload(values["model_name"])
        return Answer(200)

    async def _members(self, request: Request) -> dict[str, Any]:
        """Return the JSON object in a body; an empty object without a body."""
        body = await read_small_body(request, self.max_body)
        return read_object(body) if body.strip() else {}

    # Regions of shared memory.

    def _regions(self, request: Request, values: PathValues) -> Reply:
        return self._json(request, self._memory.status(values.get("region", "")))

    async def _register_region(self, request: Request, values: PathValues) -> Answer:
        given = read_object(await read_small_body(request, self.max_body))
        self._memory.register(values["region"], given.get("key"), given.get("offset", 0), given.get("byte_size"))
        return Answer(200)

    async def _unregister_region(self, request: Request, values: PathValues) -> Answer:
        await read_small_body(request, self.max_body)
        self._memory.unregister(values.get("region", ""))
        return Answer(200)

    # One model.

    def _model_metadata(self, request: Request, values: PathValues) -> Reply:
        name, version = values["model_name"], values.get("model_version")
        return self._json(request, descriptions.model_metadata(self.serving, name, version))

    async def _model_ready(self, request: Request, values: PathValues) -> Answer:
        ready = await descriptions.model_ready(self.serving, self._model_of(values))
        return await self._json(request, {"name": values["model_name"], "ready": ready}, 200 if ready else 400)

    def _model_config(self, request: Request, values: PathValues) -> Reply:
        return self._json(request, descriptions.model_config(self.serving, self._model_of(values)))

    def _statistics(self, request: Request, values: PathValues) -> Reply:
        name, version = values.get("model_name"), values.get("model_version")
        account = partial(self.context.account, request)
        described = descriptions.statistics(self.serving, name, version, account)
        return self._json(request, {"model_stats": described})

    def _document(self, request: Request, values: PathValues) -> Reply:
        return self._json(request, self._described(values))

    def _page(self, request: Request, values: PathValues) -> Answer:
        described = self._described(values)
        location = f"{request.target.partition('?')[0].rstrip('/')}/{_DOCUMENT}"
        return Answer(200, documents.page(described["info"]["title"], described, location), (_HTML,))

    def _described(self, values: PathValues) -> dict[str, Any]:
        if not values:
            return documents.server_document(self._rows())
        name, version = values["model_name"], values.get("model_version")
        return documents.model_document(descriptions.model_metadata(self.serving, name, version), version)

    def _model_of(self, values: PathValues) -> ServedModel:
        return self.serving.get_latest(values["model_name"], values.get("model_version"))
