"""The HTTP listeners: the endpoints of each address, and the limits of connections.

A listener has one `Router`; endpoints with the same address share a listener, as in SageMaker's layout.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from torchserve_py.base.metrics.server_metrics import ServerMetrics
from torchserve_py.base.settings.addresses import Address
from torchserve_py.base.settings.table import Settings
from torchserve_py.core.serving.serving import Serving
from torchserve_py.endpoints.binding import bind, http_addresses
from torchserve_py.endpoints.description_endpoints import DescriptionEndpoints
from torchserve_py.endpoints.failures import EndpointError, too_many_connections
from torchserve_py.endpoints.http_request import Application
from torchserve_py.endpoints.predictions import InferenceEndpoints
from torchserve_py.endpoints.responses import Answer, json_answer
from torchserve_py.endpoints.routing import ANY_PATH, EndpointContext, PathValues, Reply, Route
from torchserve_py.endpoints.token_authorization import Authorization, Protection
from torchserve_py.net.acceptor import Acceptor
from torchserve_py.net.admission import ConnectionPlace
from torchserve_py.net.http1.http_connection import HttpConnection, HttpLimits
from torchserve_py.net.http1.http_server import HttpServer
from torchserve_py.net.http1.probe_connection import ProbeConnection, reason_of
from torchserve_py.net.http1.request import Request
from torchserve_py.plugin_api import EndpointsOffer

logger = logging.getLogger(__name__)

#: TorchServe's predictions; the endpoints of plugins come before them.
_PREDICTIONS: Final = EndpointsOffer("inference_address", InferenceEndpoints)
#: Time limit for answers that are being written when the endpoints close (seconds).
_CLOSE_SECONDS: Final = 5.0


class HttpListeners:
    """The HTTP endpoints of a running server."""

    def __init__(self, context: EndpointContext, offers: Iterable[EndpointsOffer], protection: Protection) -> None:
        #: Setting name (``inference_address``, …) to the address in use, with the port that port 0 became.
        self.addresses: dict[str, Address] = {}
        self.context = context
        self._protection = protection
        self._offers = (*offers, _PREDICTIONS)
        self._servers: list[HttpServer] = []
        self._acceptors: list[Acceptor] = []
        context.on_leave.append(self._leave)

    def _leave(self) -> None:
        for server in self._servers:
            server.leave()

    async def open(self) -> None:
        """Listen. Raises ListenError, OSError: see `start_http_listeners`."""
        settings = self.context.settings
        wanted = http_addresses(settings)
        hosts = [address.host for _, address in wanted if address.is_tls]
        context = self._protection.encryption(settings, hosts) if hosts else None
        if context is not None:
            self.context.tls_contexts.append(context)
        for names, address in wanted:
            accept = self._serve(names, address, context if address.is_tls else None)
            sockets, used = await bind(names, address)
            self._acceptors += map(accept, sockets)
            self.addresses |= dict.fromkeys(names, used)
            logger.info("%s: listening at %s", ", ".join(names), used)

    def _serve(
        self, names: Sequence[str], address: Address, encryption: ssl.SSLContext | None
    ) -> Callable[[socket.socket], Acceptor]:
        """Return the function that accepts the connections of the address that these settings name."""
        context, settings = self.context, self.context.settings
        checks = self._protection.guard(settings, address) if context.tokens is None else None
        listener = names[0].removesuffix("_address")
        admission, budget = context.limits(listener, for_operators="inference_address" not in names)
        limits = HttpLimits(settings.request_head_timeout, float(settings.default_response_timeout))

        def serving(routes: Sequence[Route]) -> HttpServer:
            server = HttpServer(Application(context, routes, checks), limits, budget)
            self._servers.append(server)
            return server

        def connecting(routes: Sequence[Route]) -> Callable[[ConnectionPlace], HttpConnection]:
            server = serving(routes)
            return lambda place: HttpConnection(server, place)

        routes = [route for offer in self._offers if offer.listener in names for route in offer.make(context).routes()]
        connect = connecting([*routes, *DescriptionEndpoints(context, routes).routes()])
        plain = None if encryption is None else connecting(_PLAIN)
        probes = serving([*map(_once, (route for route in routes if route.is_probe)), *_FULL])

        return lambda listening: Acceptor(
            listening, admission, connect, lambda place: ProbeConnection(probes, place), encryption, plain
        )

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
            self.context.tokens.close()


async def start_http_listeners(
    settings: Settings,
    serving: Serving,
    metrics: ServerMetrics,
    offers: Iterable[EndpointsOffer],
    tokens: Authorization | None,
    protection: Protection,
) -> HttpListeners:
    """Open the HTTP endpoints: TorchServe's, and those that plugins offer; ``tokens`` is None if all may use them.

    Raises ListenError: an address cannot be used; OSError: the configured TLS key or certificate cannot be used. No
    endpoint is open then.
    """
    endpoints = HttpListeners(EndpointContext(settings, serving, metrics, tokens), offers, protection)
    try:
        await endpoints.open()
    except BaseException:
        await endpoints.close()
        raise
    return endpoints


def _once(route: Route) -> Route:
    """Return a route of a probe for connections above the limit, each of which has one request."""

    def answer(request: Request, values: PathValues) -> Reply | None:
        request.keep_alive = False
        return route.handler_of(values)(request, values)

    return replace(route, handler=answer)


def _refuse_full(request: Request, values: PathValues) -> Answer:
    """Refuse a request on a connection above the limit that is no probe."""
    request.keep_alive = False
    raise EndpointError(too_many_connections(reason_of(request)))


_FULL: Final = [Route(path, _refuse_full, token=None, is_quiet=True) for path in ("/", ANY_PATH)]


def _refuse_plain(request: Request, values: PathValues) -> Answer:
    """Refuse a request without TLS to a listener with TLS."""
    request.keep_alive = False
    return json_answer({"status": "This TorchServe instance only accepts HTTPS requests"}, 403)


_PLAIN: Final = [Route(path, _refuse_plain, token=None) for path in ("/", ANY_PATH)]
