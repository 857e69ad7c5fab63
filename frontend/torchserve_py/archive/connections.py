"""HTTP connections of downloads: only to addresses that may be connected to (see `networks`)."""

from __future__ import annotations

import http.client
import urllib.parse
import urllib.request
from collections.abc import Callable, Sequence
from typing import Any

from torchserve_py.archive.networks import Network, check_address, check_host, is_address


class HttpHandler(urllib.request.HTTPHandler):
    """Opens http URLs at permitted addresses."""

    def __init__(self, allowed: Sequence[Network]) -> None:
        super().__init__()
        self._allowed = allowed

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        """Send a request."""
        return self.do_open(_connection_class(_HttpConnection, http.client.HTTPConnection, req, self._allowed), req)


class HttpsHandler(urllib.request.HTTPSHandler):
    """Opens https URLs at permitted addresses."""

    def __init__(self, allowed: Sequence[Network]) -> None:
        super().__init__()
        self._allowed = allowed

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        """Send a request."""
        return self.do_open(_connection_class(_HttpsConnection, http.client.HTTPSConnection, req, self._allowed), req)


class _HttpConnection(http.client.HTTPConnection):
    allowed: Sequence[Network] = ()

    def connect(self) -> None:
        check_host(self.host, self.allowed)
        super().connect()
        check_address(self.sock.getpeername()[0], self.allowed)


class _HttpsConnection(http.client.HTTPSConnection):
    allowed: Sequence[Network] = ()

    def connect(self) -> None:
        check_host(self.host, self.allowed)
        super().connect()
        check_address(self.sock.getpeername()[0], self.allowed)


def _connection_class(
    checked: type[_HttpConnection | _HttpsConnection],
    plain: type[http.client.HTTPConnection],
    request: urllib.request.Request,
    allowed: Sequence[Network],
) -> Callable[..., http.client.HTTPConnection]:
    """What makes the connection for a request.

    A proxy of the operator's (``http_proxy``, ``https_proxy``) finds the addresses itself and decides which of them it
    connects to; only an address that the URL itself names is checked then.
    """
    named = urllib.parse.urlsplit(request.full_url).hostname or ""
    if request.host.rpartition("@")[2] == urllib.parse.urlsplit(request.full_url).netloc.rpartition("@")[2]:

        def connect(host: str, **more: Any) -> http.client.HTTPConnection:
            connection = checked(host, **more)
            connection.allowed = allowed
            return connection

        return connect
    if is_address(named):
        check_host(named, allowed)
    return plain
