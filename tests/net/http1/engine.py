"""The engine without a network: a connection whose transport is a list, and an application of a few paths."""

import asyncio
import itertools
import socket
from collections.abc import Sequence
from typing import Any

from torchserve_py.net.http1.errors import BodyMalformed, BodyTooLarge
from torchserve_py.net.http1.http_connection import HttpConnection, HttpLimits
from torchserve_py.net.http1.http_server import HttpServer
from torchserve_py.net.http1.request import Request, header_line
from torchserve_py.net.request_budget import NoRoomError

MAX_BODY = 100_000
LIMITS = HttpLimits(head_seconds=1000, stall_seconds=1000, idle_seconds=1000, linger_seconds=1000)


class FakeTransport(asyncio.Transport):
    """Collects what is written."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1)})
        self.written = bytearray()
        self.reading = True
        self.closed = self.aborted = self.half_closed = False
        self.unread = 0
        self.socket: socket.socket | None = None

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self.socket if name == "socket" else super().get_extra_info(name, default)

    def write(self, data: Any) -> None:
        self.written += data

    def writelines(self, pieces: Any) -> None:
        self.written += b"".join(pieces)

    def get_write_buffer_size(self) -> int:
        return self.unread

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = self.aborted = True

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.half_closed = True

    def is_reading(self) -> bool:
        return self.reading

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


class EchoRequest(Request):
    """``/echo`` answers with the body, ``/early`` without reading it, ``/stream`` in parts, ``/wait`` when told."""

    def __init__(self, connection: HttpConnection, echo: "Echo") -> None:
        super().__init__(connection)
        self.application = echo

    def begin(self) -> None:
        self.application.requests.append(self)
        path = self.target.partition("?")[0]
        if path == "/early":
            self.application.answer(self, b"early")
        elif path == "/stream":
            self.start_stream(200, "")
            self.send(((b"one",), (b"", b"two")))
            self.send(((b"three",),), last=True)
            self.finish()
        elif path == "/raise":
            raise ValueError("a defect of the application")
        elif path != "/wait":
            self.when_read(MAX_BODY, lambda body: self.application.echo(self, body))

    def left(self) -> None:
        self.application.lost.append(self)


class Echo:
    """An application of `EchoRequest`."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.bodies: list[bytes] = []
        self.lost: list[Request] = []

    def request(self, connection: HttpConnection) -> Request:
        return EchoRequest(connection, self)

    def echo(self, request: Request, body: bytes | Exception) -> None:
        if isinstance(body, Exception):
            status = {BodyTooLarge: 413, BodyMalformed: 400, NoRoomError: 503}.get(type(body), 408)
            self.answer(request, str(body).encode(), status)
            return
        self.bodies.append(body)
        self.answer(request, body)

    @staticmethod
    def answer(request: Request, body: bytes, status: int = 200) -> None:
        request.respond(status, header_line("x-target", request.target), body)
        request.finish()

    def refusal(self, status: int, message: str, peer: Any) -> bytes:
        body = message.encode()
        return b"HTTP/1.1 %d Refused\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%s" % (status, len(body), body)


class Talk:
    """One connection to an `Echo`, and what it has answered."""

    def __init__(self, limits: HttpLimits = LIMITS) -> None:
        self.application = Echo()
        self.server = HttpServer(self.application, limits)
        self.transport = FakeTransport()
        self.connection = HttpConnection(self.server)
        self.connection.connection_made(self.transport)

    async def send(self, *pieces: bytes) -> None:
        """Let pieces arrive one after the other, and everything be done that they lead to."""
        for piece in pieces:
            if piece and not self.transport.closed:
                self.connection.data_received(piece)
            await self.settle()

    async def settle(self) -> None:
        while self.connection.is_scheduled:
            await asyncio.sleep(0)

    @property
    def answers(self) -> list[tuple[int, str, bytes]]:
        """Status, ``Connection`` and body (chunks as they are) of each answer."""
        return split_answers(bytes(self.transport.written))

    @property
    def is_over(self) -> bool:
        """Whether the client sees the end of the connection."""
        return self.transport.closed or self.transport.half_closed


def split_answers(data: bytes) -> list[tuple[int, str, bytes]]:
    answers = []
    while data:
        head, _, data = data.partition(b"\r\n\r\n")
        status, *lines = head.decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines)
        if "transfer-encoding" in headers:
            body, end, data = data.partition(b"0\r\n\r\n")
            body += end
        else:
            size = int(headers.get("content-length", 0))
            body, data = data[:size], data[size:]
        answers.append((int(status.split()[1]), headers.get("connection", ""), body))
    return answers


def request(target: str = "/echo", body: bytes = b"", *headers: str, method: str = "POST") -> bytes:
    lines = [f"{method} {target} HTTP/1.1", "Host: h", *headers]
    if body or method == "POST":
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


def chunked(*chunks: bytes, target: str = "/echo", end: bytes = b"0\r\n\r\n") -> bytes:
    head = f"POST {target} HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    return head + b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks) + end


def pieces(data: bytes, ends: Sequence[int]) -> list[bytes]:
    cuts = [0, *sorted({end for end in ends if 0 < end < len(data)}), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(cuts)]
