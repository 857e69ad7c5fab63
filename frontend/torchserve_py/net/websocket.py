"""A connection after its upgrade to a WebSocket, on the I/O-free protocol of the library `websockets`."""

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from time import monotonic
from typing import Final

from websockets.extensions.permessage_deflate import ServerPerMessageDeflateFactory
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request as Handshake
from websockets.protocol import OPEN, SEND_EOF
from websockets.server import ServerProtocol

from torchserve_py.net.http1.http_connection import HttpConnection
from torchserve_py.net.http1.request import ANSWERED, Request
from torchserve_py.net.request_budget import NoRoomError
from torchserve_py.net.running_time import running_time

_protocol_logger: Final = logging.getLogger(f"{__name__}.protocol")
_protocol_logger.setLevel(logging.WARNING)  # at lower levels the library logs every connection

#: Messages that may wait to be received; at this number, or at the size that one may have, reading from the client
#: pauses.
_MAX_WAITING: Final = 16
_SWITCHING_PROTOCOLS: Final = 101
#: Bytes that tell how long a frame is: two, and up to eight of an extended length (RFC 6455, 5.2).
_LONGEST_START: Final = 10
_MASK_SIZE: Final = 4
_TWO_BYTES_FOLLOW, _EIGHT_BYTES_FOLLOW = 126, 127
_LEAST_OF_EIGHT_BYTES: Final = 1 << 16
#: The bit of an opcode that makes a frame a control frame.
_CONTROL: Final = 0x08


class Kind(Enum):
    """The kind of a received message."""

    text = "text"
    binary = "binary"
    pong = "pong"
    #: The client closes the socket or has disconnected; no further message follows.
    close = "close"


@dataclass(frozen=True, slots=True)
class Message:
    """One message of the client; for `Kind.close`, `code` is the close code and `data` the reason."""

    kind: Kind
    data: bytes = b""
    code: int = 0


class BadFrame(Exception):
    """The start of a frame that no client may send (RFC 6455, 5.2 and 5.5)."""


class FrameEnds:
    """Finds where the frames of a client end, so that pieces of frames are parsed as they arrive, and no two at once.

    One read may hold 40,000 frames, or compressed messages of a thousand times its size.
    """

    __slots__ = ("_has_failed", "_missing", "_start")

    def __init__(self) -> None:
        #: What has come of the bytes that tell how long the frame is, and how many bytes of it are to come after them.
        self._start = bytearray()
        self._missing = 0
        self._has_failed = False

    def take(self, arrived: bytearray) -> int:
        """Return how many of these bytes belong to the frame that they begin with or continue; they count as taken.

        Raises BadFrame, once: where the next frame would begin is unknown then, so all that follows is taken.
        """
        if self._has_failed:
            return len(arrived)
        size = self._missing
        if not size:
            taken = len(self._start)
            self._start += arrived[: _LONGEST_START - taken]
            try:
                size = _frame_size(self._start)
            except BadFrame:
                self._has_failed = True
                raise
            if not size:
                return len(arrived)
            size -= taken
            self._start.clear()
        taken = min(size, len(arrived))
        self._missing = size - taken
        return taken


def _frame_size(start: bytearray) -> int:
    """Return the bytes of the frame that starts so, the start included; 0 if the start is incomplete.

    Raises BadFrame: the length is written longer than it need be, or is that of no control frame.
    """
    if len(start) < 2:
        return 0
    size, length = 2, start[1] & 0x7F
    if length >= _TWO_BYTES_FOLLOW:
        if start[0] & _CONTROL:
            raise BadFrame(f"A control frame has at most {_TWO_BYTES_FOLLOW - 1} bytes.")
        is_long = length == _EIGHT_BYTES_FOLLOW
        size += 8 if is_long else 2
        if len(start) < size:
            return 0
        length = int.from_bytes(start[2:size])
        if length < (_LEAST_OF_EIGHT_BYTES if is_long else _TWO_BYTES_FOLLOW):
            raise BadFrame("The length of a frame is written in more bytes than it needs.")
    return size + length + (_MASK_SIZE if start[1] & 0x80 else 0)


class WebSocket:
    """A WebSocket, from the client's handshake to the end of its connection.

    With ``compress`` messages are compressed if the client asks for it, which takes 300 kB for each connection.
    """

    def __init__(self, request: Request, max_message_size: int, *, compress: bool = True) -> None:
        self._request = request
        extensions = [ServerPerMessageDeflateFactory()] if compress else []
        self._protocol = ServerProtocol(extensions=extensions, max_size=max_message_size, logger=_protocol_logger)
        self._connection: HttpConnection | None = None
        self._clock = running_time()
        #: When bytes of the client came last, by the time in which this process runs.
        self.heard_at = self._clock.now()
        self._max_size = max_message_size
        #: Received bytes that wait until there is room for messages, or for the event loop's next turn.
        self._unparsed = bytearray()
        self._frame_ends = FrameEnds()
        self._is_scheduled = False
        self._waiting: deque[Message] = deque()
        self._waiting_size = 0
        #: Bytes that the protocol has, of a frame that is incomplete; those of the message that the receiver has; all
        #: that count in the budget of the server.
        self._within_frame = self._taken_size = self._counted = 0
        self._is_closing = False
        self._waiter: asyncio.Future[None] | None = None
        self._lost = asyncio.Event()
        self._opcode: Opcode | None = None
        self._message = bytearray()
        self._protocol.receive_data(_head_of(request))
        handshake = next(iter(self._protocol.events_received()), None)
        self._response = self._protocol.accept(handshake) if isinstance(handshake, Handshake) else None

    @property
    def is_possible(self) -> bool:
        """Whether the request is a valid handshake."""
        response = self._response
        return self._request.upgrades and response is not None and response.status_code == _SWITCHING_PROTOCOLS

    @property
    def is_open(self) -> bool:
        """Whether messages can be sent: neither side has begun to close."""
        return self._connection is not None and self._protocol.state is OPEN

    @property
    def is_reader_slow(self) -> bool:
        """Whether so much output is unread that no input is taken."""
        return self._request.connection.pace.is_reader_slow

    def accept(self, headers: Iterable[Sequence[str]]) -> None:
        """Finish the handshake; add `headers`, which must be valid in HTTP, to the response."""
        response = self._response
        assert response is not None, "the request is no handshake"
        for name, value in headers:
            response.headers[name] = value
        self._response = None
        self._protocol.send_response(response)
        head = b"".join(self._protocol.data_to_send())
        self._request.status, self._request.stage = _SWITCHING_PROTOCOLS, ANSWERED
        self._connection = self._request.connection
        self._connection.upgrade(head, self)
        self._go_on()

    async def receive(self) -> Message:
        """Return the next message; after the last one, each call returns a `Kind.close`.

        The bytes of a message count in the budget of the server until the next call; see `hold`.
        """
        self._taken_size = 0
        self._count()
        while not self._waiting:
            if self._lost.is_set() and not self._unparsed:
                return Message(Kind.close, code=CloseCode.ABNORMAL_CLOSURE)
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        message = self._waiting.popleft()
        self._waiting_size -= len(message.data)
        self._taken_size = len(message.data)
        self._go_on_later()
        return message

    def hold(self, size: int) -> None:
        """Count bytes of messages that were received and are kept. Raises NoRoomError: the server has no room."""
        self._request.hold(size)

    def let_go(self, size: int) -> None:
        """Stop counting bytes that `hold` has counted."""
        self._request.let_go(size)

    async def send(self, data: bytes, *, is_text: bool) -> None:
        """Send a message, and wait until the client has read most of the output; do nothing once the socket closes.

        Raises ReaderStalled, ConnectionError: as `Pace.drained` does.
        """
        if not self.is_open:
            return
        (self._protocol.send_text if is_text else self._protocol.send_binary)(data)
        self._flush()
        await self._request.connection.pace.drained()

    def ping(self) -> None:
        """Send a ping; the client's answer arrives as a `Kind.pong`."""
        if self.is_open:
            self._protocol.send_ping(b"")
            self._flush()

    async def close(self, code: int, reason: bytes, limit: float) -> None:
        """Close the socket, and wait until the client closes it, too; after ``limit`` seconds drop the connection.

        What the client has sent and nobody has received yet is dropped. A code that must not be sent becomes 1011, an
        internal error; the reason is cut off after 123 bytes.
        """
        if self._connection is None:
            return
        if self.is_open:
            text = reason[:123].decode("utf-8", "ignore")
            try:
                self._protocol.send_close(code, text)
            except Exception:  # the library rejects an invalid code by raising
                self._protocol.send_close(CloseCode.INTERNAL_ERROR, text)
            self._flush()
        self._is_closing = True
        self._waiting.clear()
        self._waiting_size = 0
        self._count()
        self._go_on_later()
        try:
            async with asyncio.timeout(limit):
                await self._lost.wait()
        except TimeoutError:
            self._connection.abort()

    # Called by the connection.

    def data_received(self, data: bytes) -> None:
        self.heard_at = self._clock.now()
        self._unparsed += data
        self._count()
        if not self._is_scheduled:
            self._go_on()

    def connection_lost(self) -> None:
        self._lost.set()
        self._go_on_later()
        if not self._unparsed:
            self._end()
        self._wake()

    def _end(self) -> None:
        """Let the receiver know that no further message comes; let go of what would wait for the collector."""
        self._protocol.parser.close()  # its frame refers to the protocol, which has 300 kB where it compresses
        self._wake()

    def writable_again(self) -> None:
        if not self._is_scheduled:
            self._go_on()

    def _go_on_later(self) -> None:
        if not self._unparsed:
            self._set_pace()
        elif self._connection is not None and not self._is_scheduled:
            self._is_scheduled = True
            self._connection.turns.put_off(self._go_on)

    def _go_on(self) -> None:
        """Parse what has arrived, while there is room for messages and the slice of this turn lasts."""
        self._is_scheduled = False
        if self._connection is None:
            return
        self._flush()
        end = self._connection.turns.end_of_slice()
        while self._unparsed and self._has_room:
            try:
                size = self._frame_ends.take(self._unparsed)
            except BadFrame as error:
                self._drop_input()
                self._protocol.fail(CloseCode.PROTOCOL_ERROR, str(error))
                self._flush()
                break
            piece = bytes(self._unparsed[:size])
            del self._unparsed[:size]
            self._parse(piece)
            if monotonic() > end:
                break
        self._count()
        if self._unparsed and self._has_room:
            self._go_on_later()
        if self._lost.is_set() and not self._unparsed:
            self._end()
        self._set_pace()

    @property
    def _has_room(self) -> bool:
        """Whether more may be parsed: the receiver keeps up, and the client reads what it is sent, pongs included."""
        may_wait = len(self._waiting) < _MAX_WAITING and self._waiting_size < self._max_size
        return may_wait and (self._lost.is_set() or not self.is_reader_slow)

    def _parse(self, data: bytes) -> None:
        self._protocol.receive_data(data)
        events = self._protocol.events_received()
        self._within_frame = 0 if events or self._protocol.state is not OPEN else self._within_frame + len(data)
        for event in events:
            if isinstance(event, Frame):
                self._take(event)
        self._flush()

    def _take(self, frame: Frame) -> None:
        if frame.opcode is Opcode.CLOSE:
            received = self._protocol.close_rcvd
            if received is not None:
                self._tell(Message(Kind.close, received.reason.encode(), received.code))
        elif frame.opcode is Opcode.PONG:
            self._tell(Message(Kind.pong))
        elif frame.opcode is not Opcode.PING:
            if frame.opcode is not Opcode.CONT:
                self._opcode = frame.opcode
            self._message += frame.data
            if frame.fin:
                self._take_message()

    def _take_message(self) -> None:
        data, self._message = bytes(self._message), bytearray()
        is_text = self._opcode is Opcode.TEXT
        if is_text:
            try:
                data.decode()
            except UnicodeDecodeError as error:
                self._protocol.fail(CloseCode.INVALID_DATA, f"{error.reason} at position {error.start}")
                return
        self._tell(Message(Kind.text if is_text else Kind.binary, data))

    def _count(self) -> None:
        """Count what is here of the client's messages; close the socket if the server has no room for it."""
        here = len(self._unparsed) + self._within_frame + len(self._message) + self._waiting_size + self._taken_size
        if here < self._counted:
            self._request.let_go(self._counted - here)
        elif here > self._counted:
            try:
                self._request.hold(here - self._counted)
            except NoRoomError:
                self._refuse_more()
                return
        self._counted = here

    def _drop_input(self) -> None:
        self._is_closing = True
        self._unparsed.clear()
        self._message.clear()
        self._waiting.clear()
        self._within_frame = self._waiting_size = 0

    def _refuse_more(self) -> None:
        self._drop_input()
        self._protocol.fail(CloseCode.TRY_AGAIN_LATER, "The server has no room for this message now.")
        self._request.let_go(self._counted - self._taken_size)
        self._counted = self._taken_size
        self._flush()

    def _tell(self, message: Message) -> None:
        if self._is_closing and message.kind is not Kind.close:
            return  # the client has sent it before it knew that the server closes; its own close comes after it
        self._waiting.append(message)
        self._waiting_size += len(message.data)
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _flush(self) -> None:
        connection = self._connection
        if connection is None:
            return
        for data in self._protocol.data_to_send():
            if data != SEND_EOF:
                connection.write(data)
            elif self._protocol.close_rcvd is not None:
                connection.close()
            else:  # the client may still send, and a reset would keep it from reading why the socket closes
                connection.linger()

    def _set_pace(self) -> None:
        """Read from the client, or pause reading while messages or bytes wait."""
        if self._connection is not None:
            self._connection.set_reading(self._has_room and not self._unparsed)


def _head_of(request: Request) -> bytes:
    lines = [request.target.encode("utf-8", "surrogateescape").join((b"GET ", b" HTTP/1.1"))]
    lines += [b": ".join(header) for header in request.raw_headers]
    return b"\r\n".join((*lines, b"", b""))
