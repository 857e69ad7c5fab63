"""The socket by which a worker reaches the frontend: a Unix socket, or TLS over TCP from another machine.

An address is the path of a Unix socket, or ``tls://HOST:PORT?FOLDER``. The folder has ``worker.pem`` (the worker's
private key and certificate) and ``authority.pem``, which has signed the frontend's certificate.
"""

import socket
from typing import TYPE_CHECKING, Final

from ts.protocol.frames import SEND_BUFFER

if TYPE_CHECKING:
    import ssl
    from pathlib import Path

_TLS: Final = "tls://"
#: Seconds within which the frontend has to accept a connection from another machine.
_CONNECT_LIMIT: Final = 30.0


def tls_address(host: str, port: int, folder: "Path") -> str:
    """Return the address of a frontend on another machine; ``folder`` has the worker's certificate."""
    return f"{_TLS}{host}:{port}?{folder}"


def connect(address: str) -> "socket.socket | ssl.SSLSocket":
    """Return a socket that is connected to the frontend.

    Raises OSError: the frontend does not listen there, or its certificate is not one of its authority.
    """
    if address.startswith(_TLS):
        return _connect_tls(address.removeprefix(_TLS))
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
    connected.connect(address)
    return connected


def _connect_tls(address: str) -> "ssl.SSLSocket":
    import ssl  # workers of the frontend's own machine do without
    from pathlib import Path

    place, _, folder = address.partition("?")
    host, _, port = place.rpartition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # the authority is this frontend's alone, and has signed for nobody else
    context.load_verify_locations(Path(folder, "authority.pem"))
    context.load_cert_chain(Path(folder, "worker.pem"))
    connected = socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_LIMIT)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    secured = context.wrap_socket(connected)
    secured.settimeout(None)
    return secured


def unread(connected: "socket.socket | ssl.SSLSocket") -> bool:
    """Return whether the socket holds bytes that it has received and decrypted already."""
    pending = getattr(connected, "pending", None)
    return pending is not None and pending() > 0
