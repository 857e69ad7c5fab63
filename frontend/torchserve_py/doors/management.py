"""The management door: register, scale, describe, list, unregister, set the default version; new tokens.

Reads the parameters of a call and writes its answer; `ManagementCalls` does what is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchserve_py.core.serving import RegisterRequest
from torchserve_py.doors.errors import bad_request, check_method, method_not_allowed, not_found
from torchserve_py.doors.management_calls import Done, ManagementCalls
from torchserve_py.doors.openapi_documents import management_document
from torchserve_py.doors.parameters import Parameters, of_query, of_query_or_json
from torchserve_py.doors.responses import Responses, Sent
from torchserve_py.doors.routing import Route, Routes
from torchserve_py.doors.token_authorization import TokenAuthorization, TokenType
from torchserve_py.transport.http1.request import Request

if TYPE_CHECKING:
    from torchserve_py.core.serving import Serving
    from torchserve_py.settings.table import Settings


class ManagementDoor:
    """Turns HTTP requests into management calls."""

    def __init__(
        self, settings: Settings, serving: Serving, tokens: TokenAuthorization | None, responses: Responses
    ) -> None:
        self._serving = serving
        self._calls = ManagementCalls(settings, serving)
        self._tokens = tokens
        self._responses = responses
        self._max_body = settings.max_request_size

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

    async def models(self, request: Request, path: tuple[str, ...]) -> Sent:
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
            case (name, *rest), "OPTIONS" if len(rest) < 2:
                return await self._describe_api(request, name, rest[0] if rest else None)
        if len(path) == 4 and path[3] == "set-default":
            raise method_not_allowed("PUT")
        if len(path) > 3:
            raise not_found()
        raise method_not_allowed("GET, POST" if len(path) == 1 else "GET, PUT, DELETE, OPTIONS")

    async def kserve_readiness(self, request: Request, path: tuple[str, ...]) -> Sent:
        """``GET /v1/models/{model}``: whether it has a worker."""
        if len(path) != 3 or path[1] != "models":
            raise not_found()
        if request.method != "GET":
            raise method_not_allowed("GET")
        model = self._serving.get(path[2])
        return self._responses.send_json(
            request, 200, {"name": path[2], "ready": bool(self._serving.status(model).workers)}
        )

    async def rotate_token(self, request: Request, path: tuple[str, ...]) -> Sent:
        """``/token?type=inference|management`` with the API key: a new key, to be read from the key file."""
        if len(path) != 1 or self._tokens is None:
            raise not_found()
        check_method(request.method)
        self._tokens.rotate(request.parameter("type") or "", request.headers.get("Authorization"))
        return self._responses.send(request, 200, b"\n")

    async def _list(self, request: Request) -> Sent:
        """``GET /models?limit=&next_page_token=``."""
        parameters = of_query(request)
        page = self._calls.page(parameters.integer("limit"), parameters.count("next_page_token", 0))
        return self._responses.send_json(request, 200, page)

    async def _register(self, request: Request) -> Sent:
        """``POST /models?url=…``."""
        self._calls.check_model_api()
        parameters = await of_query_or_json(request, self._max_body)
        return await self._done(request, await self._calls.register(_register_request(parameters)))

    async def _scale(self, request: Request, name: str, version: str | None) -> Sent:
        """``PUT /models/{model}[/{version}]?min_worker=&max_worker=&synchronous=&model_version=``."""
        parameters = of_query(request)
        version = version or parameters.text("model_version") or None
        min_workers = parameters.count("min_worker", 1)
        max_workers = parameters.count("max_worker", min_workers)
        synchronous = parameters.boolean("synchronous", default=False)
        done = await self._calls.scale(name, version, min_workers, max_workers, synchronous=synchronous)
        return await self._done(request, done)

    async def _describe(self, request: Request, name: str, version: str | None) -> Sent:
        """``GET /models/{model}[/{version}|/all]``, with ``?customized=true`` also what the handler says of itself."""
        customized = of_query(request).boolean("customized", default=False)
        description = await self._calls.describe(name, version, customized=customized)
        return self._responses.send_json(request, 200, description)

    async def _unregister(self, request: Request, name: str, version: str | None) -> Sent:
        """``DELETE /models/{model}[/{version}]``."""
        return await self._done(request, await self._calls.unregister(name, version))

    async def _set_default(self, request: Request, name: str, version: str) -> Sent:
        """``PUT /models/{model}/{version}/set-default``."""
        return await self._done(request, self._calls.set_default(name, version))

    async def _describe_api(self, request: Request, name: str, version: str | None) -> Sent:
        """``OPTIONS /models/{model}[/{version}]``: the OpenAPI document of the model's management."""
        model = self._serving.get(name, version)
        return self._responses.send_json(request, 200, management_document(model.name))

    async def _done(self, request: Request, done: Done) -> Sent:
        return self._responses.send_json(request, done.status, {"status": done.text})


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
