"""The routes that doors declare, and the look-up of a path's routes.

The tables decide which door answers a request, what is refused (404, 405 with ``Allow``, a missing token), the OpenAPI
documents, and the path under which a request is logged and counted.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any, Final

from torchserve_py.core.serving import ServedModel, Serving
from torchserve_py.doors.live.live_session import LiveSession
from torchserve_py.doors.management_calls import ManagementCalls
from torchserve_py.doors.open_inference.repository import Repository
from torchserve_py.doors.open_inference.shared_memory import SharedMemory
from torchserve_py.doors.openapi import Operation
from torchserve_py.doors.path_templates import PathTemplate, read_template
from torchserve_py.doors.pipeline import HttpDialect, HttpExchange
from torchserve_py.doors.requests import split_path
from torchserve_py.doors.responses import Answer, Responses, Sent
from torchserve_py.doors.token_authorization import TokenAuthorization, TokenType
from torchserve_py.doors.torchserve_dialect import TORCHSERVE_DIALECT
from torchserve_py.jobs.inference_request import InferenceRequest
from torchserve_py.metrics.server_metrics import ServerMetrics
from torchserve_py.settings.table import Settings
from torchserve_py.transport.admission import Admission, ConnectionBudget
from torchserve_py.transport.http1.request import Request
from torchserve_py.transport.request_budget import ROOM_OF_OPERATORS, RequestBudget
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


#: A reply that needs the request's body, and is called with it; if it returns None, it passes the request on.
AfterBody = Callable[[bytes], Any]

#: An answer to be sent, one that was sent, a job, what needs the body, or a coroutine (run in a task) with a reply.
Reply = Answer | Sent | HttpExchange | AfterBody | Coroutine[Any, Any, Any]

#: Gets the request, whose body may still arrive, and the parameters of its path. A handler that returns None (or a
#: coroutine that returns None) passes the request on to the next route of the path.
Handler = Callable[[Request, PathValues], Reply | None]


@dataclass(frozen=True, slots=True)
class Route:
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
        is_quiet: Whether the access log has only refusals (status 4xx): for probes, and pages that ask again and again.
    """

    path: str
    handler: Handler
    methods: tuple[str, ...] = ANY_METHOD
    token: TokenType | None = TokenType.inference
    dialect: HttpDialect = TORCHSERVE_DIALECT
    operations: Sequence[Operation] = ()
    applies: Callable[[Request, PathValues], bool] | None = None
    is_quiet: bool = False


class DoorContext:
    """What the doors of a server share."""

    def __init__(
        self,
        settings: Settings,
        serving: Serving,
        workflows: WorkflowRegistry,
        metrics: ServerMetrics,
        tokens: TokenAuthorization | None,
    ) -> None:
        self.settings = settings
        self.serving = serving
        self.workflows = workflows
        self.metrics = metrics
        self.tokens = tokens
        self.responses = Responses(settings, metrics)
        self.calls = ManagementCalls(settings, serving)
        self.repository = Repository(serving, self.calls)
        self.shared_memory = SharedMemory(settings.shared_memory_keys, settings.max_request_size)
        #: The live session that owns a sequence, by the model and the sequence's id, on all listeners.
        self.live_sessions: dict[tuple[int, str], LiveSession] = {}
        #: Whether the server is shutting down.
        self.is_draining = False
        #: Called once the server begins to shut down.
        self.on_drain: list[Callable[[], None]] = []
        #: Called once accepted work has had its time, before connections are closed.
        self.on_close: list[Callable[[], None]] = []
        self._connections = ConnectionBudget.of_process()
        self._budget, self._operators_budget = RequestBudget(), RequestBudget(ROOM_OF_OPERATORS)

    def submit(
        self,
        request: Request,
        dialect: HttpDialect,
        model: ServedModel,
        inference: InferenceRequest,
        version: str | None = None,
    ) -> HttpExchange:
        """Make a job of a request to a model; ``version`` is the one that the client named."""
        parts = self.serving.submit(model, inference)
        return HttpExchange(dialect, model, model.name, inference, parts, version, request, self.responses)

    def limits(self, *, for_operators: bool) -> tuple[Admission, RequestBudget]:
        """Return the limit of a listener's connections, and of what requests hold; all listeners share both."""
        settings = self.settings
        admission = Admission(
            self._connections, settings.max_connections, settings.max_connections_per_client, is_reserved=for_operators
        )
        return admission, self._operators_budget if for_operators else self._budget

    def start_draining(self) -> None:
        """Let probes say from now on that the server is not ready, and let doors end what cannot go on."""
        self.is_draining = True
        for tell in self.on_drain:
            tell()


class Door(ABC):
    """One API that clients can speak."""

    def __init__(self, context: DoorContext) -> None:
        self.context = context
        self.serving = context.serving
        self.settings = context.settings
        self.max_body = context.settings.max_request_size

    @abstractmethod
    def routes(self) -> Iterable[Route]:
        """Return the door's table."""


#: A route, and what a path names in it.
Match = tuple[Route, PathValues]


class Router:
    """Finds the routes of a path on one listener: the most specific first, equally specific ones in table order."""

    def __init__(self, routes: Iterable[Route]) -> None:
        read = [(read_template(route.path), route) for route in routes]
        #: The routes by the first segment of their paths; None is the key of less specific routes, whose first segment
        #: is a parameter.
        self._by_first: dict[str | None, list[tuple[PathTemplate, Route]]] = {}
        for template, route in sorted(read, key=lambda each: each[0].specificity):
            self._by_first.setdefault(template.first, []).append((template, route))
        self.find = lru_cache(maxsize=_KEPT_PATHS)(self._find)

    def _find(self, path: str) -> tuple[Match, ...]:
        first, *rest = split_path(path) or ("",)
        text = "/".join(("", first, *rest))
        candidates = chain(self._by_first.get(first, ()), self._by_first.get(None, ()))
        found = ((route, template.match(text)) for template, route in candidates)
        return tuple((route, values) for route, values in found if values is not None)
