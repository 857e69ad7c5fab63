"""Requests that arrive whole: head and body in one read, or the body at once behind it, and nothing more.

Most inference requests do. They are parsed by httptools, which is many times cheaper than aiohttp with its streams,
URLs and waiting tasks. Whatever is out of the ordinary is no whole request here, and is left to aiohttp: a head of more
than a few kilobytes, chunks, an upgrade, HTTP/1.0, anything malformed.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import httptools
from aiohttp import hdrs
from aiohttp.http import HttpVersion, HttpVersion11, StreamWriter
from lru import LRU
from multidict import CIMultiDict, CIMultiDictProxy, istr

if TYPE_CHECKING:
    import asyncio

    from aiohttp import web

#: Where a head ends at the latest: below aiohttp's limits on a line and on a header, so that these hold here, too.
_MAX_HEAD: Final = 4096
_MAX_HEADERS: Final = 128
_MAX_DIGITS: Final = 18
_END_OF_HEAD: Final = b"\r\n\r\n"
_REQUEST_LINE: Final = re.compile(rb"(GET|POST|PUT) (/[^ \n]*) HTTP/1\.1\r\n")
#: Clients use few names of headers.
_KEPT: Final = 256
#: The first says that the body is no plain one. aiohttp refuses the second; the third is none of HTTP's, yet aiohttp
#: obeys it.
_UNUSUAL: Final = frozenset({"transfer-encoding", "sec-websocket-key1", "proxy-connection"})
#: Heads of requests are often the same: a client sends much of one kind. Those with secrets are not kept.
_HEADS: Final[LRU[bytes, Head]] = LRU(1024)
_SECRET: Final = re.compile("auth|cookie|key|secret|token", re.IGNORECASE)
_KEEPS_ALIVE: Final = {"keep-alive": True, "Keep-Alive": True, "close": False}


class Head(NamedTuple):
    """What a request says before its body of ``length`` bytes."""

    method: str
    target: str
    headers: CIMultiDictProxy[str]
    raw_headers: tuple[tuple[bytes, bytes], ...]
    keep_alive: bool
    length: int


class WholeRequest:
    """A request with its body, as far as doors need to know it that answer such; see `requests.HttpRequest`."""

    __slots__ = ("_ids", "body", "headers", "keep_alive", "method", "protocol", "raw_headers", "raw_path")

    version: HttpVersion = HttpVersion11

    def __init__(
        self,
        head: Head,
        body: bytes,
        protocol: web.RequestHandler,
    ) -> None:
        #: ``keep_alive``: whether the connection stays open after the answer, as far as the client goes.
        self.method, self.raw_path, self.headers, self.raw_headers, self.keep_alive, _ = head
        self.body = body
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


class Unfinished(NamedTuple):
    """A request of whose body ``body`` has come, and ``missing`` bytes are still to come."""

    head: Head
    body: bytes
    missing: int


def parse_whole(received: bytes, protocol: web.RequestHandler) -> WholeRequest | Unfinished | None:
    """The request that has arrived, or the beginning of one; None for anything else.

    Args:
        received: What has arrived since the last request, or since the connection was made.
        protocol: The connection.
    """
    end = received.find(_END_OF_HEAD, 0, _MAX_HEAD) + len(_END_OF_HEAD)
    data = received[:end]
    head = _HEADS.get(data)
    if head is None:
        head = _parse_head(data)
        if head is None:
            return None
        if not _hold_secrets(tuple(head.headers)):
            _HEADS[data] = head
    missing = end + head.length - len(received)
    if missing == 0:
        return WholeRequest(head, received[end:], protocol)
    # Who expects to be asked for the body waits himself.
    return Unfinished(head, received[end:], missing) if missing > 0 and hdrs.EXPECT not in head.headers else None


def _parse_head(data: bytes) -> Head | None:
    """A head in its parts; None if it is not as heads usually are."""
    line = _REQUEST_LINE.match(data)
    if line is None:
        return None
    raw_headers: list[tuple[bytes, bytes]] = []
    try:
        httptools.HttpRequestParser(_Collector(raw_headers)).feed_data(data)
    except (httptools.HttpParserError, httptools.HttpParserUpgrade):
        return None
    headers = CIMultiDict([(_name(name), value.decode("utf-8", "surrogateescape")) for name, value in raw_headers])
    keep_alive = _KEEPS_ALIVE.get(headers.get(hdrs.CONNECTION, "keep-alive"))
    length = headers.get(hdrs.CONTENT_LENGTH, "0")
    if keep_alive is None or len(length) > _MAX_DIGITS or not _are_plain(tuple(headers), len(raw_headers)):
        return None
    method, target = line.groups()
    return Head(
        method.decode(),
        target.decode("utf-8", "surrogateescape"),
        CIMultiDictProxy(headers),
        tuple(raw_headers),
        keep_alive,
        int(length),
    )


class _Collector:
    """Takes the headers that httptools finds."""

    __slots__ = ("_raw_headers",)

    def __init__(self, raw_headers: list[tuple[bytes, bytes]]) -> None:
        self._raw_headers = raw_headers

    def on_header(self, name: bytes, value: bytes) -> None:
        self._raw_headers.append((name, value.rstrip(b" \t")))


@lru_cache(maxsize=_KEPT)
def _are_plain(names: tuple[str, ...], count: int) -> bool:
    """Whether ``count`` headers of these names are beyond doubt: a host, none twice, none that has rules of its own."""
    known = {name.lower() for name in names}
    return "host" in known and len(known) == count <= _MAX_HEADERS and not known & _UNUSUAL


@lru_cache(maxsize=_KEPT)
def _hold_secrets(names: tuple[str, ...]) -> bool:
    """Whether one of the headers of these names may be of use to others than its client."""
    return any(_SECRET.search(name) for name in names)


@lru_cache(maxsize=_KEPT)
def _name(name: bytes) -> istr:
    return istr(name.decode("utf-8", "surrogateescape"))
