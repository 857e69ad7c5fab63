"""One request: its head, its body as it arrives, and the means to answer it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl

from torchserve_py.transport.http1.errors import BodyError, BodyTooLarge
from torchserve_py.transport.http1.response import CHUNKED, LAST_CHUNK, NO_BODY, response_head

if TYPE_CHECKING:
    from torchserve_py.transport.http1.connection import Connection
    from torchserve_py.transport.http1.parser import Head
    from torchserve_py.transport.http1.websocket import WebSocket

Buffer = bytes | bytearray | memoryview

#: How much of a body is taken before somebody asks for it.
UNASKED_BODY: Final = 64 * 1024
#: Smaller pieces of a body are put together at once: chunks of two bytes would else take twenty times their size.
_SMALL_PIECE: Final = 1024
#: Above this size a body is handed to the transport as it is; below, one joined write is cheaper.
_JOIN_LIMIT: Final = 16384


class Request:
    """A request whose head has arrived.

    It is answered with `respond`, or with `start_stream` and `send`. Whoever answers calls `finish` when nothing more
    is to be done, answered or not; then the next request of the connection begins.
    """

    def __init__(self, head: Head, connection: Connection) -> None:
        self.method = head.method
        #: As it was sent: a path with its query, or an absolute URL.
        self.target = head.target
        self.version = head.version
        self.headers = head.headers
        self.raw_headers = head.raw_headers
        #: Whether the connection stays open after the answer, as far as the client goes.
        self.keep_alive = head.keep_alive
        #: Whether the client wants to go on with a WebSocket.
        self.upgrades = head.upgrades
        #: Called when the client is gone before `finish` was called.
        self.on_lost: Callable[[], None] | None = None
        #: The status of the response, 0 before its head was sent.
        self.status = 0
        #: Whether all of the response was sent.
        self.is_answered = False
        #: What the access log says of the request beside what the request says of itself.
        self.log_fields: Mapping[str, str | None] = {}
        #: When the head had arrived, on the loop's clock.
        self.arrived = connection.loop.time()
        self._connection = connection
        self._length = head.length
        self._awaits_continue = head.expects_continue
        self._pieces: list[bytes | bytearray] = []
        self._size = 0
        self._is_complete = False
        self._body_error: BodyError | None = None
        self._limit: int | None = None
        self._then: Callable[[bytes | BodyError], None] | None = None
        self._is_chunked = False
        self._unsent_head = b""

    # What its head says.

    @cached_property
    def query(self) -> list[tuple[str, str]]:
        """The names and values of the query, decoded, in order."""
        query = self.target.partition("#")[0].partition("?")[2]
        return parse_qsl(query, keep_blank_values=True, errors="replace") if query else []

    def parameter(self, name: str) -> str | None:
        """The first value of a parameter of the query; None without one."""
        return next((value for key, value in self.query if key == name), None)

    @property
    def content_type(self) -> str:
        """The media type of the body without its parameters, in lower case; empty without one."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def peer(self) -> Any:
        """The client's address as the socket has it: a tuple of host and port (and more), or text for a Unix socket."""
        return self._connection.peer

    @property
    def is_secure(self) -> bool:
        """Whether the connection is encrypted."""
        return self._connection.is_secure

    # Its body.

    @property
    def is_complete(self) -> bool:
        """Whether the whole body has arrived."""
        return self._is_complete

    @property
    def is_body_malformed(self) -> bool:
        """Whether the rest of the body cannot be had, so that no further request can be found behind it."""
        return self._body_error is not None

    def when_read(self, limit: int, then: Callable[[bytes | BodyError], None]) -> None:
        """Call ``then`` with the body once all of it is there, be it at once, or with the reason why it cannot be had.

        Args:
            limit: Bytes allowed.
            then: Called once, unless the client leaves before.
        """
        if max(self._size, self._length or 0) > limit and self._body_error is None:
            self._body_error = BodyTooLarge(limit)
        self._limit = limit
        self._then = then
        if self.is_body_settled:
            self.tell_body()
        else:
            self._connection.wait_for_body(ask=self._awaits_continue and not self._size)
            self._awaits_continue = False

    async def read(self, limit: int) -> bytes:
        """The whole body.

        Args:
            limit: Bytes allowed.

        Raises:
            BodyError: It cannot be had.
        """
        arrived = asyncio.get_running_loop().create_future()
        self.when_read(limit, lambda body: None if arrived.done() else arrived.set_result(body))
        body: bytes | BodyError = await arrived
        if isinstance(body, BodyError):
            raise body
        return body

    # Its answer.

    @property
    def is_connected(self) -> bool:
        """Whether the client is still there."""
        return self._connection.is_connected

    @property
    def is_reader_slow(self) -> bool:
        """Whether so much waits for the client to read it that `drained` should be waited for."""
        return self._connection.reader.is_slow

    def respond(self, status: int, lines: str, body: Buffer, *, reason: str = "", close: bool = False) -> None:
        """Send a whole response; the connection takes care of a slow reader.

        Args:
            status: 200 to 599.
            lines: Its headers, made by `response.header_line`.
            body: The body; left out where HTTP allows none (HEAD, 204, 304).
            reason: The reason phrase; empty for the status's own.
            close: Close the connection afterwards.

        Raises:
            BadResponse: The status or the reason is not one that HTTP allows; nothing was sent.
        """
        if status in NO_BODY:
            framing, body = "", b""
        else:
            framing = f"content-length: {len(body)}\r\n"
            if self.method == "HEAD":
                body = b""
        head = response_head(status, reason, self._stays_open(close), framing, lines)
        self.status = status
        self.is_answered = True
        if len(body) > _JOIN_LIMIT:
            self._connection.write((head, body))
        else:
            self._connection.write((b"".join((head, body)),))

    def start_stream(self, status: int, lines: str, *, reason: str = "") -> None:
        """Send the head of a response whose body follows in pieces.

        Raises:
            BadResponse: The status or the reason is not one that HTTP allows; nothing was sent.
        """
        self._is_chunked = self.version >= (1, 1)
        keep_alive = self._stays_open(not self._is_chunked)
        has_body = status not in NO_BODY and self.method != "HEAD"
        framing = CHUNKED if self._is_chunked and status not in NO_BODY else ""
        head = response_head(status, reason, keep_alive, framing, lines)
        self.status = status
        self.is_answered = not has_body
        if has_body:
            self._unsent_head = head  # leaves with the first piece
        else:
            self._connection.write((head,))

    def send(self, pieces: Iterable[Sequence[bytes]], *, last: bool = False) -> None:
        """Send pieces of a streamed body, each a chunk of its own, and nothing where there is no body to be sent.

        Args:
            pieces: Each as the parts that it is joined from; an empty one is left out.
            last: Whether they are the last, so that the response is complete.
        """
        if self.is_answered:
            return
        parts = [self._unsent_head]
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
            self._connection.write((data,))

    def break_off(self) -> None:
        """End a streamed response so that the client sees that it is incomplete."""
        self.keep_alive = False
        self.is_answered = True
        if not self._is_chunked:
            self._connection.reset()  # without chunks an orderly close would look like the end of the response

    async def drained(self) -> None:
        """Wait until little of what was sent is still waiting for the client.

        Raises:
            ReaderStalled: The client does not read; its connection is reset.
            ConnectionError: The client is gone.
        """
        await self._connection.reader.drained()

    def upgrade(self, head: bytes, receiver: WebSocket) -> Connection:
        """Switch protocols: send the head that says so, and let ``receiver`` have what arrives from now on."""
        self.status = 101
        self.is_answered = True
        self._connection.upgrade(head, receiver)
        return self._connection

    def finish(self) -> None:
        """The request needs nothing more; one without a complete response ends with its connection."""
        self.on_lost = None
        self._connection.finished(self)

    def _stays_open(self, close: bool) -> bool:
        # A client that waits to be asked for its body may send it or not: nobody could tell what comes next.
        unsure = self._body_error is not None or (self._awaits_continue and not self._is_complete)
        self.keep_alive = self.keep_alive and not close and not unsure and not self._connection.is_closing
        return self.keep_alive

    # What the connection tells.

    @property
    def missing_size(self) -> int:
        """How many bytes of the body are yet to arrive; 0 where nobody knows."""
        return 0 if self._length is None else self._length - self._size

    def take_body(self, data: bytes) -> bool:
        """Take a piece of the body; return whether there is room for more until somebody asks for it."""
        self._size += len(data)
        if self._limit is not None and self._size > self._limit:
            self._body_error = BodyTooLarge(self._limit)
        pieces = self._pieces
        if self._body_error is not None or self.is_answered:
            pieces.clear()
        elif not pieces or len(data) >= _SMALL_PIECE:
            pieces.append(data)
        elif isinstance(pieces[-1], bytearray):
            pieces[-1] += data
        else:
            pieces.append(bytearray(data))
        return self._limit is not None or self.is_answered or self._size <= UNASKED_BODY

    def complete_body(self) -> None:
        """All of the body has arrived."""
        self._is_complete = True
        self._awaits_continue = False

    def fail_body(self, error: BodyError) -> None:
        """The rest of the body cannot be had."""
        self._body_error = error

    @property
    def awaits_body(self) -> bool:
        """Whether somebody waits for the body."""
        return self._then is not None

    @property
    def is_body_settled(self) -> bool:
        """Whether the whole body is there, or it is known that it cannot be had."""
        return self._is_complete or self._body_error is not None

    @property
    def body_size(self) -> int:
        """How many bytes of the body have arrived."""
        return self._size

    def tell_body(self) -> None:
        """Give the body, or the reason why it cannot be had, to whoever waits for it."""
        then, self._then = self._then, None
        if then is None:
            return
        if self._body_error is not None:
            then(self._body_error)
            return
        pieces, self._pieces = self._pieces, []
        then(bytes(pieces[0]) if len(pieces) == 1 else b"".join(pieces))
