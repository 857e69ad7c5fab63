"""From a request to the door that answers it, and from what a door raises to an error answer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import chain
from typing import Any, Final, NamedTuple

from torchserve_py.archive.errors import ArchiveError
from torchserve_py.core.errors import ModelError
from torchserve_py.doors.answering import Reply
from torchserve_py.doors.errors import DoorError, method_not_allowed, not_found
from torchserve_py.doors.pipeline import HttpDialect
from torchserve_py.doors.requests import split_path
from torchserve_py.doors.responses import Responses, Sent
from torchserve_py.doors.token_authorization import TokenAuthorization, TokenType
from torchserve_py.doors.torchserve_dialect import TORCHSERVE_DIALECT
from torchserve_py.transport.http1.request import Request
from torchserve_py.workflows.errors import WorkflowError

logger = logging.getLogger(__name__)

Path = tuple[str, ...]

#: Gets the request, whose body may still be on its way, and the segments of its path; None (or a coroutine that ends
#: with None) passes the request on to the next door that claims its path.
Handler = Callable[[Request, Path], Reply | None]

#: The key of routes for paths whose first segment is no word of the API, but a model's name.
ANY: Final = "*"
#: The key of the route for the path ``/``.
ROOT: Final = ""

#: Where a request's path is the same as an earlier one's, finding its route again is wasted; clients use few paths.
_KEPT_PATHS = 1024
_PREFLIGHT_HEADER = "Access-Control-Request-Method"


class Route(NamedTuple):
    """Who answers the paths with one first segment.

    Attributes:
        handler: The door's method.
        token: The key that a request must carry while token authorization is on; None for an open path.
        claims: Whether a path is meant, for first segments that two doors of a shared listener use
            (``/models/m/invoke`` is inference, ``/models/m`` management); None claims all.
        dialect: How the client is told what the handler raises.
        methods: The methods that the handler takes; none where it sees to that itself.
    """

    handler: Handler
    token: TokenType | None
    claims: Callable[[Path], bool] | None = None
    dialect: HttpDialect = TORCHSERVE_DIALECT
    methods: tuple[str, ...] = ()


#: First path segment to route.
Routes = Mapping[str, Route]


class Router:
    """Finds the door of every request on one listener.

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
        unknown: Iterable[Route] = (),
    ) -> None:
        self._routes: dict[str, tuple[Route, ...]] = {}
        for routes in doors:
            for segment, route in routes.items():
                self._routes[segment] = (*self._routes.get(segment, ()), route)
        self._tokens = tokens
        self._responses = responses
        self._preflight = preflight
        self._unknown = tuple(unknown)
        self._find = lru_cache(maxsize=_KEPT_PATHS)(self._find_routes)

    def reply(self, request: Request) -> Reply:
        """What is to become of a request.

        Raises:
            Exception: A door refuses it; see `fail`.
        """
        path, routes = self._find(request.target.partition("?")[0])
        if routes and self._preflight and request.method == "OPTIONS" and _PREFLIGHT_HEADER in request.headers:
            return self._responses.send(request, 200, b"")
        return self._ask(request, path, chain(routes, self._unknown))

    def fail(self, request: Request, error: Exception, dialect: HttpDialect | None = None) -> Sent:
        """Answer a request with what its door has raised, in TorchServe's dialect unless another is given."""
        if not isinstance(error, (DoorError, ArchiveError, ModelError, WorkflowError)):
            logger.error("%s %s failed.", request.method, ascii(request.target), exc_info=error)
        speaks = dialect or TORCHSERVE_DIALECT
        return self._responses.send_answer(request, speaks.failure(speaks.refusal(error)))

    def _ask(self, request: Request, path: Path, routes: Iterator[Route]) -> Reply:
        refusal = not_found()
        dialect: HttpDialect = TORCHSERVE_DIALECT
        for route in routes:
            try:
                if self._tokens is not None and route.token is not None:
                    self._tokens.check(route.token, request.headers.get("Authorization"))
                if route.methods and request.method not in route.methods:
                    refusal, dialect = method_not_allowed(", ".join(route.methods)), route.dialect
                    continue
                reply = route.handler(request, path)
            except Exception as error:
                return self.fail(request, error, route.dialect)
            if isinstance(reply, Coroutine):
                return self._wait(reply, request, path, route, routes)
            if reply is not None:
                return reply
        return self.fail(request, refusal, dialect)

    async def _wait(
        self,
        reply: Coroutine[Any, Any, Reply | None],
        request: Request,
        path: Path,
        route: Route,
        routes: Iterator[Route],
    ) -> Reply:
        try:
            followed = await reply
        except Exception as error:
            if request.status or not request.is_connected:
                raise
            return self.fail(request, error, route.dialect)
        return self._ask(request, path, routes) if followed is None else followed

    def _find_routes(self, target: str) -> tuple[Path, tuple[Route, ...]]:
        path = split_path(target)
        claimed = tuple(
            route
            for key in (path[0] if path else ROOT, ANY)
            for route in self._routes.get(key, ())
            if route.claims is None or route.claims(path)
        )
        return path, claimed
