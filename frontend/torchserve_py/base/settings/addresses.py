"""Addresses that listeners bind to, as config.properties writes them."""

import re
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from typing import Self

_SYNTAX = re.compile(
    r"(?P<scheme>https?)://(?P<host>\[[^\]/\s]+\]|[^\[\]:/\s]+)(?::(?P<port>[0-9]+))?|unix:(?P<path>/.+)", re.IGNORECASE
)
_PORT_LIMIT = 65535
_MAX_UNIX_PATH = 107


@dataclass(frozen=True, slots=True)
class Address:
    """One place to listen at: ``http`` or ``https`` with host and port, or ``unix`` with the path of a socket."""

    scheme: str
    host: str = ""
    port: int = 0
    path: str = ""

    @property
    def is_unix(self) -> bool:
        return self.scheme == "unix"

    @property
    def is_tls(self) -> bool:
        return self.scheme == "https"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches it."""
        try:
            return self.is_unix or ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def shares_listener(self, other: Self) -> bool:
        """Return whether this is the listener of another address; port 0 is another free port each time."""
        return self == other and (self.is_unix or self.port != 0)

    def __str__(self) -> str:
        return f"unix:{self.path}" if self.is_unix else f"{self.scheme}://{in_url(self.host)}:{self.port}"


def in_url(host: str) -> str:
    """Return a host as a URL has it: an IPv6 address is in brackets."""
    return f"[{host}]" if ":" in host else host


def bare_host(text: str) -> str:
    """Return a host without the brackets in which a URL has an IPv6 address.

    Raises ValueError: there are brackets or colons, but no IPv6 address.
    """
    host = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    if host != text or ":" in host:
        IPv6Address(host)
    return host


def parse_address(text: str, *, http_port: int, https_port: int) -> Address:
    """Read ``http://host[:port]``, ``https://host[:port]`` or ``unix:/path``; the ports are those by default.

    An IPv6 address is in brackets. Raises ValueError: ``text`` is no such address, or its port is out of range; the
    message is TorchServe's.
    """
    match = _SYNTAX.fullmatch(text)
    if match is None:
        raise ValueError(f"Invalid binding address: {text}")
    path: str | None = match["path"]
    if path is not None:
        if len(path.encode()) > _MAX_UNIX_PATH:
            raise ValueError(f"Invalid binding address: {text} (a socket path has at most {_MAX_UNIX_PATH} bytes)")
        return Address("unix", path=path)
    scheme = match["scheme"].lower()
    default_port = https_port if scheme == "https" else http_port
    port = int(match["port"]) if match["port"] else default_port
    if port >= _PORT_LIMIT:
        raise ValueError(f"Invalid port number: {match['port']}")
    try:
        return Address(scheme, bare_host(match["host"]), port)
    except ValueError as error:
        raise ValueError(f"Invalid binding address: {text} ({error})") from None
