"""The door for the Open Inference Protocol over REST: what the paths under ``/v2`` mean, and the models' own routes.

Everything that it refuses is refused in the protocol's shape. No header says what a body is: the clients in use send
any ``Content-Type``, or none.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from torchserve_py.doors.answering import AfterBody, Reply
from torchserve_py.doors.errors import DoorError, Failure, bad_request
from torchserve_py.doors.open_inference import descriptions, documents, statistics
from torchserve_py.doors.open_inference.answers import Answers
from torchserve_py.doors.open_inference.custom_routes import CustomRoutes
from torchserve_py.doors.open_inference.dialect import CUSTOM_DIALECT
from torchserve_py.doors.open_inference.inference import ENDPOINTS, INFER, OpenInferenceCalls
from torchserve_py.doors.openapi_documents import predict_document
from torchserve_py.doors.responses import Responses, Sent
from torchserve_py.doors.routing import Path, Route, Routes
from torchserve_py.doors.small_bodies import read_small_body
from torchserve_py.doors.token_authorization import TokenType
from torchserve_py.transport.http1.request import Request

if TYPE_CHECKING:
    from torchserve_py.core.serving import ServedModel, Serving
    from torchserve_py.doors.health import HealthDoor
    from torchserve_py.doors.inference import InferenceDoor
    from torchserve_py.doors.open_inference.repository import Repository
    from torchserve_py.doors.token_authorization import TokenAuthorization
    from torchserve_py.settings.table import Settings

#: The envelope under which TorchServe serves ``infer`` itself, in its own way.
_KSERVE_V2: Final = "kservev2"
_PREDICT: Final = (("explain", "False"),)
_HEAD: Final = ("HEAD", "GET")
_HTML: Final = ("content-type", "text/html; charset=utf-8")
_DOCUMENT: Final = ("docs", "dataplane.json")
#: First segments behind ``/v2`` of what this server does not have.
_UNSUPPORTED: Final = {
    "systemsharedmemory": "Shared memory is not supported; send tensors in the body.",
    "cudasharedmemory": "Shared memory is not supported; send tensors in the body.",
    "trace": "Traces cannot be set over this protocol.",
    "logging": "The log cannot be set over this protocol; the setting log_config names its configuration.",
}

Answer = Callable[[Request], Awaitable[Sent]]


class _Meaning(NamedTuple):
    """What a path means: the method it is for ("" for any), which key it needs, and what answers it."""

    method: str
    token: TokenType
    answer: Answer


class _Model(NamedTuple):
    """The model of a path, as the client named it, and what follows behind it."""

    name: str
    version: str | None
    rest: Path


class OpenInferenceDoor:
    """Answers what is asked under ``/v2``, and on the routes that models have declared."""

    def __init__(
        self,
        settings: Settings,
        serving: Serving,
        responses: Responses,
        tokens: TokenAuthorization | None,
        health: HealthDoor,
        inference: InferenceDoor,
        repository: Repository,
    ) -> None:
        self._settings = settings
        self._serving = serving
        self._responses = responses
        self._tokens = tokens
        self._health = health
        self._inference = inference
        self._repository = repository
        self._answers = Answers(responses, settings.response_compression_min_size)
        self._calls = OpenInferenceCalls(settings, serving, responses)
        self._custom = CustomRoutes(settings, serving, responses, self._answers)
        self._kserve_v2 = settings.service_envelope == _KSERVE_V2

    @property
    def routes(self) -> Routes:
        """First path segment to route; keys are checked here, for the sake of the shape of what is refused."""
        return {"v2": Route(self.serve, token=None, claims=_is_not_explain, dialect=CUSTOM_DIALECT)}

    def serve(self, request: Request, path: Path) -> Reply:
        """A path under ``/v2``."""
        target = _model_of(path)
        if target is None or len(target.rest) != 1 or target.rest[0] not in ENDPOINTS:
            return self._serve_other(request, path, target)
        return self._infer(request, target, target.rest[0])

    async def _serve_other(self, request: Request, path: Path, target: _Model | None) -> Reply:
        """Anything but inference."""
        meaning = self._of_model(target) if target is not None else self._of_server(path)
        if meaning is None:
            return self._unknown(request)
        if meaning.method and request.method != meaning.method and (request.method, meaning.method) != _HEAD:
            return self._answers.method_not_allowed(request, meaning.method)
        self._check_token(request, meaning.token)
        return await meaning.answer(request)

    @property
    def own_routes(self) -> Routes:
        """The paths that stand for whatever model is served: one that declares such a path for itself has it.

        No other path of the server is given up: it would lead requests for one model to another.
        """
        route = Route(self.serve_own, token=None, claims=lambda path: len(path) == 1, dialect=CUSTOM_DIALECT)
        return {"invocations": route, "ping": route}

    def serve_own(self, request: Request, path: Path) -> Reply | None:
        """A path of the server that a model may have instead; None where it is the server's."""
        if not self._custom.exist():
            return None
        self._check_token(request, TokenType.inference)
        route = self._custom.find_instead(request, refuses=path == ("invocations",))
        return None if route is None else self._custom.run(request, route)

    @property
    def unknown(self) -> Route:
        """What is asked about paths that no door claims: they may be a model's own."""
        return Route(self._serve_custom, token=None, dialect=CUSTOM_DIALECT)

    def _serve_custom(self, request: Request, path: Path) -> Reply | None:
        if not self._custom.exist():
            return None
        self._check_token(request, TokenType.inference)
        route = self._custom.find(request)
        return None if route is None else self._custom.run(request, route)

    def _infer(self, request: Request, target: _Model, endpoint: str) -> Reply:
        self._check_token(request, TokenType.inference)
        model = self._serving.get_latest(target.name, target.version)
        if request.method != "POST":
            if request.method == "OPTIONS":  # as on TorchServe's own paths
                return self._answers.json(request, predict_document(target.name))
            return self._answers.method_not_allowed(request, "POST")

        if self._is_torchserves(model, target, endpoint):
            reply = self._inference.infer(request, target.name, None, _PREDICT)
            return reply._replace(dialect=CUSTOM_DIALECT) if isinstance(reply, AfterBody) else reply
        return self._calls.begin(request, model, target.version, endpoint)

    def _is_torchserves(self, model: ServedModel, target: _Model, endpoint: str) -> bool:
        """Whether a request is for TorchServe's own inference, whose envelope understands it."""
        return self._kserve_v2 and endpoint == INFER and target.version is None and model.contract.envelopes

    def _unknown(self, request: Request) -> Reply:
        reply = self._serve_custom(request, ())
        if reply is None:
            raise DoorError(Failure(404, "ResourceNotFoundException", "Not Found"))
        return reply

    def _check_token(self, request: Request, kind: TokenType) -> None:
        if self._tokens is not None:
            self._tokens.check(kind, request.headers.get("Authorization"))

    # What paths mean.

    def _of_server(self, path: Path) -> _Meaning | None:
        """What a path means that is none of a model."""
        rest = path[1:]
        known: dict[Path, Answer] = {
            (): self._metadata,
            ("health", "live"): self._live,
            ("health", "ready"): self._ready,
            ("models", "stats"): lambda request: self._statistics(request, None),
            ("docs",): lambda request: self._page(request, None),
            _DOCUMENT: lambda request: self._document(request, None),
        }
        if rest in known:
            return _Meaning("GET", TokenType.inference, known[rest])
        if rest and rest[0] in _UNSUPPORTED:
            return self._not_supported(rest[0])
        return self._of_repository(rest[1:]) if rest[0] == "repository" else None

    def _of_repository(self, rest: Path) -> _Meaning | None:
        """What a path under ``/v2/repository`` means; Triton has the name of a repository in some."""
        if rest[-1:] == ("index",) and len(rest) <= 2:
            return _Meaning("POST", TokenType.management, self._index)
        if len(rest) in (3, 4) and rest[-3] == "models" and rest[-1] in ("load", "unload"):
            if len(rest) == 4:
                return self._unsupported("There is one repository, which has no name: leave it out of the path.")
            change = self._load if rest[-1] == "load" else self._unload
            return _Meaning("POST", TokenType.management, lambda request: change(request, rest[1]))
        return None

    def _of_model(self, target: _Model) -> _Meaning | None:
        """What a path of a model means, but for inference."""
        known: dict[Path, Callable[[Request, _Model], Awaitable[Sent]]] = {
            (): self._model_metadata,
            ("ready",): self._model_ready,
            ("config",): self._model_config,
            ("stats",): self._statistics,
            ("docs",): self._page,
            _DOCUMENT: self._document,
        }
        if target.rest == ("trace", "setting"):
            return self._not_supported("trace")
        answer = known.get(target.rest)
        return None if answer is None else _Meaning("GET", TokenType.inference, lambda it: answer(it, target))

    def _not_supported(self, what: str) -> _Meaning:
        return self._unsupported(_UNSUPPORTED[what])

    def _unsupported(self, message: str) -> _Meaning:
        async def refuse(request: Request) -> Sent:
            raise DoorError(Failure(501, "NotImplementedException", message))

        return _Meaning("", TokenType.inference, refuse)

    # The server.

    async def _metadata(self, request: Request) -> Sent:
        metadata = descriptions.server_metadata(self._settings)
        if self._settings.ts_open_inference_protocol:  # TorchServe's answer, whose misspelt key is part of its API
            metadata |= {"name": "Torchserve", "extenstion": ["kserve", "kubeflow"]}
        return await self._answers.json(request, metadata)

    async def _live(self, request: Request) -> Sent:
        return await self._answers.json(request, {"live": True})

    async def _ready(self, request: Request) -> Sent:
        ready = not self._health.draining and self._serving.startup_ready()
        return await self._answers.json(request, {"ready": ready}, 200 if ready else 400)

    async def _index(self, request: Request) -> Sent:
        ready = (await self._members(request)).get("ready")
        if ready is not None and not isinstance(ready, bool):
            raise bad_request(f'The member "ready" must be true or false, it is {ready!r}.')
        return await self._answers.json(request, await self._repository.index(ready_only=bool(ready)))

    async def _load(self, request: Request, name: str) -> Sent:
        parameters = (await self._members(request)).get("parameters") or {}
        if not isinstance(parameters, dict):
            raise bad_request('The member "parameters" must be an object.')
        return await self._changed(request, self._repository.load(name, parameters))

    async def _unload(self, request: Request, name: str) -> Sent:
        await self._members(request)
        return await self._changed(request, self._repository.unload(name))

    async def _changed(self, request: Request, change: Awaitable[None]) -> Sent:
        await change
        return self._answers.empty(request)

    async def _members(self, request: Request) -> dict[str, Any]:
        """The JSON object in a body; nothing in none."""
        limit = self._settings.max_request_size
        body = await read_small_body(request, limit)
        if not body.strip():
            return {}
        try:
            members = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise bad_request(f"The request body is no JSON: {error}") from None
        if not isinstance(members, dict):
            raise bad_request(f"The request body must be a JSON object, it is of type {type(members).__name__}.")
        return members

    # One model.

    async def _model_metadata(self, request: Request, target: _Model) -> Sent:
        metadata = descriptions.model_metadata(self._serving, target.name, target.version)
        return await self._answers.json(request, metadata)

    async def _model_ready(self, request: Request, target: _Model) -> Sent:
        model = self._serving.get_latest(target.name, target.version)
        ready = await descriptions.model_ready(self._serving, model)
        return await self._answers.json(request, {"name": target.name, "ready": ready}, 200 if ready else 400)

    async def _model_config(self, request: Request, target: _Model) -> Sent:
        model = self._serving.get_latest(target.name, target.version)
        return await self._answers.json(request, descriptions.model_config(self._serving, model))

    async def _statistics(self, request: Request, target: _Model | None) -> Sent:
        name, version = (None, None) if target is None else target[:2]
        described = statistics.of_models(self._serving, name, version)
        return await self._answers.json(request, {"model_stats": described})

    async def _document(self, request: Request, target: _Model | None) -> Sent:
        return await self._answers.json(request, self._described(target))

    async def _page(self, request: Request, target: _Model | None) -> Sent:
        described = self._described(target)
        location = f"{request.target.partition('?')[0].rstrip('/')}/{_DOCUMENT[1]}"
        shown = documents.page(described["info"]["title"], described, location)
        return self._responses.send(request, 200, shown, (_HTML,))

    def _described(self, target: _Model | None) -> dict[str, Any]:
        if target is None:
            return documents.server_document()
        metadata = descriptions.model_metadata(self._serving, target.name, target.version)
        return documents.model_document(metadata, target.version)


def _model_of(path: Path) -> _Model | None:
    """The model that a path is of, None if of none."""
    if len(path) < 3 or path[1] != "models" or path == ("v2", "models", "stats"):
        return None
    if len(path) > 4 and path[3] == "versions":
        return _Model(path[2], path[4], path[5:])
    return _Model(path[2], None, path[3:])


def _is_not_explain(path: Path) -> bool:
    """TorchServe has explanations under ``/v2``, too, which no other protocol knows."""
    return not (len(path) == 4 and path[1] == "models" and path[3] == "explain")
