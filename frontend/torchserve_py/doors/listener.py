"""Where the doors listen: which doors an address has, how many connections, and with which limits.

A listener has one `Router`; doors with the same address share a listener, as in SageMaker's layout.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from torchserve_py.doors.access_log import log_refusal
from torchserve_py.doors.answering import Answering
from torchserve_py.doors.api_description import DescriptionDoor
from torchserve_py.doors.errors import too_many_connections
from torchserve_py.doors.health import HealthDoor
from torchserve_py.doors.inference import InferenceDoor
from torchserve_py.doors.management import ManagementDoor
from torchserve_py.doors.management_calls import ManagementCalls
from torchserve_py.doors.metrics import MetricsDoor
from torchserve_py.doors.open_inference.door import OpenInferenceDoor
from torchserve_py.doors.open_inference.repository import Repository
from torchserve_py.doors.openai import OpenAIDoor
from torchserve_py.doors.responses import JSON_TYPE, Responses, allows_other_origins, to_json
from torchserve_py.doors.routing import Router, Routes
from torchserve_py.doors.surfaces import InferenceSurfaces
from torchserve_py.doors.tls import server_context
from torchserve_py.doors.token_authorization import KEY_FILE, TokenAuthorization
from torchserve_py.doors.truss.door import TrussDoor
from torchserve_py.doors.v1_models import V1ModelsDoor
from torchserve_py.doors.workflows import WorkflowInferenceDoor, WorkflowManagementDoor
from torchserve_py.settings.addresses import Address
from torchserve_py.transport.acceptor import Acceptor, listening_sockets
from torchserve_py.transport.admission import Admission, ConnectionBudget
from torchserve_py.transport.http1.connection import Connection
from torchserve_py.transport.http1.request import Request
from torchserve_py.transport.http1.server import Limits, Server

if TYPE_CHECKING:
    from torchserve_py.core.serving import Serving
    from torchserve_py.metrics.server_metrics import ServerMetrics
    from torchserve_py.settings.table import Settings
    from torchserve_py.workflows.registry import WorkflowRegistry

logger = logging.getLogger(__name__)

_BACKLOG: Final = 1024
#: How long answers that are being written may take when the doors close.
_CLOSE_SECONDS: Final = 5.0


class ListenError(OSError):
    """The server cannot listen where it is told to; the message names the address and its setting."""


class _Application:
    """Answers the requests of one listener with its doors."""

    def __init__(self, router: Router, responses: Responses, *, is_logged: bool) -> None:
        self._router = router
        self._responses = responses
        self._is_logged = is_logged

    def begin(self, request: Request) -> None:
        """Answer a request."""
        Answering(request, self._router, is_logged=self._is_logged).begin()

    def refusal(self, status: int, message: str, peer: Any) -> bytes:
        """The response to bytes that never became a request."""
        if self._is_logged:
            log_refusal(peer, status)
        return self._responses.refusal(status, message)


class _PlainRefusal:
    """Answers every request that comes without TLS to a listener that has it."""

    def __init__(self, responses: Responses) -> None:
        self._responses = responses

    def begin(self, request: Request) -> None:
        """Refuse a request."""
        answer = to_json({"status": "This TorchServe instance only accepts HTTPS requests"})
        self._responses.send(request, 403, answer, (JSON_TYPE,), close=True)
        request.finish()

    def refusal(self, status: int, message: str, peer: Any) -> bytes:
        """The response to bytes that never became a request."""
        return self._responses.refusal(status, message)


@dataclass(slots=True)
class _Bound:
    servers: tuple[Server, ...]
    acceptors: tuple[Acceptor, ...]
    address: Address


@dataclass(frozen=True, slots=True)
class _Listener:
    """What serves one address.

    Attributes:
        server: Its connections.
        admission: How many there may be.
        refuse: What one too many is told.
        context: For TLS; None for an address without.
        plain: The connections without TLS to an address with it.
    """

    server: Server
    admission: Admission
    refuse: Callable[[str], bytes]
    context: ssl.SSLContext | None = None
    plain: Server | None = None

    def accept(self, listening: socket.socket) -> Acceptor:
        """Accept connections at a socket."""
        plain = self.plain
        return Acceptor(
            listening,
            self.admission,
            lambda place: Connection(self.server, place),
            self.refuse,
            self.context,
            None if plain is None else lambda place: Connection(plain, place),
        )


class Doors:
    """The open doors of a running server."""

    def __init__(self, health: HealthDoor, tokens: TokenAuthorization | None, repository: Repository) -> None:
        #: Setting name (``inference_address``, …) to the address in use, with the port that port 0 became.
        self.addresses: dict[str, Address] = {}
        #: The keys that clients must know; None while token authorization is off. Other protocols use the same.
        self.tokens = tokens
        #: What models are loaded and unloaded through. Other protocols use the same.
        self.repository = repository
        #: What all connections of the process share. Other protocols use the same.
        self.budget = ConnectionBudget.of_process()
        self._health = health
        self._bound: list[_Bound] = []

    def start_draining(self) -> None:
        """Let ``/ready`` answer 503 from now on; everything else goes on."""
        self._health.draining = True

    async def open(self, names: list[str], address: Address, listener: _Listener) -> None:
        """Listen at one more address.

        Args:
            names: The settings that name it.
            address: Where.
            listener: What serves it.

        Raises:
            ListenError: It is in use, not an address of this machine, not permitted, …
        """
        try:
            bound = await _bind(address, listener)
        except OSError as error:
            raise ListenError(_why_not(names, address, error)) from error
        self._bound.append(bound)
        for name in names:
            self.addresses[name] = bound.address
        logger.info("%s: listening at %s", ", ".join(names), bound.address)

    async def close(self) -> None:
        """Stop listening, let answers that are being written finish for a few seconds, close every connection."""
        for bound in self._bound:
            for acceptor in bound.acceptors:
                acceptor.close()
        await asyncio.gather(*(server.close(_CLOSE_SECONDS) for bound in self._bound for server in bound.servers))
        for bound in self._bound:
            if bound.address.is_unix:
                Path(bound.address.path).unlink(missing_ok=True)
        self._bound.clear()
        if self.tokens is not None:
            self.tokens.remove_key_file()


async def start_doors(
    settings: Settings,
    serving: Serving,
    workflows: WorkflowRegistry,
    metrics: ServerMetrics,
    key_file: Path = Path(KEY_FILE),
) -> Doors:
    """Open the HTTP doors.

    Args:
        settings: Addresses, limits, header names.
        serving: The models.
        workflows: The workflows.
        metrics: What the doors count in, and what ``/metrics`` shows.
        key_file: Where the tokens are written, unless token authorization is off.

    Raises:
        ListenError: An address cannot be used; no door is open then.
        TlsError: An address is one of https, and the configured key or certificate cannot be used.
        OSError: The key file cannot be written.
    """
    tokens = None
    if not settings.disable_token_authorization:
        tokens = TokenAuthorization(key_file.absolute(), settings.token_expiration_min)
    responses = Responses(settings, metrics)
    health = HealthDoor(serving, responses)
    truss = TrussDoor(settings, serving, responses, tokens)
    repository = Repository(serving, ManagementCalls(settings, serving))
    inference = InferenceDoor(settings, serving, responses)
    open_inference = OpenInferenceDoor(settings, serving, responses, tokens, health, inference, repository)
    doors = Doors(health, tokens, repository)
    try:
        wanted = _by_address(
            _routes(settings, serving, workflows, metrics, tokens, responses, health, truss, open_inference)
        )
        limits = Limits(settings.request_head_timeout, float(settings.default_response_timeout))
        context = _tls_context(settings, [address for _, address, _ in wanted])
        for names, address, routes in wanted:
            routes.append(DescriptionDoor(names, responses).routes)
            unknown = (open_inference.unknown, truss.unknown) if "inference_address" in names else ()
            router = Router(routes, tokens, responses, preflight=allows_other_origins(settings), unknown=unknown)
            admission = Admission(
                doors.budget,
                settings.max_connections,
                settings.max_connections_per_client,
                is_reserved="inference_address" not in names,
            )
            server = Server(_Application(router, responses, is_logged=settings.access_log), limits)
            listener = _Listener(server, admission, lambda why: responses.whole_failure(too_many_connections(why)))
            if address.is_tls:
                listener = replace(listener, context=context, plain=Server(_PlainRefusal(responses), limits))
            await doors.open(names, address, listener)
    except BaseException:
        await doors.close()
        raise
    return doors


def _routes(
    settings: Settings,
    serving: Serving,
    workflows: WorkflowRegistry,
    metrics: ServerMetrics,
    tokens: TokenAuthorization | None,
    responses: Responses,
    health: HealthDoor,
    truss: TrussDoor,
    open_inference: OpenInferenceDoor,
) -> list[tuple[str, Address, list[Routes]]]:
    """What is served where; the settings' names."""
    inference = InferenceDoor(settings, serving, responses)
    inference_routes = [
        open_inference.own_routes,
        OpenAIDoor(settings, serving, responses, truss).routes,
        truss.routes,
        health.routes,
        V1ModelsDoor(serving, responses).routes,
        inference.routes,
        InferenceSurfaces(settings, serving, inference).routes,
        WorkflowInferenceDoor(settings, workflows, responses).routes,
        open_inference.routes,
    ]
    management_routes = [
        ManagementDoor(settings, serving, tokens, responses).routes,
        WorkflowManagementDoor(settings, workflows, responses).routes,
    ]
    wanted = [
        ("inference_address", settings.inference_address, inference_routes),
        ("management_address", settings.management_address, management_routes),
    ]
    if settings.enable_metrics_api:
        wanted.append(("metrics_address", settings.metrics_address, [MetricsDoor(metrics, responses).routes]))
    return wanted


def _by_address(
    wanted: list[tuple[str, Address, list[Routes]]],
) -> list[tuple[list[str], Address, list[Routes]]]:
    """One entry for each address; port 0 is another free port each time."""
    merged: list[tuple[list[str], Address, list[Routes]]] = []
    for name, address, routes in wanted:
        for names, other, all_routes in merged:
            if other == address and (address.is_unix or address.port != 0):
                names.append(name)
                all_routes.extend(routes)
                break
        else:
            merged.append(([name], address, list(routes)))
    return merged


def _tls_context(settings: Settings, addresses: list[Address]) -> ssl.SSLContext | None:
    """How https is served, None where no address asks for it."""
    hosts = [address.host for address in addresses if address.is_tls]
    return server_context(settings, hosts) if hosts else None


async def _bind(address: Address, listener: _Listener) -> _Bound:
    servers = (listener.server,) if listener.plain is None else (listener.server, listener.plain)
    if address.is_unix:
        path = Path(address.path)
        await _remove_stale_socket(path)
        listening = socket.socket(socket.AF_UNIX)
        try:
            listening.bind(str(path))
            listening.listen(_BACKLOG)
        except BaseException:
            listening.close()
            raise
        return _Bound(servers, (listener.accept(listening),), address)
    sockets = await listening_sockets(address.host, address.port, _BACKLOG)
    port = sockets[0].getsockname()[1]
    return _Bound(servers, tuple(map(listener.accept, sockets)), replace(address, port=port))


async def _remove_stale_socket(path: Path) -> None:
    """Delete the socket that an earlier server left behind; one that somebody listens at stays.

    Raises:
        OSError: Somebody listens there.
    """
    if not path.is_socket():
        return
    try:
        _, writer = await asyncio.open_unix_connection(path)
    except ConnectionRefusedError:
        path.unlink(missing_ok=True)
        return
    writer.close()
    raise OSError(errno.EADDRINUSE, "the socket is in use")


def _why_not(names: list[str], address: Address, error: OSError) -> str:
    where = f"{' and '.join(names)}: cannot listen at {address}"
    if error.errno == errno.EADDRINUSE:
        return f"{where}: the address is in use; stop what uses it (another server?) or choose another address"
    return f"{where}: {error.strerror or error}"
