"""Requests as bytes, and what a test does with a connection that it sends them on."""

import asyncio
import fcntl
import re
import socket
import termios
from collections.abc import Callable
from typing import Any

from tests.endpoints.conftest import OpenEndpoints
from tests.endpoints.fake_serving import FakeModel, Submitted
from tests.endpoints.fakes import RawConnection

from torchserve_py.net.http1.http_connection import HttpConnection

PING = b"GET /ping HTTP/1.1\r\nHost: localhost\r\n\r\n"
CLOSING = b"Connection: close"


def predict(body: bytes = b"", *headers: bytes, line: bytes = b"POST /predictions/noop HTTP/1.1") -> bytes:
    return b"\r\n".join((line, b"Host: localhost", b"Content-Length: %d" % len(body), *headers, b"", body))


CHUNKED = predict()[:-2].replace(b"Content-Length: 0", b"Transfer-Encoding: chunked") + b"\r\n1\r\na\r\n0\r\n\r\n"


def served(serving: OpenEndpoints, connection: RawConnection) -> HttpConnection:
    """The server's end of a connection."""
    address = connection.writer.get_extra_info("sockname")
    ends = [end for end in _connections(serving) if end.peer == address]
    assert len(ends) == 1
    return ends[0]


def _connections(serving: OpenEndpoints) -> list[HttpConnection]:
    return [end for server in serving.endpoints._servers for end in server.connections]


async def over(serving: OpenEndpoints, others: set[asyncio.Task[Any]]) -> None:
    """Wait until the server has no connection, and no task but these: what clients did is then recorded."""
    await until(lambda: not _connections(serving) and asyncio.all_tasks() <= others)


async def taken(serving: OpenEndpoints, connection: RawConnection) -> None:
    """Wait until the server has read all that was sent on a connection."""
    await connection.writer.drain()
    transport = served(serving, connection)._transport
    assert transport is not None
    own, others = connection.writer.get_extra_info("socket"), transport.get_extra_info("socket")
    await until(lambda: _queued(own, termios.TIOCOUTQ) == _queued(others, termios.FIONREAD) == 0)


def _queued(end: socket.socket, queue: int) -> int:
    return int.from_bytes(fcntl.ioctl(end.fileno(), queue, bytes(4)), "little")


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # what is waited for has no event
            await asyncio.sleep(0.001)


async def answer(connection: RawConnection) -> tuple[str, bytes]:
    """The next response that has a length: its head, lower-cased, and its body."""
    head = await connection.head()
    found = re.search(r"content-length: (\d+)\r\n", head)
    async with asyncio.timeout(60):
        return head, await connection.reader.readexactly(int(found[1])) if found else b""


async def body_of(connection: RawConnection, status: int = 200) -> bytes:
    head, body = await answer(connection)
    assert head.startswith(f"http/1.1 {status} ")
    return body


async def opened(serving: OpenEndpoints) -> RawConnection:
    """A connection that the server has accepted."""
    connection = await serving.raw(b"")
    address = connection.writer.get_extra_info("sockname")
    await until(lambda: any(end.peer == address for end in _connections(serving)))
    return connection


def hold(model: FakeModel, held: int = 1) -> None:
    """Let the first requests wait; the others are answered with what they brought."""

    def behave(call: Submitted) -> None:
        if len(model.calls) > held:
            call.part(call.body)

    model.behave = behave


async def answered(connection: RawConnection) -> bytes:
    async with asyncio.timeout(60):
        head = await connection.reader.readuntil(b"\r\n\r\n")
        if b"transfer-encoding: chunked" in head:
            while not (head.endswith(b"\r\n0\r\n\r\n") or connection.reader.at_eof()):
                head += await connection.reader.read(1)
        elif found := re.search(rb"content-length: (\d+)\r\n", head):
            head += await connection.reader.readexactly(int(found[1]))
        if b"connection: close" in head:
            head += await connection.reader.read()
    return head
