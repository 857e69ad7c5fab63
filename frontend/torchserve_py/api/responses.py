"""What goes back to an HTTP client: head and body in one write, or a head and chunks.

aiohttp's own responses add headers that TorchServe does not send (a made-up ``Content-Type``, ``Server``) and build
several dictionaries for each answer. Here the unchanging lines of a head are kept as text per status, the answer is
written straight to the connection, and aiohttp gets a `Sent` that says whether the connection stays open.

Standard headers are TorchServe's, but for one: it closes the connection after every status of 400 and above. Here an
error leaves the connection open, so that clients in trouble do not also pay for new connections; it is closed only
where the rest of the request cannot be trusted or will not be read (unparsable requests; 408 and 413 while the body is
on its way).
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import re
import socket
import struct
import time
import uuid
from collections.abc import Iterable, Sequence
from email.utils import formatdate
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web

from torchserve_py.api.errors import INTERNAL, DoorError, Failure
from torchserve_py.api.requests import HttpRequest
from ts.protocol.messages import CAUSE_HEADER

if TYPE_CHECKING:
    from torchserve_py.metrics.server_metrics import ServerMetrics
    from torchserve_py.settings import Settings

logger = logging.getLogger(__name__)

Buffer = bytes | bytearray | memoryview
Headers = Iterable[Sequence[str]]

JSON_TYPE: Final = ("content-type", "application/json")
RETRY_AFTER_SECONDS: Final = "1"

#: Headers that the server alone sets; those of a handler would contradict the message's framing, or be sent twice.
_SERVER_HEADERS: Final = frozenset(
    {
        "cache-control",
        "connection",
        "content-length",
        "date",
        "expires",
        "keep-alive",
        "pragma",
        "transfer-encoding",
        "upgrade",
        "x-request-id",
    }
)
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_CONTROL_CHARACTER: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_REASONS: Final = {status.value: status.phrase for status in HTTPStatus}
_NO_LINGERING: Final = struct.pack("ii", 1, 0)
#: Above this size the body is handed to the transport as it is; below, one joined write is cheaper.
_JOIN_LIMIT: Final = 16384


class Sent(web.StreamResponse):
    """An answer that is on its way already: what aiohttp is told about it, and the access log."""

    def __init__(self, status: int, keep_alive: bool) -> None:
        super().__init__(status=status)
        self._keep_alive = keep_alive

    async def prepare(self, request: web.BaseRequest) -> None:
        """Nothing is left to write."""

    async def write_eof(self, data: bytes = b"") -> None:
        """Nothing is left to write."""


class QuietSent(Sent):
    """An answer that has no line in the access log: to a probe that comes every few seconds."""


class ReaderStalledError(Exception):
    """The client has stopped reading."""


def reset(transport: asyncio.Transport | None) -> None:
    """End a connection at once, dropping what was not sent, so that the client sees an error and no orderly end."""
    if transport is None:
        return
    connection = transport.get_extra_info("socket")
    if connection is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGERING)
    transport.abort()


def to_json(value: Any) -> bytes:
    """JSON as the server itself writes it: indented by two spaces, and a newline at the end."""
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode("utf-8", "replace")


class Responses:
    """Writes answers and counts them."""

    def __init__(self, settings: Settings, metrics: ServerMetrics) -> None:
        self._count_2xx = metrics.requests_2xx.inc
        self._count_4xx = metrics.requests_4xx.inc
        self._count_5xx = metrics.requests_5xx.inc
        self._stall_limit = float(settings.default_response_timeout)
        self._standard = (
            "Pragma: no-cache\r\nCache-Control: no-cache; no-store, must-revalidate, private\r\n"
            "Expires: Thu, 01 Jan 1970 00:00:00 UTC\r\n" + _cross_origin_lines(settings)
        )
        self._opening_lines: dict[tuple[int, bool], str] = {}
        self._sent: dict[tuple[int, bool], Sent] = {}
        self._date = ""
        self._date_second = 0

    async def send(
        self,
        request: HttpRequest,
        status: int,
        body: Buffer,
        headers: Headers = (),
        *,
        reason: str = "",
        request_id: str = "",
        close: bool = False,
    ) -> Sent:
        """Write a whole answer and wait until the client has taken most of it.

        Args:
            request: What is answered.
            status: 200 to 599.
            body: The body; left out where HTTP allows none (HEAD, 204, 304).
            headers: Further headers. Those that only the server may set are left out.
            reason: The reason phrase; empty for the status's own.
            request_id: The job's id, or empty where there was no job.
            close: Close the connection afterwards.

        Raises:
            DoorError: The status or a header is not one that HTTP allows; nothing was written.
        """
        sent = self.send_now(request, status, body, headers, reason=reason, request_id=request_id, close=close)
        return await self.taken(request, sent) if request.protocol.writing_paused else sent

    def send_now(
        self,
        request: HttpRequest,
        status: int,
        body: Buffer,
        headers: Headers = (),
        *,
        reason: str = "",
        request_id: str = "",
        close: bool = False,
    ) -> Sent:
        """`send`, without waiting for a slow reader."""
        keep_alive = request.keep_alive and not close
        if status in {204, 304}:
            framing = ""
            body = b""
        else:
            framing = f"content-length: {len(body)}\r\n"
            if request.method == "HEAD":
                body = b""
        head = self.head(status, keep_alive, headers, framing=framing, reason=reason, request_id=request_id)
        transport = request.transport
        if transport is not None and not transport.is_closing():
            if len(body) > _JOIN_LIMIT:
                transport.writelines((head, body))
            else:
                transport.write(b"".join((head, body)))
        return self.sent(status, keep_alive)

    async def send_json(self, request: HttpRequest, status: int, value: Any) -> Sent:
        """Answer with JSON of the server's own."""
        return await self.send(request, status, to_json(value), (JSON_TYPE,))

    async def send_failure(
        self,
        request: HttpRequest,
        failure: Failure,
        headers: Headers = (),
        *,
        request_id: str = "",
        close: bool = False,
    ) -> Sent:
        """Answer with an error in TorchServe's shape."""
        sent = self.send_failure_now(request, failure, headers, request_id=request_id, close=close)
        return await self.taken(request, sent) if request.protocol.writing_paused else sent

    def send_failure_now(
        self,
        request: HttpRequest,
        failure: Failure,
        headers: Headers = (),
        *,
        request_id: str = "",
        close: bool = False,
    ) -> Sent:
        """`send_failure`, without waiting for a slow reader."""
        body, extra = _failure_message(failure)
        return self.send_now(request, failure.status, body, (*headers, *extra), request_id=request_id, close=close)

    def refuse_connection(self, transport: asyncio.Transport, failure: Failure) -> None:
        """Answer a client whose request never became one; the caller closes the connection."""
        body, headers = _failure_message(failure)
        head = self.head(failure.status, False, headers, framing=f"content-length: {len(body)}\r\n")
        transport.write(head + body)
        self.sent(failure.status, False)

    def head(
        self, status: int, keep_alive: bool, headers: Headers, *, framing: str, reason: str = "", request_id: str = ""
    ) -> bytes:
        """The bytes before the body.

        Args:
            framing: The lines that say where the body ends, each with its line end.

        Raises:
            DoorError: The status or a header is not one that HTTP allows.
        """
        opening = self._opening_lines.get((status, keep_alive)) if not reason else None
        if opening is None:
            opening = self._opening(status, keep_alive, reason)
        lines = "".join([_line(name, value) for name, value in headers])
        second = int(time.time())
        if second != self._date_second:
            self._date_second = second
            self._date = formatdate(second, usegmt=True)
        text = f"{opening}{request_id or uuid.uuid4()}\r\ndate: {self._date}\r\n{framing}{lines}\r\n"
        return text.encode("utf-8", "surrogateescape")

    def sent(self, status: int, keep_alive: bool) -> Sent:
        """Count an answer whose head has been written."""
        if status < 300:
            self._count_2xx()
        elif 400 <= status < 500:
            self._count_4xx()
        else:
            self._count_5xx()
        sent = self._sent.get((status, keep_alive))
        if sent is None:
            sent = self._sent[(status, keep_alive)] = Sent(status, keep_alive)
        return sent

    async def drained(self, request: HttpRequest) -> None:
        """Wait until little of what was written is still waiting for the client.

        Raises:
            ReaderStalledError: The client took nothing for ``default_response_timeout`` seconds.
            ConnectionError: The client is gone.
        """
        transport = request.transport
        if transport is None:
            raise ConnectionResetError("The client is gone.")
        # One drain for the whole wait: aiohttp's is of no use any more once a timeout has cancelled it.
        drain = asyncio.ensure_future(request.writer.drain())
        try:
            while not drain.done():
                unsent = transport.get_write_buffer_size()
                await asyncio.wait((drain,), timeout=self._stall_limit)
                if not drain.done() and transport.get_write_buffer_size() >= unsent:
                    raise ReaderStalledError(f"the client has read nothing for {self._stall_limit:g} seconds")
            await drain
        finally:
            drain.cancel()

    async def taken(self, request: HttpRequest, sent: Sent) -> Sent:
        """Wait until the client has taken most of an answer; one that reads nothing for too long is given up."""
        try:
            await self.drained(request)
        except ReaderStalledError:
            return self.give_up(request, sent.status)
        return sent

    def give_up(self, request: HttpRequest, status: int) -> Sent:
        """Drop a connection whose client does not read; its answer was counted when it began."""
        logger.warning("Dropped a connection: the client has read nothing for %g seconds.", self._stall_limit)
        reset(request.transport)
        return Sent(status, keep_alive=False)

    def _opening(self, status: int, keep_alive: bool, reason: str) -> str:
        """Everything up to the request id; kept where it can only take few values."""
        if not 200 <= status <= 599:
            raise _handler_mistake(f"the response status {status}: it must lie between 200 and 599")
        if reason and _CONTROL_CHARACTER.search(reason):
            raise _handler_mistake(f"the reason phrase {reason!r}: it holds a control character")
        connection = "keep-alive" if keep_alive else "close"
        phrase = reason or _REASONS.get(status, "Unknown")
        opening = f"HTTP/1.1 {status} {phrase}\r\n{self._standard}connection: {connection}\r\nx-request-id: "
        if not reason:
            self._opening_lines[(status, keep_alive)] = opening
        return opening


def _failure_message(failure: Failure) -> tuple[bytes, list[tuple[str, str]]]:
    """The body of an error in TorchServe's shape, and the headers that go with it."""
    headers = []
    if failure.cause:
        headers.append((CAUSE_HEADER, failure.cause))
    if failure.overloaded:
        headers.append(("Retry-After", RETRY_AFTER_SECONDS))
    if failure.allow:
        headers.append(("Allow", failure.allow))
    if failure.status == 413:  # TorchServe's has no body
        return b"", headers
    headers.append(JSON_TYPE)
    return to_json({"code": failure.status, "type": failure.type, "message": failure.message}), headers


def _line(name: str, value: str) -> str:
    """The line of a header; nothing for one that the server alone sets."""
    if not value.isprintable() and _CONTROL_CHARACTER.search(value):
        raise _handler_mistake(f"the response header {name}: its value {value!r} holds a control character")
    beginning = _beginning(name)
    return f"{beginning}{value}\r\n" if beginning else ""


@functools.lru_cache(maxsize=256)
def _beginning(name: str) -> str:
    """What comes before a header's value; nothing for a header that the server alone sets. There are few names."""
    if not _HEADER_NAME.fullmatch(name):
        raise _handler_mistake(f"the response header name {name!r}: it is empty or holds a character that HTTP forbids")
    return "" if name.lower() in _SERVER_HEADERS else f"{name}: "


def _handler_mistake(what: str) -> DoorError:
    return DoorError(Failure(500, INTERNAL, f"The handler set {what}."))


def allows_other_origins(settings: Settings) -> bool:
    """Whether browsers may let pages of other origins call; TorchServe wants all three settings for that."""
    return bool(settings.cors_allowed_origin and settings.cors_allowed_methods and settings.cors_allowed_headers)


def _cross_origin_lines(settings: Settings) -> str:
    """The CORS headers of every response."""
    if not allows_other_origins(settings):
        return ""
    values = (settings.cors_allowed_origin, settings.cors_allowed_methods, settings.cors_allowed_headers)
    names = ("access-control-allow-origin", "access-control-allow-methods", "access-control-allow-headers")
    return "".join(f"{name}: {value}\r\n" for name, value in zip(names, values, strict=True))
