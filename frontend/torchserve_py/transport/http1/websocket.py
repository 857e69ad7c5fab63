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

from torchserve_py.transport.http1.http_connection import HttpConnection
from torchserve_py.transport.http1.request import Request

_protocol_logger: Final = logging.getLogger(f"{__name__}.protocol")
_protocol_logger.setLevel(logging.WARNING)  # at lower levels the library logs every connection

#: Messages that may wait to be received; at this number, or at the size that one may have, reading from the client
#: pauses.
_MAX_WAITING: Final = 16
#: Bytes parsed at a time, one slice at least in a turn of the event loop: one read may hold 40,000 frames, or
#: compressed messages of a thousand times its size.
_SLICE: Final = 512
_SWITCHING_PROTOCOLS: Final = 101


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


class WebSocket:
    """A WebSocket, from the client's handshake to the end of its connection.

    With ``compress`` messages are compressed if the client asks for it, which takes 300 kB for each connection.
    """

    def __init__(self, request: Request, max_message_size: int, *, compress: bool = True) -> None:
        self._request = request
        extensions = [ServerPerMessageDeflateFactory()] if compress else []
        self._protocol = ServerProtocol(extensions=extensions, max_size=max_message_size, logger=_protocol_logger)
        self._connection: HttpConnection | None = None
        self._max_size = max_message_size
        #: Received bytes that wait until there is room for messages, or for the event loop's next turn.
        self._unparsed = bytearray()
        self._is_scheduled = False
        self._waiting: deque[Message] = deque()
        self._waiting_size = 0
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
        self._request.status, self._request.is_answered = _SWITCHING_PROTOCOLS, True
        self._connection = self._request.connection
        self._connection.upgrade(head, self)
        self._go_on()

    async def receive(self) -> Message:
        """Return the next message; after the last one, each call returns a `Kind.close`."""
        while not self._waiting:
            if self._lost.is_set() and not self._unparsed:
                return Message(Kind.close, code=CloseCode.ABNORMAL_CLOSURE)
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        message = self._waiting.popleft()
        self._waiting_size -= len(message.data)
        self._go_on_later()
        return message

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
        self._go_on_later()
        try:
            async with asyncio.timeout(limit):
                await self._lost.wait()
        except TimeoutError:
            self._connection.abort()

    # Called by the connection.

    def data_received(self, data: bytes) -> None:
        self._unparsed += data
        if not self._is_scheduled:
            self._go_on()

    def connection_lost(self) -> None:
        self._lost.set()
        self._go_on_later()
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
            piece = bytes(self._unparsed[:_SLICE])
            del self._unparsed[:_SLICE]
            self._parse(piece)
            if monotonic() > end:
                break
        if self._unparsed and self._has_room:
            self._go_on_later()
        if self._lost.is_set() and not self._unparsed:
            self._wake()  # no further message comes
        self._set_pace()

    @property
    def _has_room(self) -> bool:
        """Whether more may be parsed: the receiver keeps up, and the client reads what it is sent, pongs included."""
        may_wait = len(self._waiting) < _MAX_WAITING and self._waiting_size < self._max_size
        return may_wait and (self._lost.is_set() or not self.is_reader_slow)

    def _parse(self, data: bytes) -> None:
        self._protocol.receive_data(data)
        for event in self._protocol.events_received():
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
