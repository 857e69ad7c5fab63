"""The HTTP listeners: the doors of each address, and the limits of connections.

A listener has one `Router`; doors with the same address share a listener, as in SageMaker's layout.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from torchserve_py.doors.answering import Application
from torchserve_py.doors.bidirectional_stream import BidirectionalStreamDoor
from torchserve_py.doors.console.console_door import ConsoleDoor
from torchserve_py.doors.failures import too_many_connections
from torchserve_py.doors.live.live_session_door import LiveSessionDoor
from torchserve_py.doors.live.openpi_door import OpenpiDoor
from torchserve_py.doors.management_calls import ManagementCalls
from torchserve_py.doors.management_door import ManagementDoor
from torchserve_py.doors.open_inference.open_inference_door import OpenInferenceDoor
from torchserve_py.doors.open_inference.repository import Repository
from torchserve_py.doors.open_inference.shared_memory import SharedMemory
from torchserve_py.doors.openai import OpenAIDoor
from torchserve_py.doors.predictions import InferenceDoor
from torchserve_py.doors.realtime.realtime_door import RealtimeDoor
from torchserve_py.doors.responses import JSON_TYPE, Responses, allows_other_origins, to_json
from torchserve_py.doors.routing import Door, DoorContext, Route
from torchserve_py.doors.server_doors import DescriptionDoor, HealthDoor, MetricsDoor
from torchserve_py.doors.surfaces import InferenceSurfaces
from torchserve_py.doors.tls import server_context
from torchserve_py.doors.token_authorization import KEY_FILE, TokenAuthorization
from torchserve_py.doors.truss.truss_door import TrussDoor
from torchserve_py.doors.v1_models import V1ModelsDoor
from torchserve_py.doors.workflows import WorkflowInferenceDoor, WorkflowManagementDoor
from torchserve_py.settings.addresses import Address
from torchserve_py.transport.acceptor import Acceptor, listening_sockets
from torchserve_py.transport.admission import Admission, ConnectionBudget
from torchserve_py.transport.http1.http_connection import HttpConnection
from torchserve_py.transport.http1.http_server import HttpServer, Limits
from torchserve_py.transport.http1.request import Request
from torchserve_py.transport.request_budget import RequestBudgets

if TYPE_CHECKING:
    from torchserve_py.core.serving import Serving
    from torchserve_py.metrics.server_metrics import ServerMetrics
    from torchserve_py.settings.table import Settings
    from torchserve_py.workflows.registry import WorkflowRegistry

logger = logging.getLogger(__name__)

#: The setting that names a door's address, and the door. If two doors have the same path, the first gets the request.
DOORS: Final[tuple[tuple[str, Callable[[DoorContext], Door]], ...]] = (
    ("inference_address", OpenInferenceDoor),
    ("inference_address", TrussDoor),
    ("inference_address", OpenAIDoor),
    ("inference_address", RealtimeDoor),
    ("inference_address", OpenpiDoor),
    ("inference_address", HealthDoor),
    ("inference_address", InferenceSurfaces),
    ("inference_address", V1ModelsDoor),
    ("inference_address", InferenceDoor),
    ("inference_address", LiveSessionDoor),
    ("inference_address", BidirectionalStreamDoor),
    ("inference_address", WorkflowInferenceDoor),
    ("management_address", ManagementDoor),
    ("management_address", WorkflowManagementDoor),
    ("management_address", ConsoleDoor),
    ("metrics_address", MetricsDoor),
)
_BACKLOG: Final = 1024
#: Time limit for answers that are being written when the doors close (seconds).
_CLOSE_SECONDS: Final = 5.0


class ListenError(OSError):
    """The server cannot listen at an address; the message names the address and its setting."""


class _PlainRefusal:
    """Refuses requests without TLS to a listener with TLS."""

    def __init__(self, responses: Responses) -> None:
        self._responses = responses

    def begin(self, request: Request) -> None:
        """Refuse a request."""
        answer = to_json({"status": "This TorchServe instance only accepts HTTPS requests"})
        self._responses.send(request, 403, answer, (JSON_TYPE,), close=True)
        request.finish()

    def refusal(self, status: int, message: str, peer: Any) -> bytes:
        """Return the response to bytes that never became a request."""
        return self._responses.refusal(status, message)


@dataclass(slots=True)
class _Bound:
    servers: tuple[HttpServer, ...]
    acceptors: tuple[Acceptor, ...]
    address: Address


@dataclass(frozen=True, slots=True)
class _Listener:
    """Serves one address.

    Attributes:
        server: The connections.
        admission: The limit of connections.
        refuse: Makes the response to a connection above the limit.
        context: The TLS context; None without TLS.
        plain: The connections without TLS to an address with TLS.
    """

    server: HttpServer
    admission: Admission
    refuse: Callable[[str], bytes]
    context: ssl.SSLContext | None = None
    plain: HttpServer | None = None

    def accept(self, listening: socket.socket) -> Acceptor:
        """Accept connections at a socket."""
        plain = self.plain
        return Acceptor(
            listening,
            self.admission,
            lambda place: HttpConnection(self.server, place),
            self.refuse,
            self.context,
            None if plain is None else lambda place: HttpConnection(plain, place),
        )


class Doors:
    """The open doors of a running server."""

    def __init__(self, context: DoorContext) -> None:
        #: Setting name (``inference_address``, …) to the address in use, with the port that port 0 became.
        self.addresses: dict[str, Address] = {}
        #: The keys that clients must know; None while token authorization is off. gRPC has the same keys.
        self.tokens = context.tokens
        #: Loads and unloads models, for gRPC as well.
        self.repository = context.repository
        self.shared_memory = context.shared_memory
        #: The budget of connections that all listeners share, those of gRPC as well.
        self.budget = ConnectionBudget.of_process()
        #: The memory that all requests share, those of gRPC as well.
        self.request_budgets = RequestBudgets()
        self._context = context
        self._bound: list[_Bound] = []

    def start_draining(self) -> None:
        """Let ``/ready`` answer 503 from now on, and let doors end what cannot go on."""
        self._context.is_draining = True
        for tell in self._context.on_drain:
            tell()

    async def open(self, names: list[str], address: Address, listener: _Listener) -> None:
        """Listen at one more address.

        Args:
            names: The settings that name the address.
            listener: Serves the address.

        Raises:
            ListenError: The address is in use, is not one of this machine, is not permitted, …
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
        for tell in self._context.on_close:
            tell()
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
    calls = ManagementCalls(settings, serving)
    repository = Repository(serving, calls)
    memory = SharedMemory(settings.shared_memory_keys, settings.max_request_size)
    context = DoorContext(settings, serving, workflows, metrics, responses, tokens, calls, repository, memory)
    doors = Doors(context)
    try:
        wanted = _by_address(settings)
        limits = Limits(settings.request_head_timeout, float(settings.default_response_timeout))
        tls = _tls_context(settings, [address for _, address in wanted])
        for names, address in wanted:
            application = Application(context, _routes(context, names), preflight=allows_other_origins(settings))
            for_operators = "inference_address" not in names
            admission = Admission(
                doors.budget,
                settings.max_connections,
                settings.max_connections_per_client,
                is_reserved=for_operators,
            )
            budgets = doors.request_budgets
            server = HttpServer(application, limits, budgets.operators if for_operators else budgets.inference)
            listener = _Listener(server, admission, lambda why: responses.whole_failure(too_many_connections(why)))
            if address.is_tls:
                listener = replace(listener, context=tls, plain=HttpServer(_PlainRefusal(responses), limits))
            await doors.open(names, address, listener)
    except BaseException:
        await doors.close()
        raise
    return doors


def _routes(context: DoorContext, names: Sequence[str]) -> list[Route]:
    """Return the tables of the doors at one address, which the settings with these names name."""
    routes = [route for name, make in DOORS if name in names for route in make(context).routes]
    return [*routes, *DescriptionDoor(context.responses, routes).routes]


def _by_address(settings: Settings) -> list[tuple[list[str], Address]]:
    """Return the settings that name each address; port 0 is another free port each time."""
    wanted = dict.fromkeys(name for name, _ in DOORS)
    if not settings.enable_metrics_api:
        del wanted["metrics_address"]
    merged: list[tuple[list[str], Address]] = []
    for name in wanted:
        address: Address = getattr(settings, name)
        for names, other in merged:
            if other == address and (address.is_unix or address.port != 0):
                names.append(name)
                break
        else:
            merged.append(([name], address))
    return merged


def _tls_context(settings: Settings, addresses: list[Address]) -> ssl.SSLContext | None:
    """Return the TLS context, or None where no address is one of https."""
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
    """Delete the socket that an earlier server left behind, unless a server listens at it.

    Raises OSError: a server listens there.
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
        return (
            f"{where}: the address is in use; stop what uses it (another server?) or choose another address"
            " (torchserve-py serve: --port, where 0 is a free one)"
        )
    return f"{where}: {error.strerror or error}"
