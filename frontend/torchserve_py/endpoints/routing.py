"""The routes that endpoints declare, and the look-up of a path's routes.

The tables decide which endpoint answers a request, what is refused (404, 405 with ``Allow``, a missing token), the
OpenAPI documents, and the path under which a request is logged and counted.
"""

from __future__ import annotations

import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar, cast

from torchserve_py.base.metrics.server_metrics import ServerMetrics
from torchserve_py.base.settings.table import Settings
from torchserve_py.core.jobs.job_observer import Account
from torchserve_py.core.serving.serving import ServedModel, Serving
from torchserve_py.endpoints.client_call import TORCHSERVE_DIALECT, HttpCall, HttpDialect
from torchserve_py.endpoints.connection_counts import ConnectionCounts
from torchserve_py.endpoints.credentials import Credential
from torchserve_py.endpoints.failures import Failure
from torchserve_py.endpoints.openapi import Operation
from torchserve_py.endpoints.path_templates import PathTemplate, read_template
from torchserve_py.endpoints.requests import split_path
from torchserve_py.endpoints.responses import AlreadySent, Answer, Responses
from torchserve_py.endpoints.time_limits import URGENCY_KEYS, read_urgency
from torchserve_py.endpoints.token_authorization import Authorization, TokenType
from torchserve_py.net.admission import Admission, ConnectionBudget
from torchserve_py.net.http1.request import Request
from torchserve_py.net.refusal_counts import Refusals
from torchserve_py.net.request_budget import ROOM_OF_OPERATORS, RequestBudget

#: The methods of paths that TorchServe serves with any method; models cannot answer TRACE and CONNECT.
ANY_METHOD: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
READING: Final = ("GET", "HEAD")
#: The pattern of routes for all paths without another route.
ANY_PATH: Final = "/{path:path}"

#: Clients use few paths: the routes of the latest paths are cached.
_KEPT_PATHS: Final = 1024

#: The parameters of a path by name.
PathValues = Mapping[str, str]


#: A reply that needs the request's body, and is called with it.
AfterBody: TypeAlias = "Callable[[bytes], Reply | None]"

#: An answer to be sent, one that was sent, a job, what needs the body, or a coroutine (run in a task) with a reply.
Reply: TypeAlias = "Answer | AlreadySent | HttpCall | AfterBody | Coroutine[Any, Any, Reply | None]"

#: Gets the request, whose body may still arrive, and the parameters of its path. Where a handler, or what follows it,
#: returns None, it passes the request on to the next route of the path.
Handler: TypeAlias = "Callable[[Request, PathValues], Reply | None]"


@dataclass(frozen=True, slots=True)
class Prepared:
    """Makes the handler of one path, which has what is the same for each request of the path."""

    handler_of: Callable[[PathValues], Handler]


@dataclass(frozen=True, slots=True)
class Route:
    """One row of an endpoint's table.

    Attributes:
        path: The pattern; see `path_templates`.
        handler: Reads the request and replies.
        methods: The methods that the handler takes; a path has the methods of all its routes.
        token: The key that a request must carry while token authorization is on; None for an open path.
        dialect: Words the refusals.
        operations: The entries of OpenAPI documents.
        applies: Whether the path means this route now, for paths whose meaning depends on the registered models. If
            the route applies, later routes get the request only if the handler passes it on.
        refuse: Answers a request that is refused before it is a job, in another way than the dialect would; or returns
            None: the dialect answers.
        is_quiet: Whether the access log has only refusals (status 4xx): for probes, and pages that ask again and again.
        is_probe: Whether the route is answered, without a body and without waiting, although the listener has all its
            connections: whoever asks may end the server if it does not answer.
        passes_encoding_on: Whether the handler gets a body as it was sent, whatever its ``Content-Encoding``. Other
            handlers get it decompressed, in requests that name no encoding any more.
        takes_json: Whether the handler reads its body as JSON: it gets it in UTF-8, in requests that name no charset
            any more.
    """

    path: str
    handler: Handler | Prepared
    methods: tuple[str, ...] = ANY_METHOD
    token: TokenType | None = TokenType.inference
    dialect: HttpDialect = TORCHSERVE_DIALECT
    operations: Sequence[Operation] = ()
    applies: Callable[[Request, PathValues], bool] | None = None
    refuse: Callable[[Request, Failure], Coroutine[Any, Any, Reply] | None] | None = None
    is_quiet: bool = False
    is_probe: bool = False
    passes_encoding_on: bool = False
    takes_json: bool = False

    def handler_of(self, values: PathValues) -> Handler:
        """Return the handler of a path that names these values."""
        return self.handler.handler_of(values) if isinstance(self.handler, Prepared) else self.handler


T = TypeVar("T")


class PredictPath(NamedTuple):
    """A further path at which a model predicts, as a model's description has it.

    Attributes:
        path: Makes the path of a quoted name.
        prefix: What begins the operation's id there.
    """

    path: Callable[[str], str]
    prefix: str
    operation: Operation


class PluginWork(Protocol):
    """Work of a plugin's own that outlives requests: it is drained with the models, and then closed."""

    async def drain(self, limit: float) -> bool:
        """Refuse new work and wait for what runs, at most ``limit`` seconds; return whether all of it has ended."""
        ...

    async def close(self) -> None:
        """End what still runs."""
        ...


class EndpointContext:
    """What the endpoints of a server share."""

    def __init__(
        self,
        settings: Settings,
        serving: Serving,
        metrics: ServerMetrics,
        tokens: Authorization | None,
    ) -> None:
        self.settings = settings
        self.serving = serving
        self.metrics = metrics
        self.tokens = tokens
        self.responses = Responses(settings, metrics)
        #: Where models predict, in addition to TorchServe's path.
        self.predict_paths: list[PredictPath] = []
        #: What plugins do apart from answering requests.
        self.work: list[PluginWork] = []
        self._shared: dict[Callable[[EndpointContext], Any], Any] = {}
        #: Whether the server is to get no more traffic, and whether it refuses new work.
        self.is_leaving = self.is_draining = False
        #: Called once the server is to get no more traffic, and once it refuses new work.
        self.on_leave: list[Callable[[], None]] = []
        self.on_drain: list[Callable[[], None]] = []
        #: Lets the server finish its work and take no more, while its process keeps running.
        self.drain: Callable[[], object] = self.start_draining
        #: Called when the operator wants files to be looked at again; each blocks.
        self.on_reload: list[Callable[[], None]] = []
        #: What encrypts the listeners; a new certificate is loaded into these.
        self.tls_contexts: list[ssl.SSLContext] = []
        #: Those that show the certificate in PEM, although a key store may be set for the others.
        self.pem_contexts: list[ssl.SSLContext] = []
        #: Called once accepted work has had its time, before connections are closed.
        self.on_close: list[Callable[[], None]] = []
        self._connections = ConnectionBudget.of_process()
        self._counts = ConnectionCounts(metrics)
        #: What is refused before it is a request.
        self.refusals = Refusals(self._counts.refused)
        self._budget, self._operators_budget = RequestBudget(), RequestBudget(ROOM_OF_OPERATORS)

    def shared(self, make: Callable[[EndpointContext], T]) -> T:
        """Return what a plugin's endpoints share on all listeners; the first call makes it."""
        if make not in self._shared:
            self._shared[make] = make(self)
        return cast(T, self._shared[make])

    def call_of(
        self,
        request: Request,
        dialect: HttpDialect,
        model: ServedModel,
        headers: tuple[tuple[str, str], ...] = (),
        protocol: str | None = None,
        kind: type[HttpCall] = HttpCall,
    ) -> HttpCall:
        """Return a request as a call of the default version of a model, whose code gets ``headers`` as well."""
        sent, content_type = request.raw_headers, request.headers.get("Content-Type")
        return kind(request, self.responses, dialect, model, None, sent + headers, b"", content_type, protocol)

    def submit(self, call: HttpCall, body: Any) -> HttpCall:
        """Submit the call of a model that a request is, with the request's body; return the call.

        Raises EndpointError: the request's key is not for the model, or its priority or a time limit is invalid.
        """
        model, request = call.model, call.request
        assert model is not None, "workflows have their own calls"
        call.body = body
        if self.tokens is not None:
            call.account = request.credential.account(model.name)
        if not URGENCY_KEYS.isdisjoint(request.headers.raw):
            read_urgency(call)
        self.serving.submit(model, call)
        return call

    def account(self, request: Request, model: str) -> Account | None:
        """Return the account to which a request to a model, or a workflow, is charged, if it is to one.

        Raises EndpointError: the request's key is not for this model, or is good no more.
        """
        if self.tokens is None:
            return None
        credential: Credential = request.credential
        return credential.account(model)

    def limits(self, listener: str, *, for_operators: bool) -> tuple[Admission, RequestBudget]:
        """Return the limit of a listener's connections, and of what requests hold; all listeners share both.

        ``listener`` is its name in metrics.
        """
        most, of_client = self.settings.max_connections, self.settings.max_connections_per_client
        admission = Admission(self._connections, most, of_client, is_reserved=for_operators, refusals=self.refusals)
        self._counts.show(listener, admission)
        return admission, self._operators_budget if for_operators else self._budget

    def start_leaving(self) -> None:
        """Let probes say from now on that the server is not ready; it serves as before."""
        self.is_leaving = True
        for tell in self.on_leave:
            tell()

    def start_draining(self) -> None:
        """Let endpoints end what cannot continue, and probes say that the server is not ready."""
        self.start_leaving()
        self.is_draining = True
        for tell in self.on_drain:
            tell()


class Endpoints(ABC):
    """One API that clients can speak."""

    def __init__(self, context: EndpointContext) -> None:
        self.context = context
        self.serving = context.serving
        self.settings = context.settings
        self.max_body = context.settings.max_request_size

    @abstractmethod
    def routes(self) -> Iterable[Route]:
        """Return the endpoint's table."""


class Match(NamedTuple):
    """A route of a path, what the path names in it, and the handler of its requests."""

    route: Route
    values: PathValues
    handler: Handler


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
        return tuple(Match(route, values, route.handler_of(values)) for route, values in found if values is not None)
