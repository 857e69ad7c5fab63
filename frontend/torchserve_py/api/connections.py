"""One HTTP connection: what aiohttp does with it, its time limit for heads, and how many there may be."""

from __future__ import annotations

import asyncio
import logging
import resource
from collections import Counter
from ipaddress import IPv6Address
from typing import TYPE_CHECKING, Final

from aiohttp import web
from aiohttp.http_exceptions import LineTooLong
from aiohttp.web_protocol import RequestPayloadError, _ErrInfo

from torchserve_py.access_log import LOGGER_NAME
from torchserve_py.api.access_log import AccessLog
from torchserve_py.api.errors import Failure, invalid_message, request_timeout, too_many_connections
from torchserve_py.api.fast_path import FastPath
from torchserve_py.api.responses import Responses
from torchserve_py.api.routing import Router

if TYPE_CHECKING:
    from torchserve_py.settings import Settings

logger = logging.getLogger(__name__)

#: TorchServe's limits; it counts 8192 bytes for all headers together, here they are for each of at most 128.
_MAX_REQUEST_LINE: Final = 4096
_MAX_HEADER: Final = 8192
#: Idle connections stay open longer than the proxies in use keep theirs (up to 600 s), or those meet closed ones.
_KEEP_ALIVE_SECONDS: Final = 620.0
#: How long the rest of a refused body is read and dropped, so that the client sees the refusal and no reset connection.
_LINGER_SECONDS: Final = 1.0
#: Workers' sockets, files and logs need the rest.
_SHARE_OF_DESCRIPTORS: Final = 0.75


class ConnectionLimits:
    """How many connections one listener holds at once.

    Args:
        total: All together; the file descriptors that the process may have can lower it.
        per_client: From one address (of IPv6 one /64 network, of which a client has all addresses); None for no limit.
    """

    def __init__(self, total: int, per_client: int | None) -> None:
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if descriptors != resource.RLIM_INFINITY:
            total = min(total, int(descriptors * _SHARE_OF_DESCRIPTORS))
        self.total = total
        self._per_client = per_client
        self._open = 0
        self._clients: Counter[str | int] = Counter()

    def enter(self, client: str | int | None) -> Failure | None:
        """Count a connection; return what its client is told if it is one too many. It must `leave` all the same."""
        self._open += 1
        if self._open > self.total:
            return too_many_connections(f"The server holds {self.total} connections, which is its limit.")
        if client is None or self._per_client is None:
            return None
        self._clients[client] += 1
        if self._clients[client] > self._per_client:
            return too_many_connections(f"Your address has {self._per_client} connections, which is the limit.")
        return None

    def leave(self, client: str | int | None) -> None:
        """A connection has ended."""
        self._open -= 1
        if client is not None and client in self._clients:
            self._clients[client] -= 1
            if not self._clients[client]:
                del self._clients[client]


class Connection(FastPath):
    """aiohttp's connection, with TorchServe's answer to what is no HTTP request, and with limits."""

    __slots__ = ("_awaited_head", "_client", "_head_seconds", "_head_timer", "_limits")

    def __init__(
        self,
        manager: web.Server,
        router: Router | None,
        responses: Responses,
        limits: ConnectionLimits,
        settings: Settings,
    ) -> None:
        super().__init__(
            manager,
            router,
            responses,
            settings.max_request_size,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=_KEEP_ALIVE_SECONDS,
            max_line_size=_MAX_REQUEST_LINE,
            max_field_size=_MAX_HEADER,
            lingering_time=_LINGER_SECONDS,
            auto_decompress=False,  # handlers get the body as it was sent
            access_log_class=AccessLog,
            access_log=logging.getLogger(LOGGER_NAME) if settings.access_log else None,
        )
        self._limits = limits
        self._head_seconds = settings.request_head_timeout
        self._client: str | int | None = None
        #: What aiohttp waits with for the rest of a head that has begun to arrive, and when that wait ends.
        self._awaited_head: asyncio.Future[None] | None = None
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Serve a client, or tell it that there are too many."""
        super().connection_made(transport)
        self._client = client_of(transport.get_extra_info("peername"))
        refusal = self._limits.enter(self._client)
        if refusal is not None and self.transport is not None:
            self._responses.refuse_connection(self.transport, refusal)
            self.force_close()

    def data_received(self, data: bytes) -> None:
        """Take bytes; those that leave aiohttp waiting are the beginning of a head."""
        rest = self.take(data)
        if rest is None:
            return
        super().data_received(rest)
        if self._messages and self._current_request is not None:
            self._end_malformed_body(self._current_request)
        waiter = self._waiter
        if waiter is not None and waiter is not self._awaited_head and not waiter.done():
            self._stop_head_timer()
            self._awaited_head = waiter
            self._head_timer = asyncio.get_running_loop().call_later(self._head_seconds, self._refuse_slow_head)

    def _end_malformed_body(self, request: web.BaseRequest) -> None:
        """Tell whoever reads a body that its rest is no HTTP; aiohttp would let it wait."""
        if isinstance(self._messages[-1][0], _ErrInfo) and not request.content.is_eof():
            request.content.set_exception(RequestPayloadError("The body is malformed."))

    def connection_lost(self, exc: BaseException | None) -> None:
        """The client is gone."""
        self._limits.leave(self._client)
        self._stop_head_timer()
        super().connection_lost(exc)

    def _stop_head_timer(self) -> None:
        self._awaited_head = None
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _refuse_slow_head(self) -> None:
        waiter = self._awaited_head
        self._stop_head_timer()
        if waiter is None or waiter.done() or self.transport is None:
            return  # the head came in time
        limit = f"request_head_timeout ({self._head_seconds:g} seconds)"
        failure = request_timeout(f"The head of the request did not arrive within {limit}.").failure
        self._responses.refuse_connection(self.transport, failure)
        self.force_close()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer a request that could not be parsed. (Doors handle their own errors, so that there is no other.)"""
        logger.debug("Refused a request: %s", message, exc_info=exc)
        return self._responses.send_failure_now(request, _failure_of_message(exc))


def client_of(peer: object) -> str | int | None:
    """What the connections of one client have in common; None for a client on this machine's Unix socket."""
    if not isinstance(peer, tuple):
        return None
    host = str(peer[0])
    return int(IPv6Address(host.partition("%")[0])) >> 64 if ":" in host and not host.startswith("::ffff:") else host


def _failure_of_message(error: BaseException | None) -> Failure:
    if isinstance(error, LineTooLong):
        limits = f"The request line may have {_MAX_REQUEST_LINE} bytes, a header {_MAX_HEADER}."
        return invalid_message(limits)
    # The first line of the parser's message says what is wrong; those behind it quote the client's bytes.
    return invalid_message(str(getattr(error, "message", "")).partition("\n")[0].rstrip(": "))
