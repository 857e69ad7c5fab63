"""One request: its head, its body as it arrives, and the methods that answer it.

Of the heads of responses this package sets the framing, ``Connection`` and ``Date``; callers set the other headers.
"""

from __future__ import annotations

import asyncio
import functools
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from email.utils import formatdate
from enum import IntEnum
from http import HTTPStatus
from io import BytesIO
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl

from torchserve_py.net.http1.errors import BadQuery, BadResponse, BodyError, BodyTooLarge
from torchserve_py.net.http1.parser import HttpHead
from torchserve_py.net.request_budget import NoRoomError

if TYPE_CHECKING:
    from torchserve_py.net.decompression import Encoding
    from torchserve_py.net.http1.http_connection import HttpConnection

Buffer = bytes | bytearray | memoryview

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
#: Bytes of a body that are read before the application asks for the body.
UNASKED_BODY: Final = 64 * 1024
#: Above this size a body is handed to the transport as it is; below, one joined write is cheaper.
_JOIN_LIMIT: Final = 16384
_NO_FIELDS: Final[Mapping[str, str | None]] = MappingProxyType({})
#: How much memory there is for a body that is received into it, as a multiple of what has arrived: a client must send
#: what makes the server take memory. And how much at least (bytes).
_GROWTH: Final = 4
_LEAST: Final = 256 * 1024


class Body:
    """Collects the pieces of a body; bytes can also be received straight into its memory, see `room`.

    Pieces are put together at once: in a list, chunks of two bytes would take twenty times their size.
    """

    __slots__ = ("_buffer", "_only", "_view", "capacity", "size")

    def __init__(self) -> None:
        #: How many bytes have arrived, and for how many `room` has made memory.
        self.size = self.capacity = 0
        self._only = b""
        self._buffer: BytesIO | None = None
        self._view: memoryview | None = None

    def add(self, piece: bytes | memoryview) -> None:
        """Add a piece behind what has arrived."""
        if not self.size and isinstance(piece, bytes):
            self._only = piece
        else:
            buffer = self._writable()
            buffer.seek(self.size)
            buffer.write(piece)
        self.size += len(piece)

    def next_capacity(self, length: int) -> int:
        """Return for how many bytes there should be memory now, if the whole body has ``length``."""
        return self.capacity if self.capacity > self.size else min(length, max(_LEAST, _GROWTH * self.size))

    def room(self, capacity: int) -> memoryview:
        """Return the memory behind what has arrived, up to ``capacity``; report what is written there to `filled`."""
        if capacity > self.capacity or self._view is None:
            buffer = self._writable()
            if capacity > self.capacity:
                buffer.seek(capacity - 1)
                buffer.write(b"\0")
                self.capacity = capacity
            self._view = buffer.getbuffer()
        return self._view[self.size :]

    def filled(self, count: int) -> None:
        """Note that ``count`` bytes were written to the start of `room`."""
        self.size += count

    def take(self) -> bytes:
        """Return the complete body, without a copy if no piece of its memory is in use, and forget it."""
        body = self._only if self._buffer is None else self._writable().getvalue()
        self._only, self._buffer = b"", None
        self.size = self.capacity = 0
        return body

    def _writable(self) -> BytesIO:
        if self._view is not None:
            self._view.release()
            self._view = None
        if self._buffer is None:
            self._buffer = BytesIO()
            self._buffer.write(self._only)
            self._only = b""
        return self._buffer


class Stage(IntEnum):
    """How far the answer to a request has got. A request only moves forward, and may skip stages."""

    waiting = 0  # nothing was sent
    streaming = 1  # the head was sent; the body is not complete
    answered = 2  # all was sent
    over = 3  # `Request.finish` was called, or the client has left: nothing more is sent, counted or logged


WAITING, STREAMING, ANSWERED, OVER = Stage


class Request(HttpHead, ABC):
    """A request: the record of its head, and what has become of it since. A subclass answers it.

    `begin` is its turn: it answers with `respond`, or with `start_stream` and `send`, and calls `finish` when it is
    done, whether it has answered or not; then the next request of the connection begins. If the client leaves before
    that, `left` is called instead.
    """

    __slots__ = (
        *("_body", "_held", "_is_chunked", "_limit", "_then", "_unsent_head"),
        *("arrived", "body_error", "body_size", "cause", "connection", "credential", "id", "is_complete"),
        *("log_fields", "stage", "status"),
    )

    #: Of a streamed response: whether each piece is a chunk, and the head until the first piece is sent with it.
    _is_chunked: bool
    _unsent_head: bytes

    def __init__(self, connection: HttpConnection) -> None:
        self.connection = connection
        #: When the head was complete, by the event loop's clock.
        self.arrived = connection.loop.time()
        self.stage: Stage = WAITING
        #: The status of the response; 0 until its head is sent.
        self.status = 0
        #: The id that its answer has told the client; empty until then.
        self.id = ""
        #: Why it failed, in a word; empty if it did not, or if its status says it all.
        self.cause = ""
        #: What the application has decided that the client may do; None if it asks for no keys.
        self.credential: Any = None
        #: Fields of the access log that the request itself does not hold.
        self.log_fields: Mapping[str, str | None] = _NO_FIELDS
        #: Whether the whole body has arrived.
        self.is_complete = False
        #: How many bytes of the body have arrived.
        self.body_size = 0
        #: What has arrived of the body, unless it is not wanted any more: all of it, if it came in one piece, else its
        #: pieces; None once `body_at_hand` has returned it.
        self._body: bytes | Body | None = b""
        #: How many bytes count in the budget of the server.
        self._held = 0
        #: Why the body cannot be read, if so; the start of the next request cannot be found then.
        self.body_error: BodyError | NoRoomError | None = None
        self._limit: int | None = None
        self._then: Callable[[bytes | Exception], None] | None = None

    @property
    def route(self) -> str:
        """The pattern of the path that replies, empty before one is found."""
        return ""

    @abstractmethod
    def begin(self) -> None:
        """Answer the request, now or later; requests before it on the connection are finished."""

    @abstractmethod
    def left(self) -> None:
        """Give up: the client has disconnected before `finish` was called."""

    # The head.

    @property
    def query(self) -> list[tuple[str, str]]:
        """The names and values of the query, decoded, in order. Raises BadQuery: they are not in UTF-8."""
        query = self.target.partition("#")[0].partition("?")[2]
        try:
            return parse_qsl(query, keep_blank_values=True, errors="strict") if query else []
        except UnicodeDecodeError as error:
            shown = "".join(f"%{byte:02X}" for byte in error.object[error.start : error.end])
            raise BadQuery(f"The query holds {shown}, which is no UTF-8; encode its text in UTF-8.") from None

    def parameter(self, name: str) -> str | None:
        """Return the first value that the query has by this name. Raises BadQuery: the query is not in UTF-8."""
        return next((value for key, value in self.query if key == name), None)

    @property
    def content_type(self) -> str:
        """The media type of the body in lower case, without its parameters; empty if the request has none."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    # The body.

    def body_at_hand(self, limit: int) -> bytes | None:
        """Take the body if all of it has arrived and is no longer than ``limit``; else None, and `when_read` tells.

        A body can be taken once.
        """
        body = self._body
        if body is None or not self.is_complete or self.body_error is not None or self.body_size > limit:
            return None
        self._body = None
        return body.take() if isinstance(body, Body) else body

    def when_read(self, limit: int, then: Callable[[bytes | Exception], None]) -> None:
        """Call ``then`` once with the complete body of up to ``limit`` bytes, or with what `read` raises.

        Call it at once if either is known, and never if the client disconnects first.
        """
        if max(self.body_size, self.length or 0) > limit and self.body_error is None:
            self.body_error = BodyTooLarge(limit)
        self._limit = limit
        self._then = then
        if not (self.is_complete or self.body_error):
            try:
                self.connection.budget.check(self.missing_size)
            except NoRoomError as error:
                self.body_error = error
            else:
                self.connection.wait_for_body(ask=self.expects_continue and not self.body_size)
                self.expects_continue = False
                return
        self.deliver_body()

    async def read(self, limit: int) -> bytes:
        """Return the whole body.

        Raises BodyError: the body has more than ``limit`` bytes, is too slow or malformed; NoRoomError: there is no
        room for it now.
        """
        arrived = asyncio.get_running_loop().create_future()
        self.when_read(limit, lambda body: None if arrived.done() else arrived.set_result(body))
        body: bytes | Exception = await arrived
        if isinstance(body, Exception):
            raise body
        return body

    async def decompress(self, body: bytes, encoding: Encoding, limit: int) -> bytes:
        """Return the decompressed body; ``encoding`` is one of those of `net.decompression`.

        What comes out counts in the budget of the server. Raises BodyTooLarge: it has more than ``limit`` bytes;
        NoRoomError: it has no room now; zlib.error: the body cannot be decompressed.
        """

        def take(size: int, total: int) -> None:
            if total > limit:
                raise BodyTooLarge(limit)
            self.hold(size)

        return await self.connection.decompressor.decompress(body, encoding, limit, take)

    def hold(self, size: int) -> None:
        """Count bytes in the budget of the server until the request is finished. Raises NoRoomError: it has no room."""
        self.connection.budget.take(size)
        self._held += size

    def let_go(self, size: int) -> None:
        """Stop counting bytes that `hold` has counted."""
        size = min(size, self._held)
        self.connection.budget.release(size)
        self._held -= size

    def _release(self) -> None:
        self.connection.budget.release(self._held)
        self._held = 0

    # The answer.

    def respond(self, status: int, lines: str, body: Buffer, reason: str = "") -> None:
        """Send a whole response, for whose head see `response_head`; the connection handles a slow reader.

        The body is not sent where HTTP allows none (HEAD, 204, 304). Raises BadResponse: the status or the reason is
        not one that HTTP allows; nothing was sent.
        """
        framing = "" if status in NO_BODY else f"content-length: {len(body)}\r\n"
        head = response_head(status, reason, self._stays_open(), framing, lines)
        self.status = status
        self.stage = ANSWERED
        if not framing or self.method == "HEAD":
            self.connection.write(head)
        elif len(body) > _JOIN_LIMIT:
            self.connection.write_all((head, body))
        else:
            self.connection.write(head + body)

    def start_stream(self, status: int, lines: str, *, reason: str = "") -> None:
        """Send the head of a response whose body follows in pieces.

        Raises BadResponse: the status or the reason is not one that HTTP allows; nothing was sent.
        """
        self._is_chunked = self.version >= (1, 1)
        if not self._is_chunked:
            self.keep_alive = False  # the end of the connection is that of the body
        keep_alive = self._stays_open()
        has_body = status not in NO_BODY and self.method != "HEAD"
        framing = CHUNKED if self._is_chunked and status not in NO_BODY else ""
        head = response_head(status, reason, keep_alive, framing, lines)
        self.status = status
        self.stage = STREAMING if has_body else ANSWERED
        if has_body:
            self._unsent_head = head
        else:
            self.connection.write(head)

    def send(self, pieces: Iterable[Sequence[bytes | bytearray]], *, last: bool = False) -> None:
        """Send pieces of a streamed body, each as a chunk; send nothing where the response has no body.

        Each piece is the parts that it is joined from; an empty one is left out. ``last`` pieces complete the response.
        """
        if self.stage is not STREAMING:
            return
        parts: list[bytes | bytearray] = [self._unsent_head]
        self._unsent_head = b""
        for piece in pieces:
            size = sum(map(len, piece))
            if not size:
                continue
            if self._is_chunked:
                parts += (b"%x\r\n" % size, *piece, b"\r\n")
            else:
                parts += piece
        if last:
            self.stage = ANSWERED
            if self._is_chunked:
                parts.append(LAST_CHUNK)
        data = b"".join(parts)
        if data:
            self.connection.write(data)

    def break_off(self) -> None:
        """End a streamed response so that the client sees that it is incomplete."""
        self.keep_alive = False
        self.stage = ANSWERED
        if not self._is_chunked:
            self.connection.reset()  # without chunks an orderly close would look like the end of the response

    def finish(self) -> None:
        """End the request; if its response is incomplete, close its connection."""
        is_answered, self.stage = self.stage is ANSWERED, OVER
        self._body = b""  # the request may be kept for a moment
        if self._held:
            self.connection.budget.held -= self._held
            self._held = 0
        self.connection.finished(self, is_answered=is_answered)

    def _stays_open(self) -> bool:
        """Return whether the connection stays open behind the answer, and note it."""
        # A client that still waits for ``100 Continue`` may send its body or not: the next bytes would be ambiguous.
        is_sure = self.body_error is None and (self.is_complete or not self.expects_continue)
        if not is_sure or self.connection.is_closing:
            self.keep_alive = False
        return self.keep_alive

    # Called by the connection.

    @property
    def missing_size(self) -> int:
        """How many bytes of the body have not arrived yet; 0 where that is unknown."""
        return 0 if self.length is None else self.length - self.body_size

    def take_body(self, data: bytes | memoryview) -> bool:
        """Take a piece of the body; return whether to read more before the application asks for the body."""
        size, budget = len(data), self.connection.budget
        is_wanted = self.body_error is None and self.stage is WAITING
        if size == self.length and is_wanted and type(data) is bytes and budget.held + size <= budget.room:
            budget.held += size  # all of it in one piece, as nearly always
            self.body_size = self._held = size
            self._body = data
        else:
            self._add(data)
        return self.body_size <= UNASKED_BODY or self._limit is not None or self.stage >= ANSWERED

    def _add(self, data: bytes | memoryview) -> None:
        """Add a piece of the body to those that have arrived."""
        self.body_size += len(data)
        if self._limit is not None and self.body_size > self._limit:
            self.body_error = BodyTooLarge(self._limit)
        if self._has_room(self.body_size):
            self._pieces().add(data)

    def room(self) -> memoryview | None:
        """Return memory for the next bytes of the body, or None if no rest of known length is awaited.

        What is written to its start is reported to `filled`.
        """
        if self._limit is None or not self.missing_size:
            return None
        body = self._pieces()
        capacity = body.next_capacity(self.length or 0)
        return body.room(capacity) if self._has_room(capacity) else None

    def filled(self, count: int) -> None:
        """Note that ``count`` bytes of the body have been received into `room`."""
        self.body_size += count
        self._pieces().filled(count)

    def _pieces(self) -> Body:
        if not isinstance(self._body, Body):
            self._body = Body()
        return self._body

    def _has_room(self, size: int) -> bool:
        """Count the memory of the body in the server's budget; return whether the body is wanted and has room."""
        if self.body_error is None and self.stage < ANSWERED:
            try:
                if size > self._held:
                    self.connection.budget.take(size - self._held)
                    self._held = size
                return True
            except NoRoomError as error:
                self.body_error = error
        self._body = b""
        self._release()
        return False

    def lose(self) -> None:
        """Note that the client has disconnected, and drop the body: the request may live on for long."""
        self._body, self._then = b"", None
        if self.stage is not OVER:
            self.left()
            self.stage = OVER
        self._release()

    @property
    def awaits_body(self) -> bool:
        """Whether the application waits for the body."""
        return self._then is not None

    def deliver_body(self) -> None:
        """Give the body, or its error, to the application's callback."""
        then, self._then = self._then, None
        if then is not None:
            body, self._body = self._body, None
            then(self.body_error or (body.take() if isinstance(body, Body) else body or b""))


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
    opening = _opening(status, reason, keep_alive, int(time.time()))
    return f"{opening}{framing}{lines}\r\n".encode("utf-8", "surrogateescape")


@functools.lru_cache(maxsize=1024)
def _opening(status: int, reason: str, keep_alive: bool, second: int) -> str:
    reason = reason or _REASONS.get(status, "Unknown")
    if not 200 <= status <= 599:
        raise BadResponse(f"the response status {status}: it must lie between 200 and 599")
    if _CONTROL_CHARACTER.search(reason):
        raise BadResponse(f"the reason phrase {reason!r}: it holds a control character")
    connection, date = "keep-alive" if keep_alive else "close", formatdate(second, usegmt=True)
    return f"HTTP/1.1 {status} {reason}\r\nconnection: {connection}\r\ndate: {date}\r\n"
