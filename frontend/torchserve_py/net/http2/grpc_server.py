"""The gRPC server: its methods, its listeners, and its end."""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
import sys
from collections.abc import Mapping
from functools import partial
from typing import Final

from torchserve_py.net.acceptor import Acceptor, listening_sockets
from torchserve_py.net.admission import Admission, ConnectionBudget, ConnectionPlace
from torchserve_py.net.decompression import Decompressor
from torchserve_py.net.http2.frames import ConnectionFailed
from torchserve_py.net.http2.grpc_status import StatusCode
from torchserve_py.net.http2.http2_connection import Http2Connection
from torchserve_py.net.http2.request_head import Metadata
from torchserve_py.net.http2.rpc import Denied, RpcLimits, RpcMethod
from torchserve_py.net.refusal_counts import RefusalReason
from torchserve_py.net.request_budget import RequestBudget

logger = logging.getLogger(__name__)

_BACKLOG: Final = 1024
#: How long handlers that were cancelled may take to end (seconds).
_CANCEL_LIMIT: Final = 5.0
#: The jitter of a connection's age, so that clients do not all reconnect at once.
_AGE_JITTER: Final = 0.1
#: For connections above the limit: calls, and seconds that a stalled call, a connection and its last calls are kept.
_OF_PROBES: Final = RpcLimits(4, 5.0, 2.0, 1.0)


def _refuse_full(metadata: Metadata, peer: str) -> Denied:
    """Refuse a call on a connection above the limit."""
    return Denied(StatusCode.UNAVAILABLE, "The server has all the connections that it may have.")


class GrpcServer:
    """Serves methods, by path (``/package.Service/Method``).

    Without ``admission`` the limit of the process limits connections; without ``budget`` the server has one of its own.
    A connection above the limit may call ``probes``, the methods that say whether the server lives, for a moment.
    """

    def __init__(
        self,
        methods: Mapping[str, RpcMethod],
        limits: RpcLimits,
        admission: Admission | None = None,
        budget: RequestBudget | None = None,
        probes: Mapping[str, RpcMethod] | None = None,
    ) -> None:
        self.methods = methods
        self.limits = limits
        self.budget = budget or RequestBudget()
        self.unread = self.budget.unread
        self.decompressor = Decompressor()
        #: The open connections, each with the timer of its age, if that is limited.
        self._connections: dict[Http2Connection, asyncio.TimerHandle | None] = {}
        self._admission = admission or Admission(ConnectionBudget.of_process(), sys.maxsize)
        #: What connections above the limit belong to.
        self._full: GrpcServer | None = None
        if probes is not None:
            refused = {path: each._replace(admit=_refuse_full) for path, each in methods.items()}
            self._full = GrpcServer(refused | dict(probes), _OF_PROBES, self._admission, self.budget)
        self._acceptors: list[Acceptor] = []
        self._all_closed: asyncio.Future[None] | None = None

    async def listen(self, host: str, port: int, context: ssl.SSLContext | None) -> int:
        """Accept connections at every address of ``host``, and return the port, which port 0 leaves open.

        Raises OSError: one of the addresses cannot be used.
        """
        if context is not None:
            context.set_alpn_protocols(["h2"])
        sockets = await listening_sockets(host, port, _BACKLOG)
        connect = partial(Http2Connection, self)
        probe = None if self._full is None else self._full.connect_for_probe
        self._acceptors = [Acceptor(each, self._admission, connect, probe, context) for each in sockets]
        number: int = sockets[0].getsockname()[1]
        return number

    def connect_for_probe(self, place: ConnectionPlace) -> Http2Connection:
        """Return the protocol of a connection that makes room for others when it must."""
        connection = Http2Connection(self, place)
        place.give_up = connection.abort
        return connection

    def failed(self, peer: str, error: ConnectionFailed) -> None:
        """Note that a client has violated the protocol."""
        self._admission.refusals.note(RefusalReason.malformed, (peer,), f"{error.code.name}: {error}")

    def leave(self) -> None:
        """Have clients go elsewhere: open connections take no more calls. New ones are served."""
        for connection in tuple(self._connections):
            connection.finish()

    async def stop(self, grace: float) -> None:
        """Accept nothing more; end the calls that are left after ``grace`` seconds.

        A handler that goes on although it was cancelled is left behind after some more seconds.
        """
        for acceptor in self._acceptors:
            acceptor.close()
        if self._connections:
            await self._end_connections(grace)
        self.decompressor.close()
        if self._full is not None:
            await self._full.stop(grace)

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

    def opened(self, connection: Http2Connection) -> None:
        self._connections[connection] = None
        if self.limits.age is not None:
            delay = self.limits.age * random.uniform(1 - _AGE_JITTER, 1 + _AGE_JITTER)  # noqa: S311 (no secret)
            self._connections[connection] = asyncio.get_running_loop().call_later(delay, self._retire, connection)

    def _retire(self, connection: Http2Connection) -> None:
        connection.finish()
        if self.limits.grace is not None:
            loop = asyncio.get_running_loop()
            self._connections[connection] = loop.call_later(self.limits.grace, connection.abort)

    def closed(self, connection: Http2Connection) -> None:
        timer = self._connections.pop(connection)
        if timer is not None:
            timer.cancel()
        if self._all_closed is not None and not self._connections and not self._all_closed.done():
            self._all_closed.set_result(None)
