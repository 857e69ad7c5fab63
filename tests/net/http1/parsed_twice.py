"""Requests parsed by the engine and by aiohttp: where they read differently, smuggling might be possible."""

from asyncio import AbstractEventLoop
from typing import Any, NamedTuple, cast
from unittest.mock import Mock

from aiohttp.base_protocol import BaseProtocol
from aiohttp.http_parser import HttpRequestParser
from aiohttp.web_protocol import RequestPayloadError

from torchserve_py.net.http1.errors import BadHttpMessage
from torchserve_py.net.http1.parser import MAX_HEADER, MAX_REQUEST_LINE, HttpHead, RequestParser

_BUFFER = 1 << 16


class Parsed(NamedTuple):
    """A request that is complete."""

    head: HttpHead
    body: bytes


class Taken:
    """What a connection has taken."""

    def __init__(self) -> None:
        self.requests: list[Parsed] = []
        #: The request whose body is arriving.
        self.begun: HttpHead | None = None
        self.body = b""
        self.error = ""
        self.rest: bytes | None = None

    def new_head(self) -> HttpHead:
        return HttpHead()

    def on_head(self, head: HttpHead) -> None:
        self.begun = head
        self.body = b""

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_end(self) -> None:
        assert self.begun is not None
        self.requests.append(Parsed(self.begun, self.body))
        self.begun = None


def parse(*reads: bytes) -> Taken:
    """What a new connection takes from its first reads."""
    taken = Taken()
    parser = RequestParser(taken)
    try:
        for data in filter(None, reads):
            if parser.rest is not None:
                taken.rest = (taken.rest or b"") + data
                continue
            parser.feed(data)
            taken.rest = parser.rest
    except BadHttpMessage as error:
        taken.error = str(error)
    return taken


def parse_alike(data: bytes) -> list[Parsed]:
    """The complete requests, after a look at whether aiohttp reads each of them likewise."""
    taken = Taken()
    parser = RequestParser(taken)
    start = 0
    try:
        for end in range(1, len(data) + 1):
            known = len(taken.requests)
            parser.feed(data[end - 1 : end])
            if len(taken.requests) > known:
                _read_alike(data[start:end], taken.requests[-1])
                start = end
            if parser.rest is not None or (taken.requests and not taken.requests[-1].head.keep_alive):
                break
    except BadHttpMessage:
        pass
    return taken.requests


def _read_alike(data: bytes, request: Parsed) -> None:
    loop = cast("AbstractEventLoop", Mock())
    parser = HttpRequestParser(
        BaseProtocol(loop),
        loop,
        _BUFFER,
        max_line_size=MAX_REQUEST_LINE,
        max_field_size=MAX_HEADER,
        payload_exception=RequestPayloadError,
        auto_decompress=False,
    )
    messages, upgraded, tail = parser.feed_data(data)  # raises what aiohttp would answer with 400
    head = request.head
    assert (len(messages), upgraded, tail) == (1, head.upgrades, b""), data
    message, payload = messages[0]
    assert payload.is_eof(), data
    assert payload.exception() is None, data
    assert (message.method, message.path) == (head.method, head.target), data
    assert tuple(message.version) == head.version, data
    assert message.raw_headers == head.raw_headers, data
    seen, own = _items(message.headers), {name: head.headers[name] for name in head.headers}
    if not head.target.startswith("/"):  # aiohttp leaves it to its users that an absolute URL's host counts
        seen["host"] = own.get("host", "")
        own.setdefault("host", "")
    assert seen == own, data
    assert message.should_close is not head.keep_alive, data
    assert (b"" if upgraded else payload.read_nowait()) == request.body, data


def _items(headers: Any) -> dict[str, str]:
    return {name.lower(): value for name, value in reversed(headers.items())}
