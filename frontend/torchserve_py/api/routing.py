"""From a request to the door that answers it, and from what a door raises to an error answer."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from aiohttp import hdrs, web
from aiohttp.web_protocol import RequestPayloadError

from torchserve_py.api.errors import DoorError, failure_of, invalid_message, not_found
from torchserve_py.api.requests import split_path
from torchserve_py.api.responses import Responses, Sent
from torchserve_py.api.token_authorization import TokenAuthorization, TokenType
from torchserve_py.archive.errors import ArchiveError
from torchserve_py.models.errors import ModelError

logger = logging.getLogger(__name__)

#: Gets the request and the segments of its path.
Handler = Callable[[web.BaseRequest, tuple[str, ...]], Awaitable[Sent]]


class Route(NamedTuple):
    """``token`` is the key that a request must carry while token authorization is on; None for an open path."""

    handler: Handler
    token: TokenType | None


#: First path segment to route.
Routes = Mapping[str, Route]


class Router:
    """What aiohttp calls for every request on one listener."""

    def __init__(self, routes: Routes, tokens: TokenAuthorization | None, responses: Responses) -> None:
        self._routes = dict(routes)
        self._tokens = tokens
        self._responses = responses

    async def __call__(self, request: web.BaseRequest) -> Sent:
        """Answer one request, whatever happens."""
        try:
            path = split_path(request.raw_path)
            route = self._routes.get(path[0]) if path else None
            if route is None:
                raise not_found()
            if self._tokens is not None and route.token is not None:
                self._tokens.check(route.token, request.headers.get(hdrs.AUTHORIZATION))
            return await route.handler(request, path)
        except RequestPayloadError:
            failure = invalid_message("The request body could not be read.")
            return await self._responses.send_failure(request, failure, close=True)
        except Exception as error:
            if isinstance(error, ConnectionError) and (request.transport is None or request.transport.is_closing()):
                raise  # the client is gone; aiohttp cleans up
            failure = failure_of(error)
            if not isinstance(error, (DoorError, ArchiveError, ModelError)):
                logger.error("%s %s failed.", request.method, ascii(request.raw_path), exc_info=error)
            # 408 and 413 come while the body is still on its way: there is no next request to find behind it.
            return await self._responses.send_failure(request, failure, close=failure.status in (408, 413))
