"""The gRPC server: its methods, its listener, and its end."""

from __future__ import annotations

import asyncio
import logging
import random
import socket
import ssl
import sys
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple, Protocol

from grpc import RpcMethodHandler

from torchserve_py.transport.acceptor import Acceptor
from torchserve_py.transport.admission import Admission, ConnectionBudget, Place
from torchserve_py.transport.decompression import Decompressor
from torchserve_py.transport.http2.grpc_messages import MessageLimit
from torchserve_py.transport.http2.http2_connection import Http2Connection
from torchserve_py.transport.http2.methods import Admit, Limits, Method, Refuse, Shared
from torchserve_py.transport.http2.unread import UnreadOfAll
from torchserve_py.transport.request_budget import RequestBudget

logger = logging.getLogger(__name__)

_BACKLOG: Final = 1024
#: How long handlers that were cancelled may take to end (seconds).
_CANCEL_LIMIT: Final = 5.0
#: The jitter of a connection's age, so that clients do not all reconnect at once.
_AGE_JITTER: Final = 0.1


class Age(NamedTuple):
    """The maximum age of a connection, and how long its calls may then continue (seconds; None: no limit)."""

    limit: float | None
    grace: float | None


class _Service(Protocol):
    def service_name(self) -> str | None: ...


class GrpcServer:
    """Serves handlers written for grpc.aio.

    Args:
        limits: Limits of what the server holds for clients.
        age: The maximum age of connections.
        admission: Limits the number of connections; None for the limit of the process.
        budget: Limits the bytes of requests that are held; None for one of its own.
    """

    def __init__(
        self, limits: Limits, age: Age, admission: Admission | None = None, budget: RequestBudget | None = None
    ) -> None:
        self._methods: dict[str, Method] = {}
        self._limits = limits
        self._shared = Shared(self._methods, limits, budget or RequestBudget(), UnreadOfAll(), Decompressor())
        self._age = age
        self._connections: set[Http2Connection] = set()
        self._admission = admission or Admission(ConnectionBudget.of_process(), sys.maxsize)
        self._timers: dict[Http2Connection, asyncio.TimerHandle] = {}
        self._listener: Acceptor | None = None
        self._all_closed: asyncio.Future[None] | None = None

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, RpcMethodHandler[Any, Any]]) -> None:
        """Serve the methods of a service, by their names; generated code calls this."""
        limit = MessageLimit(self._limits.message_size, "max_request_size sets")
        for name, handler in handlers.items():
            self._methods[f"/{service}/{name}"] = Method(handler, limit)

    def limit_messages(self, paths: Iterable[str], size: int, origin: str) -> None:
        """Limit messages of some methods to ``size`` bytes; ``origin`` tells clients which setting says so."""
        for path in paths:
            self._methods[path] = self._methods[path]._replace(limit=MessageLimit(size, origin))

    def guard(self, path: str, admit: Admit | None, refuse: Refuse | None = None) -> None:
        """Call ``admit`` when the head of a call has arrived, and ``refuse`` for an exception of the handler."""
        self._methods[path] = self._methods[path]._replace(admit=admit, refuse=refuse)

    def add_generic_rpc_handlers(self, handlers: Iterable[_Service]) -> None:
        """Do nothing: generated code also calls `add_registered_method_handlers`."""

    async def listen(self, host: str, port: int, context: ssl.SSLContext | None) -> int:
        """Accept connections.

        Args:
            host: An address or name of this machine.
            port: The port; 0 for a free one.
            context: The TLS context; None without TLS.

        Returns:
            The port.

        Raises OSError: the address cannot be used.
        """
        if context is not None:
            context.set_alpn_protocols(["h2"])
        listening = _bound(host, port)
        number: int = listening.getsockname()[1]

        def connect(place: Place) -> Http2Connection:
            def closed(connection: Http2Connection) -> None:
                self._closed(connection)
                place.leave()

            return Http2Connection(self._shared, self._opened, closed)

        self._listener = Acceptor(listening, self._admission, connect, context=context)
        return number

    async def stop(self, grace: float) -> None:
        """Accept nothing more; end the calls that are left after ``grace`` seconds.

        A handler that goes on although it was cancelled is left behind after some more seconds.
        """
        if self._listener is not None:
            self._listener.close()
        if self._connections:
            await self._end_connections(grace)
        self._shared.decompressor.close()

    async def _end_connections(self, grace: float) -> None:
        self._all_closed = asyncio.get_running_loop().create_future()
        for connection in tuple(self._connections):
            connection.finish()
        await asyncio.wait([self._all_closed], timeout=grace)
        for connection in tuple(self._connections):
            connection.abort()
        await asyncio.wait([self._all_closed], timeout=_CANCEL_LIMIT)
        if self._connections:
            logger.warning("gRPC calls of %d connections do not end although cancelled.", len(self._connections))

    def _opened(self, connection: Http2Connection) -> None:
        self._connections.add(connection)
        if self._age.limit is not None:
            delay = self._age.limit * random.uniform(1 - _AGE_JITTER, 1 + _AGE_JITTER)  # noqa: S311 (no secret)
            self._timers[connection] = asyncio.get_running_loop().call_later(delay, self._retire, connection)

    def _retire(self, connection: Http2Connection) -> None:
        connection.finish()
        if self._age.grace is not None:
            loop = asyncio.get_running_loop()
            self._timers[connection] = loop.call_later(self._age.grace, connection.abort)

    def _closed(self, connection: Http2Connection) -> None:
        self._connections.discard(connection)
        timer = self._timers.pop(connection, None)
        if timer is not None:
            timer.cancel()
        if self._all_closed is not None and not self._connections and not self._all_closed.done():
            self._all_closed.set_result(None)


def _bound(host: str, port: int) -> socket.socket:
    """Return a socket at the first address of ``host``; a socket for every IPv6 address takes IPv4 as well."""
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    both = family == socket.AF_INET6 and address[0] == "::" and socket.has_dualstack_ipv6()
    return socket.create_server(address[:2], family=family, backlog=_BACKLOG, dualstack_ipv6=both)
