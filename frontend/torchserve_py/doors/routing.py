"""The routes that doors declare, and the look-up of a path's routes.

A door is a class that takes a `DoorContext` and has ``routes``, the rows of its table. The tables decide which door
answers a request, what is refused (404, 405 with ``Allow``, a missing token), the OpenAPI documents, and the path under
which a request is logged and counted.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from torchserve_py.doors.openapi import Operation
from torchserve_py.doors.path_templates import PathTemplate, read_template
from torchserve_py.doors.pipeline import HttpDialect, HttpExchange
from torchserve_py.doors.requests import split_path
from torchserve_py.doors.responses import Responses, Sent
from torchserve_py.doors.token_authorization import TokenAuthorization, TokenType
from torchserve_py.doors.torchserve_dialect import TORCHSERVE_DIALECT
from torchserve_py.transport.http1.request import Request

if TYPE_CHECKING:
    from torchserve_py.core.serving import Serving
    from torchserve_py.doors.live.live_session import LiveSession
    from torchserve_py.doors.management_calls import ManagementCalls
    from torchserve_py.doors.open_inference.repository import Repository
    from torchserve_py.doors.open_inference.shared_memory import SharedMemory
    from torchserve_py.metrics.server_metrics import ServerMetrics
    from torchserve_py.settings.table import Settings
    from torchserve_py.workflows.registry import WorkflowRegistry

#: The methods of paths that TorchServe serves with any method; models cannot answer TRACE and CONNECT.
ANY_METHOD: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
READING: Final = ("GET", "HEAD")
#: The pattern of routes for all paths without another route.
ANY_PATH: Final = "/{path:path}"

#: Clients use few paths: the routes of the latest paths are cached.
_KEPT_PATHS: Final = 1024

#: The parameters of a path by name.
PathValues = Mapping[str, str]


class AfterBody(NamedTuple):
    """A reply that needs the request's body.

    Attributes:
        limit: Bytes that the body may have.
        then: Returns the reply to the complete body; None passes the request on.
    """

    limit: int
    then: Callable[[bytes], Reply | None]


#: An answer that was sent, a job, a body to wait for, or a coroutine (run in a task) that returns another reply.
Reply = Sent | HttpExchange | AfterBody | Coroutine[Any, Any, Any]

#: Gets the request, whose body may still arrive, and the parameters of its path. A handler that returns None (or a
#: coroutine that returns None) passes the request on to the next route of the path.
Handler = Callable[[Request, PathValues], Reply | None]


class Route(NamedTuple):
    """One row of a door's table.

    Attributes:
        path: The pattern; see `path_templates`.
        handler: Reads the request and replies.
        methods: The methods that the handler takes; a path has the methods of all its routes.
        token: The key that a request must carry while token authorization is on; None for an open path.
        dialect: Words the refusals.
        operations: The entries of OpenAPI documents.
        applies: Whether the path means this route now, for paths whose meaning depends on the registered models. If
            the route applies, later routes get the request only if the handler passes it on.
    """

    path: str
    handler: Handler
    methods: tuple[str, ...] = ANY_METHOD
    token: TokenType | None = TokenType.inference
    dialect: HttpDialect = TORCHSERVE_DIALECT
    operations: Sequence[Operation] = ()
    applies: Callable[[Request, PathValues], bool] | None = None


@dataclass(slots=True)
class DoorContext:
    """What the doors of a server share.

    Attributes:
        settings: The server's settings.
        serving: The models.
        workflows: The workflows.
        metrics: What the server counts.
        responses: Writes answers.
        tokens: The keys that clients must know; None while token authorization is off.
        calls: Carries out the calls of the management API.
        repository: Loads and unloads models by name.
        shared_memory: The regions that clients have registered.
        live_sessions: The live session that owns a sequence, by the model and the sequence's id, on all listeners.
        is_draining: Whether the server is shutting down.
        on_drain: Called once the server begins to shut down.
        on_close: Called once accepted work has had its time, before connections are closed.
    """

    settings: Settings
    serving: Serving
    workflows: WorkflowRegistry
    metrics: ServerMetrics
    responses: Responses
    tokens: TokenAuthorization | None
    calls: ManagementCalls
    repository: Repository
    shared_memory: SharedMemory
    live_sessions: dict[tuple[int, str], LiveSession] = field(default_factory=dict)
    is_draining: bool = False
    on_drain: list[Callable[[], None]] = field(default_factory=list)
    on_close: list[Callable[[], None]] = field(default_factory=list)


class Door(Protocol):
    """One API that clients can speak."""

    @property
    def routes(self) -> Sequence[Route]:
        """The door's table."""


#: A route, and what a path names in it.
Match = tuple[Route, PathValues]


class Router:
    """Finds the routes of a path on one listener: the most specific first, equally specific ones in table order.

    Args:
        routes: The tables of the listener's doors.
    """

    def __init__(self, routes: Iterable[Route]) -> None:
        read = [(read_template(route.path), route) for route in routes]
        #: The routes by the first segment of their paths; None is the key of less specific routes, whose first segment
        #: is a parameter.
        self._by_first: dict[str | None, list[tuple[PathTemplate, Route]]] = {}
        for template, route in sorted(read, key=lambda each: each[0].specificity):
            self._by_first.setdefault(template.fixed_segment(1), []).append((template, route))
        self.find = lru_cache(maxsize=_KEPT_PATHS)(self._find)

    def _find(self, path: str) -> tuple[Match, ...]:
        segments = ("", *(split_path(path) or ("",)))
        candidates = chain(self._by_first.get(segments[1], ()), self._by_first.get(None, ()))
        found = ((route, template.match(segments)) for template, route in candidates)
        return tuple((route, values) for route, values in found if values is not None)
