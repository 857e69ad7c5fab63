"""Archives over HTTP: only from URLs that are allowed and from addresses that may be connected to (see `networks`).

A name is resolved here, so that a connection goes to the very addresses that were checked. Redirects are followed here
and pass the same checks as the first URL.
"""

import base64
import re
import socket
import ssl
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection, IncompleteRead
from typing import Final

from torchserve_py.core.archive.downloads import DownloadPolicy
from torchserve_py.core.archive.networks import Network, check_addresses, check_host
from torchserve_py.version import __version__

_PIECE: Final = 1 << 16
_MAX_REDIRECTS: Final = 10
_REDIRECTS: Final = (301, 302, 303, 307, 308)
#: A host that every reader of URLs understands alike: no escapes, no other alphabets.
_AUTHORITY: Final = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{0,5})?")
#: What stays as it is in the path and query of a URL; what may not stand there is percent-encoded.
_IN_TARGET: Final = "!#$%&'()*+,/:;=?@[]~"


@contextmanager
def opened(url: str, policy: DownloadPolicy, idle_seconds: float, ends: float) -> Iterator[HTTPResponse]:
    """Yield the answer at an http or https URL that the policy allows, as it must what that redirects to.

    `pieces` reads the body. ``idle_seconds`` is how long connecting may take, the head of an answer, and the pause
    between two pieces of its body; at the time ``ends`` (of `time.monotonic`) a connection is cut off. Raises
    ArchiveNotFound (a redirect to another URL), ValueError (an unusable URL, a forbidden address, a status that is no
    success), OSError, and HTTPException where the answer is no HTTP.
    """
    for _ in range(_MAX_REDIRECTS + 1):
        check_authority(url)
        target = urllib.parse.urlsplit(url)
        check_host(target.hostname or "", policy.networks)
        with (
            closing(_connected(target, policy.networks, idle_seconds)) as connection,
            _cut_off(connection.sock, ends),
        ):
            answer = _answer(connection, target, min(ends, time.monotonic() + idle_seconds))
            location = answer.headers["location"]
            if answer.status not in _REDIRECTS or location is None:
                if not 200 <= answer.status < 300:
                    raise ValueError(f"the server answered {answer.status} {answer.reason}")
                yield answer
                return
        url = urllib.parse.urljoin(url, location)
        if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
            raise ValueError(f"it redirects to {url}, which is neither http nor https")
        policy.check_url(url)
    raise ValueError(f"it redirects more than {_MAX_REDIRECTS} times, perhaps in an infinite loop")


def pieces(answer: HTTPResponse) -> Iterator[bytes]:
    """Yield the body of an answer. Raises IncompleteRead: the connection ended before it."""
    while piece := answer.read(_PIECE):
        yield piece
    if answer.length:
        raise IncompleteRead(b"", answer.length)


def check_authority(url: str) -> None:
    """Raise ValueError for a URL whose host is not written plainly: readers of URLs could take it for different hosts.

    A URL must hold no credentials either: they would appear in logs and mislead patterns, as in
    ``https://allowed.example@other.example/``.
    """
    authority = urllib.parse.urlsplit(url).netloc
    if "@" in authority:
        raise ValueError("a URL must not hold a user name or a password")
    if _AUTHORITY.fullmatch(authority) is None:
        raise ValueError(
            f"the host of a URL must be a plain name or address of ASCII letters, digits, dots and hyphens, it is"
            f" {authority!a}"
        )


def _connected(target: urllib.parse.SplitResult, networks: Sequence[Network], timeout: float) -> HTTPConnection:
    """Return a connection for requests of a URL: to a permitted address of its host, or to the operator's proxy."""
    proxy = _proxy_for(target)
    if proxy is not None:
        return _connected_by(proxy, target, timeout)
    host, port = target.hostname or "", target.port or (443 if target.scheme == "https" else 80)
    connection = HTTPConnection(host, port, timeout=timeout)
    connection.sock = _permitted_socket(host, port, networks, timeout)
    if target.scheme == "https":
        try:
            connection.sock = ssl.create_default_context().wrap_socket(connection.sock, server_hostname=host)
        except BaseException:
            connection.close()
            raise
    return connection


def _permitted_socket(host: str, port: int, networks: Sequence[Network], timeout: float) -> socket.socket:
    """Connect to the first address of a host that answers; each must be permitted: of the internet, or in a network.

    Raises Forbidden for an address not permitted, OSError if none can be connected to.
    """
    failure = OSError("it has no address")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        found, failure = [], error
    check_addresses(host, (str(address[0]) for *_, address in found), networks)
    for family, kind, protocol, _, address in found:
        connected = socket.socket(family, kind, protocol)
        try:
            connected.settimeout(timeout)
            connected.connect(address)
        except OSError as error:
            connected.close()
            failure = error
        else:
            return connected
    raise ConnectionError(f"cannot connect to {host}:{port}: {failure.strerror or failure}") from failure


def _connected_by(proxy: str, target: urllib.parse.SplitResult, timeout: float) -> HTTPConnection:
    """Return a connection to a proxy, which finds the addresses of names itself, and decides which it connects to."""
    by = urllib.parse.urlsplit(proxy)
    if by.scheme != "http" or not by.hostname:
        raise ValueError(f"the proxy that the environment names must be http://HOST:PORT, its scheme is {by.scheme!a}")
    if target.scheme == "https":
        connection: HTTPConnection = HTTPSConnection(by.hostname, by.port or 80, timeout=timeout)
        connection.set_tunnel(target.hostname or "", target.port or 443, headers=_for_proxy(by))
    else:
        connection = HTTPConnection(by.hostname, by.port or 80, timeout=timeout)
    try:
        connection.connect()
    except BaseException:
        connection.close()
        raise
    return connection


def _answer(connection: HTTPConnection, target: urllib.parse.SplitResult, ends: float) -> HTTPResponse:
    """Ask for a URL. Raises TimeoutError: the head of the answer is not complete at the time ``ends``."""
    path = urllib.parse.quote(target.path or "/", safe=_IN_TARGET)
    query = urllib.parse.quote(target.query, safe=_IN_TARGET)
    asked = f"{path}?{query}" if query else path
    # Some servers refuse clients that do not say what they are.
    proxy, headers = _proxy_for(target), {"connection": "close", "user-agent": f"torchserve-py/{__version__}"}
    if proxy is not None and target.scheme == "http":
        asked = f"http://{target.netloc}{asked}"
        headers |= _for_proxy(urllib.parse.urlsplit(proxy))
    with _cut_off(connection.sock, ends):  # ``100 Continue`` may come again and again
        try:
            connection.request("GET", asked, headers=headers)
            return connection.getresponse()
        except (OSError, HTTPException) as error:
            if time.monotonic() >= ends:
                raise TimeoutError from error
            raise


@contextmanager
def _cut_off(connected: socket.socket, ends: float) -> Iterator[None]:
    """Shut a connection down at a time: one that gets a byte now and then would never be idle."""

    def shut() -> None:
        with suppress(OSError):  # it has ended meanwhile
            socket.socket.shutdown(connected, socket.SHUT_RDWR)

    timer = threading.Timer(max(0.0, ends - time.monotonic()), shut)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _proxy_for(target: urllib.parse.SplitResult) -> str | None:
    """The proxy that the environment names for a URL (``http_proxy``, ``https_proxy``, ``no_proxy``)."""
    proxy = urllib.request.getproxies().get(target.scheme)
    if not proxy or urllib.request.proxy_bypass(target.netloc):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _for_proxy(proxy: urllib.parse.SplitResult) -> dict[str, str]:
    """Return the header with the name and the password of a proxy's URL, if it has them."""
    if proxy.username is None:
        return {}
    pair = f"{urllib.parse.unquote(proxy.username)}:{urllib.parse.unquote(proxy.password or '')}"
    return {"Proxy-Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}
