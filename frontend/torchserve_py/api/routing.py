"""From a request to the door that answers it, and from what a door raises to an error answer."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from aiohttp import hdrs, web
from aiohttp.web_protocol import RequestPayloadError

from torchserve_py.api.errors import DoorError, Failure, failure_of, invalid_message, not_found
from torchserve_py.api.exchanges import Exchange
from torchserve_py.api.requests import HttpRequest, split_path
from torchserve_py.api.responses import Responses, Sent
from torchserve_py.api.token_authorization import TokenAuthorization, TokenType
from torchserve_py.api.whole_requests import WholeRequest
from torchserve_py.archive.errors import ArchiveError
from torchserve_py.models.errors import ModelError
from torchserve_py.workflows.errors import WorkflowError

logger = logging.getLogger(__name__)

Path = tuple[str, ...]

#: Gets the request and the segments of its path; None passes the request on to the next door that claims its path.
Handler = Callable[[web.BaseRequest, Path], Awaitable[web.StreamResponse | None]]

#: Begins to answer a request that has arrived whole; None where that takes the `Handler`.
Beginner = Callable[[WholeRequest, Path], Exchange | None]

#: The key of routes for paths whose first segment is no word of the API, but a model's name.
ANY: Final = "*"
#: The key of the route for the path ``/``.
ROOT: Final = ""

#: Where a request's target is the same as an earlier one's, finding its route again is wasted; clients use few targets.
_KEPT_TARGETS = 1024
#: These come while the body is still on its way: there is no next request to find behind it.
_CLOSING: Final = (408, 413)
_PREFLIGHT_HEADER = "Access-Control-Request-Method"


class Route(NamedTuple):
    """Who answers the paths with one first segment.

    Attributes:
        handler: The door's method.
        token: The key that a request must carry while token authorization is on; None for an open path.
        claims: Whether a path is meant, for first segments that two doors of a shared listener use
            (``/models/m/invoke`` is inference, ``/models/m`` management); None claims all.
        begin: The door's method for requests that arrive whole, if it has one.
    """

    handler: Handler
    token: TokenType | None
    claims: Callable[[Path], bool] | None = None
    begin: Beginner | None = None


#: First path segment to route.
Routes = Mapping[str, Route]


class Router:
    """What aiohttp calls for every request on one listener.

    Args:
        doors: The routes of each door; where two claim a path, the first has it, unless it passes the request on.
        tokens: The keys, None while token authorization is off.
        responses: Writes the answers.
        preflight: Whether requests from other origins are allowed at all, so that browsers may ask before they come.
        unknown: May answer requests for paths that no door claims; what none of them answers gets TorchServe's 404.
    """

    def __init__(
        self,
        doors: Iterable[Routes],
        tokens: TokenAuthorization | None,
        responses: Responses,
        *,
        preflight: bool,
        unknown: Iterable[Handler] = (),
    ) -> None:
        self._routes: dict[str, tuple[Route, ...]] = {}
        for routes in doors:
            for segment, route in routes.items():
                self._routes[segment] = (*self._routes.get(segment, ()), route)
        self._tokens = tokens
        self._responses = responses
        self._preflight = preflight
        self._unknown = tuple(unknown)
        self._find = lru_cache(maxsize=_KEPT_TARGETS)(self._find_routes)

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request, whatever happens."""
        try:
            path, routes = self._find(request.raw_path)
            if routes and self._preflight and request.method == "OPTIONS" and _PREFLIGHT_HEADER in request.headers:
                return await self._responses.send(request, 200, b"")
            for route in routes:
                if self._tokens is not None and route.token is not None:
                    self._tokens.check(route.token, request.headers.get(hdrs.AUTHORIZATION))
                answer = await route.handler(request, path)
                if answer is not None:
                    return answer
            for answer_unknown in self._unknown:
                answer = await answer_unknown(request, path)
                if answer is not None:
                    return answer
            raise not_found()
        except RequestPayloadError:
            failure = invalid_message("The request body could not be read.")
            return await self._responses.send_failure(request, failure, close=True)
        except Exception as error:
            if isinstance(error, ConnectionError) and (request.transport is None or request.transport.is_closing()):
                raise  # the client is gone; aiohttp cleans up
            failure = _failure(request, error)
            return await self._responses.send_failure(request, failure, close=failure.status in _CLOSING)

    def begin(self, request: WholeRequest) -> Exchange | Sent | None:
        """Begin to answer a request that has arrived whole, or answer it with an error.

        Returns:
            What is to become of it; the error that was sent; or None, where it takes the whole of aiohttp. Nothing has
            been done then.
        """
        try:
            path, routes = self._find(request.raw_path)
            route = routes[0] if routes else None
            if route is None or route.begin is None:
                return None
            if self._tokens is not None and route.token is not None:
                self._tokens.check(route.token, request.headers.get(hdrs.AUTHORIZATION))
            return route.begin(request, path)
        except Exception as error:
            return self.fail(request, error)

    def fail(self, request: WholeRequest, error: Exception) -> Sent:
        """Answer a request with an error that its door has raised."""
        failure = _failure(request, error)
        return self._responses.send_failure_now(request, failure, close=failure.status in _CLOSING)

    def _find_routes(self, target: str) -> tuple[Path, tuple[Route, ...]]:
        path = split_path(target)
        claimed = tuple(
            route
            for key in (path[0] if path else ROOT, ANY)
            for route in self._routes.get(key, ())
            if route.claims is None or route.claims(path)
        )
        return path, claimed


def _failure(request: HttpRequest, error: Exception) -> Failure:
    """What the client is told of an error; one that no door means to raise is logged."""
    if not isinstance(error, (DoorError, ArchiveError, ModelError, WorkflowError)):
        logger.error("%s %s failed.", request.method, ascii(request.raw_path), exc_info=error)
    return failure_of(error)
