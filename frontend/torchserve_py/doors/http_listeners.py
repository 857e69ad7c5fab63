"""The HTTP listeners: the doors of each address, and the limits of connections.

A listener has one `Router`; doors with the same address share a listener, as in SageMaker's layout.
"""

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from torchserve_py.core.serving import Serving
from torchserve_py.doors.answering import Application
from torchserve_py.doors.bidirectional_stream import BidirectionalStreamDoor
from torchserve_py.doors.console.console_door import ConsoleDoor
from torchserve_py.doors.failures import too_many_connections
from torchserve_py.doors.live.live_session_door import LiveSessionDoor
from torchserve_py.doors.live.openpi import OpenpiDoor
from torchserve_py.doors.management_door import ManagementDoor
from torchserve_py.doors.open_inference.open_inference_door import OpenInferenceDoor
from torchserve_py.doors.openai import OpenAIDoor, V1ModelsDoor
from torchserve_py.doors.predictions import InferenceDoor
from torchserve_py.doors.realtime.realtime_door import RealtimeDoor
from torchserve_py.doors.responses import Answer, json_answer
from torchserve_py.doors.routing import ANY_PATH, Door, DoorContext, PathValues, Route
from torchserve_py.doors.server_doors import DescriptionDoor, HealthDoor, MetricsDoor
from torchserve_py.doors.surfaces import InferenceSurfaces
from torchserve_py.doors.tls import server_context
from torchserve_py.doors.token_authorization import KEY_FILE, TokenAuthorization
from torchserve_py.doors.truss.truss_door import TrussDoor
from torchserve_py.doors.workflows import WorkflowInferenceDoor, WorkflowManagementDoor
from torchserve_py.metrics.server_metrics import ServerMetrics
from torchserve_py.settings.addresses import Address
from torchserve_py.settings.table import Settings
from torchserve_py.transport.acceptor import Acceptor, listening_sockets
from torchserve_py.transport.admission import Place
from torchserve_py.transport.http1.http_connection import HttpConnection
from torchserve_py.transport.http1.http_server import HttpServer, Limits
from torchserve_py.transport.http1.request import Request
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


class Doors:
    """The HTTP doors of a running server."""

    def __init__(self, context: DoorContext) -> None:
        #: Setting name (``inference_address``, …) to the address in use, with the port that port 0 became.
        self.addresses: dict[str, Address] = {}
        self.context = context
        self._servers: list[HttpServer] = []
        self._acceptors: list[Acceptor] = []

    async def open(self) -> None:
        """Listen. Raises ListenError, TlsError: see `start_doors`."""
        settings = self.context.settings
        wanted = _by_address(settings)
        hosts = [address.host for _, address in wanted if address.is_tls]
        tls = server_context(settings, hosts) if hosts else None
        for names, address in wanted:
            accept = self._serve(names, tls if address.is_tls else None)
            try:
                sockets, used = await _bind(address)
            except OSError as error:
                raise ListenError(_why_not(names, address, error)) from error
            self._acceptors += map(accept, sockets)
            self.addresses |= dict.fromkeys(names, used)
            logger.info("%s: listening at %s", ", ".join(names), used)

    def _serve(self, names: Sequence[str], tls: ssl.SSLContext | None) -> Callable[[socket.socket], Acceptor]:
        """Return the function that accepts the connections of the address that these settings name."""
        context, settings = self.context, self.context.settings
        admission, budget = context.limits(for_operators="inference_address" not in names)
        limits = Limits(settings.request_head_timeout, float(settings.default_response_timeout))

        def connecting(routes: Sequence[Route]) -> Callable[[Place], HttpConnection]:
            server = HttpServer(Application(context, routes), limits, budget)
            self._servers.append(server)
            return lambda place: HttpConnection(server, place)

        routes = [route for name, make in DOORS if name in names for route in make(context).routes()]
        connect = connecting([*routes, *DescriptionDoor(context, routes).routes()])
        plain = None if tls is None else connecting(_PLAIN)

        def refuse(why: str) -> bytes:
            return context.responses.whole_failure(too_many_connections(why))

        return lambda listening: Acceptor(listening, admission, connect, refuse, tls, plain)

    async def close(self) -> None:
        """Stop listening, let answers that are being written finish for a few seconds, close every connection."""
        for acceptor in self._acceptors:
            acceptor.close()
        for tell in self.context.on_close:
            tell()
        await asyncio.gather(*(server.close(_CLOSE_SECONDS) for server in self._servers))
        for address in self.addresses.values():
            if address.is_unix:
                Path(address.path).unlink(missing_ok=True)
        if self.context.tokens is not None:
            self.context.tokens.remove_key_file()


async def start_doors(
    settings: Settings,
    serving: Serving,
    workflows: WorkflowRegistry,
    metrics: ServerMetrics,
    key_file: Path = Path(KEY_FILE),
) -> Doors:
    """Open the HTTP doors. The keys are written to ``key_file``, unless token authorization is off.

    Raises ListenError: an address cannot be used; TlsError: the configured key or certificate cannot be used; OSError:
    the key file cannot be written. No door is open then.
    """
    tokens = None
    if not settings.disable_token_authorization:
        tokens = TokenAuthorization(key_file.absolute(), settings.token_expiration_min)
    doors = Doors(DoorContext(settings, serving, workflows, metrics, tokens))
    try:
        await doors.open()
    except BaseException:
        await doors.close()
        raise
    return doors


def _refuse_plain(request: Request, values: PathValues) -> Answer:
    """Refuse a request without TLS to a listener with TLS."""
    request.keep_alive = False
    return json_answer({"status": "This TorchServe instance only accepts HTTPS requests"}, 403)


_PLAIN: Final = [Route(path, _refuse_plain, token=None) for path in ("/", ANY_PATH)]


def _by_address(settings: Settings) -> list[tuple[list[str], Address]]:
    """Return the settings that name each address."""
    wanted = dict.fromkeys(name for name, _ in DOORS)
    if not settings.enable_metrics_api:
        del wanted["metrics_address"]
    merged: list[tuple[list[str], Address]] = []
    for name in wanted:
        address: Address = getattr(settings, name)
        for names, other in merged:
            if address.shares_listener(other):
                names.append(name)
                break
        else:
            merged.append(([name], address))
    return merged


async def _bind(address: Address) -> tuple[Sequence[socket.socket], Address]:
    """Return sockets that listen at an address, and the address with the port that port 0 became."""
    if not address.is_unix:
        sockets = await listening_sockets(address.host, address.port, _BACKLOG)
        return sockets, replace(address, port=sockets[0].getsockname()[1])
    path = Path(address.path)
    await _remove_stale_socket(path)
    listening = socket.socket(socket.AF_UNIX)
    try:
        listening.bind(str(path))
        listening.listen(_BACKLOG)
    except BaseException:
        listening.close()
        raise
    return [listening], address


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
