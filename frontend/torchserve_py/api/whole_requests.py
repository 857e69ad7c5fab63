"""Requests that arrive whole: head and body in one read, or the body a moment later, and nothing behind them.

Most inference requests do. They are parsed by httptools, which is many times cheaper than aiohttp with its streams,
URLs and waiting tasks. Whatever is out of the ordinary is no whole request here, and is left to aiohttp: a head of more
than a few kilobytes, chunks, an upgrade, HTTP/1.0, anything malformed.
"""

from __future__ import annotations

from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import httptools
from aiohttp import hdrs
from aiohttp.http import HttpVersion, HttpVersion11, StreamWriter
from multidict import CIMultiDict, istr

if TYPE_CHECKING:
    import asyncio

    from aiohttp import web

#: Where a head ends at the latest: below aiohttp's limits on a line and on a header, so that these hold here, too.
_MAX_HEAD: Final = 4096
_MAX_HEADERS: Final = 128
#: A longer body that has not come with its head is left to aiohttp.
MAX_BODY: Final = 64 * 1024
_MAX_DIGITS: Final = 5
_END_OF_LINE: Final = b"\r\n"
_END_OF_HEAD: Final = b"\r\n\r\n"
#: Clients use few request lines and few names of headers.
_KEPT: Final = 256
_METHODS: Final = {b"GET": "GET", b"POST": "POST", b"PUT": "PUT"}
#: aiohttp refuses the first; the second is none of HTTP's, yet aiohttp obeys it.
_UNUSUAL: Final = frozenset({"sec-websocket-key1", "proxy-connection"})
_KEEPS_ALIVE: Final = {"keep-alive": True, "Keep-Alive": True, "close": False}


class RequestLine(NamedTuple):
    """The first line of a request of HTTP/1.1."""

    method: str
    target: str


class WholeRequest:
    """A request with its body, as far as doors need to know it that answer such; see `requests.HttpRequest`."""

    __slots__ = ("_ids", "body", "headers", "keep_alive", "method", "protocol", "raw_headers", "raw_path")

    version: HttpVersion = HttpVersion11

    def __init__(
        self,
        line: RequestLine,
        headers: CIMultiDict[str],
        raw_headers: tuple[tuple[bytes, bytes], ...],
        body: bytes,
        keep_alive: bool,
        protocol: web.RequestHandler,
    ) -> None:
        self.method, self.raw_path = line
        self.headers = headers
        self.raw_headers = raw_headers
        self.body = body
        #: Whether the connection stays open after the answer, as far as the client goes.
        self.keep_alive = keep_alive
        self.protocol = protocol
        self._ids: dict[Any, Any] | None = None

    @property
    def transport(self) -> asyncio.Transport | None:
        """Where the answer is written; None once the client is gone."""
        return self.protocol.transport

    @property
    def writer(self) -> StreamWriter:
        """What waits for the client to read."""
        return StreamWriter(self.protocol, self.protocol._loop)

    def __setitem__(self, key: Any, value: Any, /) -> None:
        self._ids = {**(self._ids or {}), key: value}

    def get(self, key: Any, default: Any, /) -> Any:
        """What was noted about the request under ``key``."""
        return default if self._ids is None else self._ids.get(key, default)


class Unfinished(Enum):
    """Why a request is not whole, though it may soon be."""

    BODY = "its body is behind its head"


class WholeRequestParser:
    """Parses the requests of one connection for as long as they arrive whole."""

    __slots__ = ("_message", "_parser")

    def __init__(self) -> None:
        self._message = _Message()
        self._parser = httptools.HttpRequestParser(self._message)

    def parse(
        self, data: bytes, received: bytes, protocol: web.RequestHandler
    ) -> WholeRequest | Literal[Unfinished.BODY] | None:
        """The request that has arrived.

        Args:
            data: What has arrived now.
            received: That, behind what was `Unfinished` before.
            protocol: The connection.

        Returns:
            The request; or that its body, a small one, is still to come; or None if it is no whole request. Then the
            parser is of no more use.
        """
        end = received.find(_END_OF_HEAD, 0, _MAX_HEAD)
        line = _request_line(received[: received.find(_END_OF_LINE)]) if end > 0 else None
        if line is None:
            return None
        message = self._message
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            return None
        raw_headers, body = message.headers, message.body
        headers = CIMultiDict([(_name(name), value.decode("utf-8", "surrogateescape")) for name, value in raw_headers])
        keep_alive = _KEEPS_ALIVE.get(headers.get(hdrs.CONNECTION, "keep-alive"))
        if keep_alive is None or not _are_plain(tuple(headers), len(raw_headers)):
            return None
        if not message.complete:
            return Unfinished.BODY if _is_small(headers) else None
        message.clear()  # an idle connection keeps nothing
        if end + len(_END_OF_HEAD) + len(body) != len(received):
            return None
        return WholeRequest(line, headers, tuple(raw_headers), body, keep_alive, protocol)


class _Message:
    """What httptools tells of a request. It knows no parser: that knows it, and neither would be freed without the
    garbage collector."""

    __slots__ = ("body", "complete", "headers")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.headers: list[tuple[bytes, bytes]] = []
        self.body = b""
        self.complete = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name, value.rstrip(b" \t")))

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.complete = True


@lru_cache(maxsize=_KEPT)
def _request_line(line: bytes) -> RequestLine | None:
    """The line in its parts; None if it is not as such a line usually is."""
    method, _, rest = line.partition(b" ")
    target, _, version = rest.partition(b" ")
    if method not in _METHODS or version != b"HTTP/1.1" or not target.startswith(b"/") or b"\n" in target:
        return None
    return RequestLine(_METHODS[method], target.decode("utf-8", "surrogateescape"))


@lru_cache(maxsize=_KEPT)
def _are_plain(names: tuple[str, ...], count: int) -> bool:
    """Whether ``count`` headers of these names are beyond doubt: a host, none twice, none that has rules of its own."""
    known = {name.lower() for name in names}
    return "host" in known and len(known) == count <= _MAX_HEADERS and not known & _UNUSUAL


def _is_small(headers: CIMultiDict[str]) -> bool:
    """Whether a body that is still to come is worth waiting for; who expects to be asked for it waits himself."""
    length = headers.get(hdrs.CONTENT_LENGTH, "")
    return length.isdecimal() and len(length) <= _MAX_DIGITS and int(length) <= MAX_BODY and hdrs.EXPECT not in headers


@lru_cache(maxsize=_KEPT)
def _name(name: bytes) -> istr:
    return istr(name.decode("utf-8", "surrogateescape"))
