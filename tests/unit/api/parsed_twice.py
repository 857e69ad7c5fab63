"""Requests parsed by `parse_whole` and by aiohttp: where they read differently, smuggling might be possible."""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import Iterable
from typing import Any, cast
from unittest.mock import Mock

from aiohttp.base_protocol import BaseProtocol
from aiohttp.http_parser import HttpRequestParser
from aiohttp.web_protocol import RequestPayloadError

from torchserve_py.api.connections import _MAX_HEADER, _MAX_REQUEST_LINE
from torchserve_py.api.whole_requests import Unfinished, WholeRequest, parse_whole

_BUFFER = 1 << 16


def parse(*reads: bytes) -> WholeRequest | None:
    """What a new connection takes from its first reads; None if it leaves them to aiohttp, or waits for more."""
    return _taken(reads)[0]


def parse_alike(*reads: bytes) -> WholeRequest | None:
    """`parse`, after a look at whether aiohttp takes the same from what is taken."""
    request, data = _taken(reads)
    if request is None:  # is aiohttp's in any case
        return None
    loop = cast("AbstractEventLoop", Mock())
    parser = HttpRequestParser(
        BaseProtocol(loop),
        loop,
        _BUFFER,
        max_line_size=_MAX_REQUEST_LINE,
        max_field_size=_MAX_HEADER,
        payload_exception=RequestPayloadError,
        auto_decompress=False,
    )
    messages, upgraded, tail = parser.feed_data(data)  # raises what the server answers with 400
    assert (len(messages), upgraded, tail) == (1, False, b""), data
    message, payload = messages[0]
    assert payload.is_eof(), data
    assert payload.exception() is None, data
    assert (message.method, message.path) == (request.method, request.raw_path), data
    assert message.version == request.version, data
    assert message.raw_headers == request.raw_headers, data
    assert _items(message.headers) == _items(request.headers), data
    assert message.should_close is not request.keep_alive, data
    assert payload.read_nowait() == request.body, data
    return request


def _taken(reads: Iterable[bytes]) -> tuple[WholeRequest | None, bytes]:
    """The first request, and all that had arrived with it."""
    received = b""
    for data in reads:
        received += data
        found = parse_whole(received, cast("Any", None))
        if not isinstance(found, Unfinished):
            return found, received
    return None, received


def _items(headers: Any) -> list[tuple[str, str]]:
    return [(name.lower(), value) for name, value in headers.items()]
