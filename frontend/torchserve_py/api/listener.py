"""Where the doors listen: binding addresses, and what aiohttp does with a connection.

aiohttp is used at its lowest level (no application, router or middleware). A listener has one `Router`; doors with the
same address share a listener, as in SageMaker's layout.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from aiohttp import web

from torchserve_py.addresses import Address
from torchserve_py.api.api_description import DescriptionDoor
from torchserve_py.api.connections import Connection, ConnectionLimits
from torchserve_py.api.health import HealthDoor
from torchserve_py.api.inference import InferenceDoor
from torchserve_py.api.management import ManagementDoor
from torchserve_py.api.management_calls import ManagementCalls
from torchserve_py.api.metrics import MetricsDoor
from torchserve_py.api.open_inference.door import OpenInferenceDoor
from torchserve_py.api.open_inference.repository import Repository
from torchserve_py.api.responses import JSON_TYPE, Responses, Sent, allows_other_origins, to_json
from torchserve_py.api.routing import Router, Routes
from torchserve_py.api.surfaces import InferenceSurfaces
from torchserve_py.api.tls import server_context
from torchserve_py.api.tls_server import TlsServer
from torchserve_py.api.token_authorization import KEY_FILE, TokenAuthorization
from torchserve_py.api.truss.door import TrussDoor
from torchserve_py.api.v1_models import V1ModelsDoor
from torchserve_py.api.workflows import WorkflowInferenceDoor, WorkflowManagementDoor

if TYPE_CHECKING:
    from torchserve_py.metrics.server_metrics import ServerMetrics
    from torchserve_py.models.registry import ModelRegistry
    from torchserve_py.settings import Settings
    from torchserve_py.workflows.registry import WorkflowRegistry

logger = logging.getLogger(__name__)

_BACKLOG: Final = 1024
#: How long answers that are being written may take when the doors close.
_CLOSE_SECONDS: Final = 5.0
#: How long connections that are closed may then take to go away.
_WAIT_SECONDS: Final = 2.0


class ListenError(OSError):
    """The server cannot listen where it is told to; the message names the address and its setting."""


class _Listener(web.Server):
    """All connections of one address."""

    def __init__(
        self,
        handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
        responses: Responses,
        settings: Settings,
    ) -> None:
        super().__init__(handler, handler_cancellation=True)
        self._router = handler if isinstance(handler, Router) else None
        self._responses = responses
        self._settings = settings
        self.limits = ConnectionLimits(settings.max_connections, settings.max_connections_per_client)

    def __call__(self) -> Connection:
        """The protocol of a new connection."""
        return Connection(self, self._router, self._responses, self.limits, self._settings)


class _Server(Protocol):
    """What accepts connections: `asyncio.Server`, `TlsServer`."""

    def close(self) -> None: ...

    async def wait_closed(self) -> None: ...


@dataclass(frozen=True, slots=True)
class _Tls:
    """How https is served: the handshake, and what answers those who do without."""

    context: ssl.SSLContext
    plain: _Listener


@dataclass(slots=True)
class _Bound:
    listeners: tuple[_Listener, ...]
    server: _Server
    address: Address


class Doors:
    """The open doors of a running server."""

    def __init__(self, health: HealthDoor, tokens: TokenAuthorization | None, repository: Repository) -> None:
        #: Setting name (``inference_address``, …) to the address in use, with the port that port 0 became.
        self.addresses: dict[str, Address] = {}
        #: The keys that clients must know; None while token authorization is off. Other protocols use the same.
        self.tokens = tokens
        #: What models are loaded and unloaded through. Other protocols use the same.
        self.repository = repository
        self._health = health
        self._bound: list[_Bound] = []

    def start_draining(self) -> None:
        """Let ``/ready`` answer 503 from now on; everything else goes on."""
        self._health.draining = True

    async def open(self, names: list[str], address: Address, listener: _Listener, tls: _Tls | None) -> None:
        """Listen at one more address.

        Args:
            names: The settings that name it.
            address: Where.
            listener: What serves it.
            tls: How, where the address is one of https.

        Raises:
            ListenError: It is in use, not an address of this machine, not permitted, …
        """
        try:
            bound = await _bind(address, listener, tls)
        except OSError as error:
            raise ListenError(_why_not(names, address, error)) from error
        self._bound.append(bound)
        for name in names:
            self.addresses[name] = bound.address
        logger.info("%s: listening at %s", ", ".join(names), bound.address)

    async def close(self) -> None:
        """Stop listening, let answers that are being written finish for a few seconds, close every connection."""
        for bound in self._bound:
            bound.server.close()
        listeners = [listener for bound in self._bound for listener in bound.listeners]
        for listener in listeners:
            listener.pre_shutdown()
        await asyncio.gather(*(listener.shutdown(_CLOSE_SECONDS) for listener in listeners))
        for bound in self._bound:
            with contextlib.suppress(TimeoutError):  # a client that reads nothing keeps its connection from closing
                await asyncio.wait_for(bound.server.wait_closed(), _WAIT_SECONDS)
            if bound.address.is_unix:
                Path(bound.address.path).unlink(missing_ok=True)
        self._bound.clear()
        if self.tokens is not None:
            self.tokens.remove_key_file()


async def start_doors(
    settings: Settings,
    registry: ModelRegistry,
    workflows: WorkflowRegistry,
    metrics: ServerMetrics,
    key_file: Path = Path(KEY_FILE),
) -> Doors:
    """Open the HTTP doors.

    Args:
        settings: Addresses, limits, header names.
        registry: The models.
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
    health = HealthDoor(registry, responses)
    truss = TrussDoor(settings, registry, responses, tokens)
    repository = Repository(settings, registry, ManagementCalls(settings, registry))
    inference = InferenceDoor(settings, registry, responses)
    open_inference = OpenInferenceDoor(settings, registry, responses, tokens, health, inference, repository)
    doors = Doors(health, tokens, repository)
    try:
        wanted = _by_address(
            _routes(settings, registry, workflows, metrics, tokens, responses, health, truss, open_inference)
        )
        tls = _tls(settings, responses, [address for _, address, _ in wanted])
        for names, address, routes in wanted:
            routes.append(DescriptionDoor(names, responses).routes)
            unknown = (open_inference.serve_custom, truss.unknown) if "inference_address" in names else ()
            router = Router(routes, tokens, responses, preflight=allows_other_origins(settings), unknown=unknown)
            await doors.open(names, address, _Listener(router, responses, settings), tls)
    except BaseException:
        await doors.close()
        raise
    return doors


def _routes(
    settings: Settings,
    registry: ModelRegistry,
    workflows: WorkflowRegistry,
    metrics: ServerMetrics,
    tokens: TokenAuthorization | None,
    responses: Responses,
    health: HealthDoor,
    truss: TrussDoor,
    open_inference: OpenInferenceDoor,
) -> list[tuple[str, Address, list[Routes]]]:
    """What is served where; the settings' names."""
    inference = InferenceDoor(settings, registry, responses)
    inference_routes = [
        open_inference.own_routes,
        truss.routes,
        health.routes,
        V1ModelsDoor(registry, responses).routes,
        inference.routes,
        InferenceSurfaces(settings, registry, inference).routes,
        WorkflowInferenceDoor(settings, workflows, responses).routes,
        open_inference.routes,
    ]
    management_routes = [
        ManagementDoor(settings, registry, tokens, responses).routes,
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


def _tls(settings: Settings, responses: Responses, addresses: list[Address]) -> _Tls | None:
    """How https is served, None where no address asks for it."""
    hosts = [address.host for address in addresses if address.is_tls]
    if not hosts:
        return None

    async def refuse(request: web.BaseRequest) -> Sent:
        answer = to_json({"status": "This TorchServe instance only accepts HTTPS requests"})
        return await responses.send(request, 403, answer, (JSON_TYPE,), close=True)

    context = server_context(settings, hosts)
    return _Tls(context, _Listener(refuse, responses, settings))


async def _bind(address: Address, listener: _Listener, tls: _Tls | None) -> _Bound:
    loop = asyncio.get_running_loop()
    if address.is_unix:
        await _remove_stale_socket(Path(address.path))
        return _Bound((listener,), await loop.create_unix_server(listener, address.path, backlog=_BACKLOG), address)
    if address.is_tls and tls is not None:
        listening = socket.create_server((address.host, address.port), backlog=_BACKLOG)
        port = listening.getsockname()[1]
        secure_server = TlsServer(listening, tls.context, listener, tls.plain, listener.limits.total)
        return _Bound((listener, tls.plain), secure_server, replace(address, port=port))
    server = await loop.create_server(listener, address.host, address.port, reuse_address=True, backlog=_BACKLOG)
    port = server.sockets[0].getsockname()[1]
    return _Bound((listener,), server, replace(address, port=port))


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
