"""Heads of responses: the headers that this package sets (framing, ``Connection``, ``Date``), and those of callers."""

import functools
import re
import time
from email.utils import formatdate
from http import HTTPStatus
from typing import Final

#: Headers that only this package sets; set by a caller they would contradict the framing, or be sent twice.
RESERVED: Final = frozenset(
    ("connection", "content-length", "date", "keep-alive", "trailer", "transfer-encoding", "upgrade")
)
CHUNKED: Final = "transfer-encoding: chunked\r\n"
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK: Final = b"0\r\n\r\n"

_NAME: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_CONTROL_CHARACTER: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_REASONS: Final = {status.value: status.phrase for status in HTTPStatus}
#: Statuses whose responses have no body (RFC 9110, 6.4.1).
NO_BODY: Final = frozenset((204, 304))


class BadResponse(ValueError):
    """HTTP does not allow a status, a reason phrase or a header; the text names it and says why."""


def header_line(name: str, value: str) -> str:
    """Return the line of a header, empty for one in `RESERVED`. Raises BadResponse: HTTP does not allow the header."""
    if not value.isprintable() and _CONTROL_CHARACTER.search(value):
        raise BadResponse(f"the response header {name}: its value {value!r} holds a control character")
    beginning = _beginning(name)
    return f"{beginning}{value}\r\n" if beginning else ""


@functools.lru_cache(maxsize=256)
def _beginning(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise BadResponse(f"the response header name {name!r}: it is empty or holds a character that HTTP forbids")
    return "" if name.lower() in RESERVED else f"{name}: "


def response_head(status: int, reason: str, keep_alive: bool, framing: str, lines: str) -> bytes:
    """Return the bytes before a body.

    An empty ``reason`` stands for the standard phrase of the status. ``framing`` are the header lines that tell where
    the body ends, ``lines`` all others, made by `header_line`. Raises BadResponse: HTTP does not allow the status (200
    to 599) or the reason.
    """
    opening = _opening(status, keep_alive) if not reason else _custom_opening(status, reason, keep_alive)
    return f"{opening}date: {_date(int(time.time()))}\r\n{framing}{lines}\r\n".encode("utf-8", "surrogateescape")


@functools.lru_cache(maxsize=1024)
def _opening(status: int, keep_alive: bool) -> str:
    return _custom_opening(status, _REASONS.get(status, "Unknown"), keep_alive)


def _custom_opening(status: int, reason: str, keep_alive: bool) -> str:
    if not 200 <= status <= 599:
        raise BadResponse(f"the response status {status}: it must lie between 200 and 599")
    if _CONTROL_CHARACTER.search(reason):
        raise BadResponse(f"the reason phrase {reason!r}: it holds a control character")
    return f"HTTP/1.1 {status} {reason}\r\nconnection: {'keep-alive' if keep_alive else 'close'}\r\n"


@functools.lru_cache(maxsize=2)
def _date(second: int) -> str:
    return formatdate(second, usegmt=True)
