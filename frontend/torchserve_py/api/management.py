"""The management door: register, scale, describe, list, unregister, set the default version; new tokens.

A change that a caller has asked for goes on when the caller hangs up: half a registration would help nobody.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final, TypeVar

from aiohttp import hdrs, web

from torchserve_py.api.describe import describe
from torchserve_py.api.errors import bad_request, method_not_allowed, not_found
from torchserve_py.api.parameters import Parameters, of_query, of_query_or_json
from torchserve_py.api.responses import Responses, Sent
from torchserve_py.api.routing import Route, Routes
from torchserve_py.api.token_authorization import TokenAuthorization, TokenType
from torchserve_py.models.assembly import RegisterRequest

if TYPE_CHECKING:
    from torchserve_py.models.registry import ModelRegistry
    from torchserve_py.settings import Settings

logger = logging.getLogger(__name__)

T = TypeVar("T")

_PAGE: Final = 100
_PENDING: Final = "Processing worker updates..."
_PARTIAL: Final = "Workers scaling in progress..."


class ManagementDoor:
    """Translates management calls for the model registry."""

    def __init__(
        self, settings: Settings, registry: ModelRegistry, tokens: TokenAuthorization | None, responses: Responses
    ) -> None:
        self._registry = registry
        self._tokens = tokens
        self._responses = responses
        self._model_api = settings.enable_model_api
        self._max_body = settings.max_request_size
        self._stall_limit = float(settings.default_response_timeout)
        self._changes: set[asyncio.Task[Any]] = set()

    @property
    def routes(self) -> Routes:
        """First path segment to route."""
        routes = {
            "models": Route(self.models, TokenType.management),
            "v1": Route(self.kserve_readiness, TokenType.management),
        }
        if self._tokens is not None:
            routes["token"] = Route(self.rotate_token, token=None)  # it has a key of its own
        return routes

    async def models(self, request: web.BaseRequest, path: tuple[str, ...]) -> Sent:
        """Everything under ``/models``; see the methods below, each with its path."""
        method = request.method
        match path[1:], method:
            case (), "GET":
                return await self._list(request)
            case (), "POST":
                return await self._register(request)
            case (name, version, "set-default"), "PUT":
                return await self._set_default(request, name, version)
            case (name, *rest), "GET" if len(rest) < 2:
                return await self._describe(request, name, rest[0] if rest else None)
            case (name, *rest), "PUT" if len(rest) < 2:
                return await self._scale(request, name, rest[0] if rest else None)
            case (name, *rest), "DELETE" if len(rest) < 2:
                return await self._unregister(request, name, rest[0] if rest else None)
        if len(path) <= 3 or (len(path) == 4 and path[3] == "set-default"):
            raise method_not_allowed()
        raise not_found()

    async def kserve_readiness(self, request: web.BaseRequest, path: tuple[str, ...]) -> Sent:
        """``GET /v1/models/{model}``: whether it has a worker."""
        if len(path) != 3 or path[1] != "models":
            raise not_found()
        if request.method != "GET":
            raise method_not_allowed()
        model = self._registry.get(path[2])
        return await self._responses.send_json(request, 200, {"name": path[2], "ready": bool(model.workers)})

    async def rotate_token(self, request: web.BaseRequest, path: tuple[str, ...]) -> Sent:
        """``/token?type=inference|management`` with the API key: a new key, to be read from the key file."""
        if len(path) != 1 or self._tokens is None:
            raise not_found()
        self._tokens.rotate(request.query.get("type", ""), request.headers.get(hdrs.AUTHORIZATION))
        return await self._responses.send(request, 200, b"\n")

    async def _list(self, request: web.BaseRequest) -> Sent:
        """``GET /models?limit=&next_page_token=``: the default versions, by name.

        A page that ends exactly at the last model still names a next one, which is empty, as in TorchServe.
        """
        parameters = of_query(request)
        limit = parameters.integer("limit")
        if limit is None or not 0 <= limit <= _PAGE:
            limit = _PAGE
        start = parameters.count("next_page_token", 0)
        models = self._registry.models()
        page: dict[str, Any] = {}
        if start + limit <= len(models):
            page["nextPageToken"] = str(start + limit)
        page["models"] = [{"modelName": name, "modelUrl": model.url} for name, model in models[start : start + limit]]
        return await self._responses.send_json(request, 200, page)

    async def _register(self, request: web.BaseRequest) -> Sent:
        """``POST /models?url=…``."""
        self._check_model_api()
        parameters = await of_query_or_json(request, self._max_body, self._stall_limit)
        result = await self._complete(self._registry.register(_register_request(parameters)))
        registered = f'Model "{result.model_name}" Version: {result.model_version} registered with'
        if result.workers_wanted == 0:
            advice = "Use scale workers API to add workers for the model."
            return await self._status(request, 200, f"{registered} 0 initial workers. {advice}")
        if result.pending:
            return await self._status(request, 202, _PENDING)
        if result.workers_started < result.workers_wanted:
            return await self._status(request, 206, _PARTIAL)
        return await self._status(request, 200, f"{registered} {result.workers_wanted} initial workers")

    async def _scale(self, request: web.BaseRequest, name: str, version: str | None) -> Sent:
        """``PUT /models/{model}[/{version}]?min_worker=&max_worker=&synchronous=&model_version=``."""
        parameters = of_query(request)
        version = version or parameters.text("model_version")
        min_workers = parameters.count("min_worker", 1)
        max_workers = parameters.count("max_worker", min_workers)
        if max_workers < min_workers:
            raise bad_request("max_worker cannot be less than min_worker.")
        synchronous = parameters.boolean("synchronous", default=False)
        result = await self._complete(
            self._registry.scale(name, version, min_workers, max_workers, synchronous=synchronous)
        )
        if result.pending:
            return await self._status(request, 202, _PENDING)
        if result.workers < min_workers:
            return await self._status(request, 206, _PARTIAL)
        text = f"Workers scaled to {min_workers} for model: {name}"
        return await self._status(request, 200, text if version is None else f"{text}, version: {version}")

    async def _describe(self, request: web.BaseRequest, name: str, version: str | None) -> Sent:
        """``GET /models/{model}[/{version}|/all]``, with ``?customized=true`` also what the handler says of itself."""
        if version == "all":
            models = self._registry.versions(name)
            return await self._responses.send_json(request, 200, [describe(model) for model in models])
        model = self._registry.get(name, version)
        description = describe(model)
        if of_query(request).boolean("customized", default=False):
            metadata = await model.describe_custom()
            if metadata is not None:
                description["customizedMetadata"] = metadata if isinstance(metadata, dict) else {}
        return await self._responses.send_json(request, 200, [description])

    async def _unregister(self, request: web.BaseRequest, name: str, version: str | None) -> Sent:
        """``DELETE /models/{model}[/{version}]``."""
        self._check_model_api()
        await self._complete(self._registry.unregister(name, version))
        return await self._status(request, 200, f'Model "{name}" unregistered')

    async def _set_default(self, request: web.BaseRequest, name: str, version: str) -> Sent:
        """``PUT /models/{model}/{version}/set-default``."""
        self._registry.set_default(name, version)
        text = f'Default version successfully updated for model "{name}" to "{version}"'
        return await self._status(request, 200, text)

    def _check_model_api(self) -> None:
        if not self._model_api:
            raise method_not_allowed()

    async def _status(self, request: web.BaseRequest, status: int, text: str) -> Sent:
        return await self._responses.send_json(request, status, {"status": text})

    async def _complete(self, change: Coroutine[Any, Any, T]) -> T:
        """Carry a change out to its end, even if its caller hangs up meanwhile."""
        task = asyncio.create_task(change)
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(_log_failure)
            raise


def _log_failure(change: asyncio.Task[Any]) -> None:
    if not change.cancelled() and (error := change.exception()) is not None:
        logger.error("A change of models failed after its caller had hung up: %s", error)


def _register_request(parameters: Parameters) -> RegisterRequest:
    url = parameters.text("url")
    if url is None:
        raise bad_request("Parameter url is required.")
    return RegisterRequest(
        url=url,
        model_name=parameters.text("model_name"),
        handler=parameters.text("handler"),
        runtime=parameters.text("runtime"),
        batch_size=parameters.integer("batch_size"),
        max_batch_delay=parameters.integer("max_batch_delay"),
        initial_workers=parameters.integer("initial_workers"),
        synchronous=parameters.boolean("synchronous", default=True),
        response_timeout=parameters.integer("response_timeout"),
        startup_timeout=parameters.integer("startup_timeout"),
        s3_sse_kms=parameters.boolean("s3_sse_kms", default=False),
    )
