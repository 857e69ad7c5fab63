"""Keeps pages of other sites away from a server without keys: a browser behind any firewall runs their code.

A page of another site can send requests, but a browser says that they are cross-site (``Sec-Fetch-Site``, or else
``Origin``). By DNS rebinding its name can be that of the server for the browser; then the ``Host`` tells. Other tools
send neither header, and name the server by the address that they use.
"""

from __future__ import annotations

import socket
from functools import lru_cache
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from torchserve_py.base.settings.addresses import Address
from torchserve_py.base.settings.table import Settings
from torchserve_py.endpoints.failures import EndpointError, Failure
from torchserve_py.endpoints.responses import allows_other_origins
from torchserve_py.net.http1.request import Request
from torchserve_py.ops.browser_guard.guard_settings import GuardSettings

_OWN_SITE: Final = ("same-origin", "none")
_ANY: Final = "*"
#: What only browsers send: that a page of another site asks, and which.
_OF_BROWSERS: Final = frozenset((b"sec-fetch-site", b"origin"))
#: Clients name the server in few ways: of so many it is kept whether they are allowed.
_KEPT_HOSTS: Final = 256
#: RFC 6761, 6.3: browsers resolve these names to the loopback without asking anyone.
_LOOPBACK_DOMAIN: Final = ".localhost"
#: Where links of other sites may lead: the page only shows something, and asks for it by requests of its own.
_PAGE: Final = "/console"


class BrowserGuard:
    """Checks the requests of one listener that has no keys."""

    def __init__(self, settings: Settings, address: Address) -> None:
        self._settings = settings
        names = {*settings.of(GuardSettings).allowed_hosts, "localhost", socket.gethostname(), address.host}
        # Browsers open no Unix socket.
        is_checked = not address.is_unix and _ANY not in names
        self._names = frozenset(name.lower().rstrip(".") for name in names) if is_checked else None
        self._knows = lru_cache(maxsize=_KEPT_HOSTS)(self._is_known)

    def check(self, request: Request) -> None:
        """Refuse a request for a foreign name (421), or of a page of another site (403), by raising EndpointError."""
        headers = request.headers
        raw = headers.raw
        if self._names is not None and not self._knows(raw.get(b"host", b"")):
            message = (
                f"Host is {headers['Host'][:100]!a}: while token authorization is off, it must be an address,"
                " localhost, the machine's host name, or a name of the setting allowed_hosts."
            )
            raise EndpointError(Failure(421, "HostNotAllowedException", message))
        if _OF_BROWSERS.isdisjoint(raw):
            return
        site = headers.get("Sec-Fetch-Site")
        if site is None:
            check_origin(request, self._settings)
        elif site not in _OWN_SITE and not _is_link(request) and not _is_allowed(headers.get("Origin"), self._settings):
            message = "Pages of other sites may not send requests while token authorization is off; see"
            raise _not_allowed(f"{message} cors_allowed_origin.")

    def _is_known(self, sent: bytes) -> bool:
        """Whether a name, with or without a port, is the server's; a request without a name comes from no browser.

        Any address will do: the server cannot know those by which proxies, containers and clouds make it reachable, and
        what a browser asks of an address is never a page with a foreign name.
        """
        assert self._names is not None, "names are checked"
        host = sent.decode("utf-8", "surrogateescape")
        name = (host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]).lower().rstrip(".")
        if not name or name in self._names or name.endswith(_LOOPBACK_DOMAIN):
            return True
        try:
            ip_address(name)
        except ValueError:
            return False
        return True


def check_origin(request: Request, settings: Settings) -> None:
    """Check the origin of the page that sends a request, if one does. Raises EndpointError: it is a foreign one."""
    origin = request.headers.get("Origin")
    if origin is None or ((host := _host_of(origin)) and host == request.headers.get("Host")):
        return
    if not _is_allowed(origin, settings):
        raise _not_allowed(f"Pages of {origin[:100]!a} may not use the server; see cors_allowed_origin.")


def _not_allowed(message: str) -> EndpointError:
    return EndpointError(Failure(403, "OriginNotAllowedException", message))


def _is_allowed(origin: str | None, settings: Settings) -> bool:
    return allows_other_origins(settings) and settings.cors_allowed_origin in (_ANY, origin or _ANY)


def _is_link(request: Request) -> bool:
    """Whether somebody follows a link to the console."""
    is_page = request.path.startswith(_PAGE)
    return is_page and request.method == "GET" and request.headers.get("Sec-Fetch-Mode") == "navigate"


def _host_of(origin: str) -> str:
    """Return the host and the port of an origin, empty if it has none."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""
