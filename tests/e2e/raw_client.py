"""An HTTP client that is a bare socket: sends the bytes it is told to and reads an answer piece by piece."""

from __future__ import annotations

import socket
from typing import NamedTuple
from urllib.parse import urlsplit

from tests.e2e.running_server import DEADLINE


class Head(NamedTuple):
    """The head of a response; header names in lower case."""

    version: str
    status: int
    reason: str
    headers: dict[str, str]


class RawClient:
    """One connection to ``address`` (``http://host:port``).

    Args:
        receive_buffer: Bytes of the socket's receive buffer; None for the system's choice.
    """

    def __init__(self, address: str, *, receive_buffer: int | None = None) -> None:
        url = urlsplit(address)
        self.socket = socket.socket()
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(DEADLINE)
        self.socket.connect((url.hostname, url.port))
        self._file = self.socket.makefile("rb", buffering=0 if receive_buffer else -1)

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Hang up."""
        self._file.close()
        self.socket.close()

    def send(self, data: bytes) -> None:
        """Send ``data`` as it is."""
        self.socket.sendall(data)

    def post(self, path: str, body: bytes, *headers: str) -> None:
        """Send a POST request."""
        lines = [f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}", *headers]
        self.send("\r\n".join([*lines, "", ""]).encode() + body)

    def head(self) -> Head:
        """Read the head of a response."""
        version, status, reason = self._line().split(" ", 2)
        headers: dict[str, str] = {}
        while line := self._line():
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        return Head(version, int(status), reason, headers)

    def body(self, head: Head) -> bytes:
        """Read a body whose length the head tells."""
        return self.read(int(head.headers["content-length"]))

    def chunk(self) -> bytes:
        """Read one chunk; ``b""`` is the last.

        Raises:
            ConnectionError: The connection ends before the chunk does.
        """
        line = self._line()
        if not line:
            raise ConnectionError("the connection ended where a chunk was expected")
        data = self.read(int(line, 16))
        self._line()
        return data

    def read(self, count: int) -> bytes:
        """Read ``count`` bytes, fewer only where the connection ends."""
        data = bytearray()
        while len(data) < count and (more := self._file.read(count - len(data))):
            data += more
        return bytes(data)

    def is_closed(self) -> bool:
        """Wait for the next byte; return whether the server closed the connection instead."""
        return self.read(1) == b""

    def _line(self) -> str:
        return self._file.readline().decode("latin-1").rstrip("\r\n")
