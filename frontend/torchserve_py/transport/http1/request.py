"""One request: its head, its body as it arrives, and the methods that answer it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl

from torchserve_py.transport.http1.errors import BodyError, BodyTooLarge
from torchserve_py.transport.http1.request_body import Body
from torchserve_py.transport.http1.response import CHUNKED, LAST_CHUNK, NO_BODY, response_head
from torchserve_py.transport.request_budget import NoRoomError

if TYPE_CHECKING:
    from torchserve_py.transport.http1.http_connection import HttpConnection
    from torchserve_py.transport.http1.parser import Head

Buffer = bytes | bytearray | memoryview

#: Bytes of a body that are read before the application asks for the body.
UNASKED_BODY: Final = 64 * 1024
#: Above this size a body is handed to the transport as it is; below, one joined write is cheaper.
_JOIN_LIMIT: Final = 16384
_NO_FIELDS: Final[Mapping[str, str | None]] = MappingProxyType({})


class Request:
    """A request whose head has arrived.

    The application answers it with `respond`, or with `start_stream` and `send`, and calls `finish` when it is done,
    whether it has answered or not; then the next request of the connection begins. For ``method``, ``target``,
    ``version``, ``headers``, ``raw_headers``, ``keep_alive`` and ``upgrades`` see `parser.Head`.
    """

    def __init__(self, head: Head, connection: HttpConnection) -> None:
        self.method = head.method
        self.target = head.target
        self.version = head.version
        self.headers = head.headers
        self.raw_headers = head.raw_headers
        self.keep_alive = head.keep_alive
        self._length = head.length
        self._awaits_continue = head.expects_continue
        self.upgrades = head.upgrades
        self.connection = connection
        #: When the head was complete, by the event loop's clock.
        self.arrived = connection.loop.time()
        # All set here, none in the class: the interpreter is slow with attributes of objects that their class has, too.
        #: Called when the client disconnects before `finish` was called.
        self.on_lost: Callable[[], None] | None = None
        #: The status of the response; 0 until its head is sent.
        self.status = 0
        #: Whether all of the response was sent.
        self.is_answered = False
        #: Fields of the access log that the request itself does not hold.
        self.log_fields: Mapping[str, str | None] = _NO_FIELDS
        #: Whether the whole body has arrived.
        self.is_complete = False
        #: How many bytes of the body have arrived.
        self.body_size = 0
        #: What has arrived of the body, unless it is not wanted any more.
        self._body = Body()
        #: How many bytes count in the budget of the server.
        self._held = 0
        self._is_chunked = False
        #: Why the body cannot be read, if so; the start of the next request cannot be found then.
        self.body_error: BodyError | NoRoomError | None = None
        self._limit: int | None = None
        self._then: Callable[[bytes | Exception], None] | None = None
        self._unsent_head = b""

    # The head.

    @cached_property
    def query(self) -> list[tuple[str, str]]:
        """Return the names and values of the query, decoded, in order."""
        query = self.target.partition("#")[0].partition("?")[2]
        return parse_qsl(query, keep_blank_values=True, errors="replace") if query else []

    def parameter(self, name: str) -> str | None:
        return next((value for key, value in self.query if key == name), None)

    @property
    def content_type(self) -> str:
        """The media type of the body in lower case, without its parameters; empty if the request has none."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    # The body.

    def when_read(self, limit: int, then: Callable[[bytes | Exception], None]) -> None:
        """Call ``then`` once with the complete body of up to ``limit`` bytes, or with what `read` raises.

        Call it at once if either is known, and never if the client disconnects first.
        """
        if max(self.body_size, self._length or 0) > limit and self.body_error is None:
            self.body_error = BodyTooLarge(limit)
        self._limit = limit
        self._then = then
        if not (self.is_complete or self.body_error):
            try:
                self.connection.budget.check(self.missing_size)
            except NoRoomError as error:
                self.body_error = error
            else:
                self.connection.wait_for_body(ask=self._awaits_continue and not self.body_size)
                self._awaits_continue = False
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

    async def decompress(self, body: bytes, window: int, limit: int) -> bytes:
        """Return the body decompressed with one of the windows of `transport.decompression`.

        What comes out counts in the budget of the server. Raises BodyTooLarge: it has more than ``limit`` bytes;
        NoRoomError: it has no room now; zlib.error: the body cannot be decompressed.
        """

        def take(size: int, total: int) -> None:
            if total > limit:
                raise BodyTooLarge(limit)
            self.hold(size)

        return await self.connection.decompressor.decompress(body, window, limit, take)

    def hold(self, size: int) -> None:
        """Count bytes in the budget of the server until the request is finished. Raises NoRoomError: it has no room."""
        self.connection.budget.take(size)
        self._held += size

    def _release(self) -> None:
        self.connection.budget.release(self._held)
        self._held = 0

    # The answer.

    def respond(self, status: int, lines: str, body: Buffer, *, reason: str = "") -> None:
        """Send a whole response, for whose head see `response_head`; the connection handles a slow reader.

        The body is not sent where HTTP allows none (HEAD, 204, 304). Raises BadResponse: the status or the reason is
        not one that HTTP allows; nothing was sent.
        """
        if status in NO_BODY:
            framing, body = "", b""
        else:
            framing = f"content-length: {len(body)}\r\n"
            if self.method == "HEAD":
                body = b""
        head = response_head(status, reason, self._stays_open(), framing, lines)
        self.status = status
        self.is_answered = True
        if len(body) > _JOIN_LIMIT:
            self.connection.write(head, body)
        else:
            self.connection.write(head + body)

    def start_stream(self, status: int, lines: str, *, reason: str = "") -> None:
        """Send the head of a response whose body follows in pieces.

        Raises BadResponse: the status or the reason is not one that HTTP allows; nothing was sent.
        """
        self._is_chunked = self.version >= (1, 1)
        keep_alive = self._stays_open(not self._is_chunked)
        has_body = status not in NO_BODY and self.method != "HEAD"
        framing = CHUNKED if self._is_chunked and status not in NO_BODY else ""
        head = response_head(status, reason, keep_alive, framing, lines)
        self.status = status
        self.is_answered = not has_body
        if has_body:
            self._unsent_head = head  # sent together with the first piece
        else:
            self.connection.write(head)

    def send(self, pieces: Iterable[Sequence[bytes | bytearray]], *, last: bool = False) -> None:
        """Send pieces of a streamed body, each as a chunk; send nothing where the response has no body.

        Each piece is the parts that it is joined from; an empty one is left out. ``last`` pieces complete the response.
        """
        if self.is_answered:
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
            self.is_answered = True
            if self._is_chunked:
                parts.append(LAST_CHUNK)
        data = b"".join(parts)
        if data:
            self.connection.write(data)

    def break_off(self) -> None:
        """End a streamed response so that the client sees that it is incomplete."""
        self.keep_alive = False
        self.is_answered = True
        if not self._is_chunked:
            self.connection.reset()  # without chunks an orderly close would look like the end of the response

    def finish(self) -> None:
        """End the request; if its response is incomplete, close its connection."""
        self.on_lost = None
        self._release()
        self.connection.finished(self)

    def _stays_open(self, close: bool = False) -> bool:
        # A client that still waits for ``100 Continue`` may send its body or not: the next bytes would be ambiguous.
        unsure = self.body_error is not None or (self._awaits_continue and not self.is_complete)
        self.keep_alive = self.keep_alive and not close and not unsure and not self.connection.is_closing
        return self.keep_alive

    # Called by the connection.

    @property
    def missing_size(self) -> int:
        """How many bytes of the body have not arrived yet; 0 where that is unknown."""
        return 0 if self._length is None else self._length - self.body_size

    def take_body(self, data: bytes | memoryview) -> bool:
        """Take a piece of the body; return whether to read more before the application asks for the body."""
        self.body_size += len(data)
        if self._limit is not None and self.body_size > self._limit:
            self.body_error = BodyTooLarge(self._limit)
        if self._has_room(self._body.size + len(data)):
            self._body.add(data)
        return self._limit is not None or self.is_answered or self.body_size <= UNASKED_BODY

    def room(self) -> memoryview | None:
        """Return memory for the next bytes of the body, or None if no rest of known length is awaited.

        What is written to its start is reported to `filled`.
        """
        if self._limit is None or not self.missing_size:
            return None
        capacity = self._body.next_capacity(self._length or 0)
        return self._body.room(capacity) if self._has_room(capacity) else None

    def filled(self, count: int) -> None:
        """Note that ``count`` bytes of the body have been received into `room`."""
        self.body_size += count
        self._body.filled(count)

    def _has_room(self, size: int) -> bool:
        """Count the memory of the body in the server's budget; return whether the body is wanted and has room."""
        if self.body_error is None and not self.is_answered:
            try:
                if size > self._held:
                    self.connection.budget.take(size - self._held)
                    self._held = size
                return True
            except NoRoomError as error:
                self.body_error = error
        self._body = Body()
        self._release()
        return False

    def lose(self) -> None:
        """Note that the client has disconnected, and drop the body: the request may live on for long."""
        self._body, self._then = Body(), None
        self._release()
        on_lost, self.on_lost = self.on_lost, None
        if on_lost is not None:
            on_lost()

    @property
    def awaits_body(self) -> bool:
        """Whether the application waits for the body."""
        return self._then is not None

    def deliver_body(self) -> None:
        """Give the body, or its error, to the application's callback."""
        then, self._then = self._then, None
        if then is not None:
            then(self.body_error or self._body.take())
