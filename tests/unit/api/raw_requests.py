"""Requests as bytes, and what a test does with a connection that it sends them on."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

from tests.unit.api.conftest import Serving
from tests.unit.api.fakes import Call, FakeModel, RawConnection

from torchserve_py.api.connections import Connection

PING = b"GET /ping HTTP/1.1\r\nHost: h\r\n\r\n"
CLOSING = b"Connection: close"


def predict(body: bytes = b"", *headers: bytes, line: bytes = b"POST /predictions/noop HTTP/1.1") -> bytes:
    return b"\r\n".join((line, b"Host: h", b"Content-Length: %d" % len(body), *headers, b"", body))


CHUNKED = predict()[:-2].replace(b"Content-Length: 0", b"Transfer-Encoding: chunked") + b"\r\n1\r\na\r\n0\r\n\r\n"


def served(serving: Serving, connection: RawConnection) -> Connection:
    """The server's end of a connection."""
    address = connection.writer.get_extra_info("sockname")
    ends = [
        end
        for bound in serving.doors._bound
        for each in bound.listeners
        for end in each.connections
        if end.transport is not None and end.transport.get_extra_info("peername") == address
    ]
    assert len(ends) == 1
    assert isinstance(ends[0], Connection)
    return ends[0]


def parsed_by_aiohttp(serving: Serving, connection: RawConnection) -> int:
    """How many of its requests went through aiohttp's parser, and so through the connection's task."""
    return served(serving, connection)._request_count


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # what is waited for has no event
            await asyncio.sleep(0.001)


async def answer(connection: RawConnection) -> tuple[str, bytes]:
    """The next response that has a length: its head, lower-cased, and its body."""
    head = await connection.head()
    found = re.search(r"content-length: (\d+)\r\n", head)
    async with asyncio.timeout(20):
        return head, await connection.reader.readexactly(int(found[1])) if found else b""


async def body_of(connection: RawConnection, status: int = 200) -> bytes:
    head, body = await answer(connection)
    assert head.startswith(f"http/1.1 {status} ")
    return body


async def opened(serving: Serving) -> RawConnection:
    """A connection that the server has accepted."""
    connection = await serving.raw(b"")
    address = connection.writer.get_extra_info("sockname")
    ends = [each.connections for bound in serving.doors._bound for each in bound.listeners]
    await until(
        lambda: any(
            end.transport is not None and end.transport.get_extra_info("peername") == address
            for each in ends
            for end in each
        )
    )
    return connection


def hold(model: FakeModel, held: int = 1) -> None:
    """Let the first requests wait; the others are answered with what they brought."""

    def behave(call: Call) -> None:
        if len(model.calls) > held:
            call.part(call.body)

    model.behave = behave


async def answered(connection: RawConnection) -> bytes:
    async with asyncio.timeout(20):
        head = await connection.reader.readuntil(b"\r\n\r\n")
        if b"transfer-encoding: chunked" in head:
            while not (head.endswith(b"\r\n0\r\n\r\n") or connection.reader.at_eof()):
                head += await connection.reader.read(1)
        elif found := re.search(rb"content-length: (\d+)\r\n", head):
            head += await connection.reader.readexactly(int(found[1]))
        if b"connection: close" in head:
            head += await connection.reader.read()
    return head
