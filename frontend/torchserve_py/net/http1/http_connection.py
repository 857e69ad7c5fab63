"""One HTTP/1.1 connection: it answers requests one after the other, and every wait has a time limit.

Input is parsed on arrival, in small slices, so that little is parsed ahead of the request that is being answered. While
a request with a complete body is being answered, later bytes stay unparsed; above `_MAX_HELD` of them the connection
stops reading from the client. `BodyReceiver` takes the connection's place while the rest of a large body arrives, and
`Pace` ends what a slow client would prolong.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from torchserve_py.net.admission import ConnectionPlace, client_of, peer_of
from torchserve_py.net.http1.errors import BadHttpMessage, BodyError, BodyMalformed, BodyTooSlow, ReaderStalled
from torchserve_py.net.http1.parser import MAX_PIECE, RequestParser
from torchserve_py.net.http1.request import CONTINUE, Buffer, Request
from torchserve_py.net.running_time import Deadline
from torchserve_py.net.turns import running_turns
from torchserve_py.net.unread import Unread
from torchserve_py.net.unsent import unsent_size

if TYPE_CHECKING:
    from torchserve_py.net.decompression import Decompressor
    from torchserve_py.net.request_budget import RequestBudget

logger = logging.getLogger(__name__)

#: Bytes parsed at a time, one slice at least in a turn of the event loop. Small, because each byte can be expensive:
#: chunks and pipelined requests may be tiny.
_SLICE: Final = MAX_PIECE
#: Bytes that may wait unparsed behind a request that is being answered; above it, reading from the client pauses.
_MAX_HELD: Final = 64 * 1024
#: The rest of a body that is at least as long is received straight into the memory of the body (bytes).
_WORTH_RECEIVING: Final = 32 * 1024
#: The size of the memory for unwanted bytes: the request was answered, or its body has failed.
_UNWANTED: Final = 64 * 1024
#: Bytes per second that a client must read of an answer, and send of a body, on average; otherwise one byte a minute
#: would keep a connection open for ever.
MIN_RATE: Final = 500.0
_NO_LINGERING: Final = struct.pack("ii", 1, 0)


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Time limits for clients (seconds)."""

    #: For a head, from its first byte.
    head_seconds: float
    #: Between two bytes of a body that the client sends, and of an answer that it reads.
    stall_seconds: float
    #: Between two requests; longer than common proxies keep their connections, who must not reuse a closed one.
    idle_seconds: float = 620.0
    #: For reading and dropping what a client still sends, so that it sees the answer.
    linger_seconds: float = 1.0


class Application(Protocol):
    """Answers requests; `endpoints.http_request.Application` does."""

    def request(self, connection: HttpConnection) -> Request:
        """Return an empty record for a request of a connection, which `Request.begin` answers."""

    def refusal(self, status: int, message: str, peer: Any) -> bytes:
        """Return the response, head and body, to bytes that never became a request; the connection closes after it."""


class HttpOwner(Protocol):
    """What a connection belongs to; it is `http_server.HttpServer`."""

    loop: asyncio.AbstractEventLoop
    application: Application
    is_leaving: bool
    limits: HttpLimits
    budget: RequestBudget
    decompressor: Decompressor

    def opened(self, connection: HttpConnection) -> None: ...
    def closed(self, connection: HttpConnection) -> None: ...


class Upgraded(Protocol):
    """What takes a connection over once the client has switched protocols; `net.websocket.WebSocket` is one."""

    def data_received(self, data: bytes) -> None: ...
    def writable_again(self) -> None: ...
    def connection_lost(self) -> None: ...


class ClientTransport(asyncio.Protocol):
    """What a connection does with its transport, which may be closed or gone at any time; then nothing is done."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._is_reading = True
        #: The count of what waits in the transport, while that is much.
        self._unread: Unread | None = None

    @property
    def is_connected(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def write(self, data: Buffer) -> None:
        """Send bytes; do nothing once the client has disconnected."""
        transport = self._transport
        if transport is not None and not transport.is_closing():
            transport.write(data)
            if self._unread is not None:
                self._unread.set(transport.get_write_buffer_size())

    def write_all(self, pieces: Sequence[Buffer]) -> None:
        """Send bytes as `write` does, without joining them."""
        transport = self._transport
        if transport is not None and not transport.is_closing():
            transport.writelines(pieces)
            if self._unread is not None:
                self._unread.set(transport.get_write_buffer_size())

    @property
    def unread_size(self) -> int:
        """Bytes that were written and have not arrived at the client."""
        return 0 if self._transport is None else unsent_size(self._transport)

    def abort(self) -> None:
        """Close the connection at once, and drop unsent output."""
        if self._transport is not None:
            self._transport.abort()

    def reset(self) -> None:
        """Close the connection at once, so that the client sees an error instead of an orderly end."""
        if self._transport is None:
            return
        connection = self._transport.get_extra_info("socket")
        if connection is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGERING)
        self._transport.abort()

    def set_reading(self, reading: bool) -> None:
        transport = self._transport
        if reading is self._is_reading or transport is None or transport.is_closing():
            return
        self._is_reading = reading
        (transport.resume_reading if reading else transport.pause_reading)()


class HttpConnection(ClientTransport):
    """The server's end of one connection; ``place`` is given back when the connection has ended."""

    def __init__(self, server: HttpOwner, place: ConnectionPlace | None = None) -> None:
        super().__init__()
        self.place = place
        self.loop = server.loop
        self.peer: Any = None
        #: Whose connection it is, see `admission.client_at`; empty for a client of a Unix socket.
        self.client = ""
        self.is_secure = False
        #: Whether the connection answers no further request, and whether it discards further input.
        self.is_closing = self._ignores_input = False
        self.turns = running_turns()
        self.budget, self.decompressor = server.budget, server.decompressor
        self._server = server
        self._limits = server.limits
        self._parser = RequestParser(self)
        self._timer = Deadline(server.loop)
        self.pace = Pace(self, self._timer, self._limits.stall_seconds)
        #: Requests that arrived after `_current`; last, the error if the bytes after them are malformed.
        self._queue: deque[Request | BadHttpMessage] = deque()
        #: The request that is being answered.
        self._current: Request | None = None
        #: The request whose body is arriving: `_current`, the last of `_queue`, or `_draining`.
        self._incoming: Request | None = None
        #: A request that was answered before its body had arrived; the rest of the body is read and dropped.
        self._draining: Request | None = None
        self._held = bytearray()
        #: Whether the next request waits until a slow client has read the previous answer.
        self._awaits_reader = False
        #: Whether `_go_on` is scheduled for a later turn of the event loop.
        self.is_scheduled = False
        #: Whether part of a head has arrived and its time limit is running.
        self._awaits_head = False
        self._upgraded: Upgraded | None = None

    # Callbacks of the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.peer = peer_of(transport.get_extra_info("peername"))
        self.client = client_of(self.peer) or ""
        self.is_secure = transport.get_extra_info("sslcontext") is not None
        self._server.opened(self)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        """Parse the bytes, and begin to answer the first request whose head is complete."""
        if self._upgraded is not None:
            self._upgraded.data_received(data)
        elif self._ignores_input:
            pass
        elif (self._current or self._queue or self._held or self._awaits_reader or self.is_scheduled) and (
            self._holds_input()
        ):
            self._hold(data)
        elif len(data) <= _SLICE and self._incoming is None:
            self._parse(data)
        else:
            self._feed(data)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Release everything; tell the request that is being answered that its client has disconnected."""
        self._transport = None
        self._ignores_input = self.is_closing = True
        self._timer.close()
        self._parser.close()
        self._held.clear()
        self._server.closed(self)
        if self.place is not None:
            self.place.leave()
        self.pace.on_disconnect()
        self._count_no_unread()
        upgraded, self._upgraded = self._upgraded, None
        if upgraded is not None:
            upgraded.connection_lost()
        lost = (self._current, self._incoming, *self._queue)
        self._current = self._incoming = self._draining = None  # they refer to the connection
        self._queue.clear()
        for request in lost:
            if isinstance(request, Request):
                request.lose()

    def pause_writing(self) -> None:
        self.pace.is_reader_slow = True
        if self._transport is not None:
            self._unread = Unread(self.budget.unread, self._give_up)
            self._unread.set(self._transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """Note that the client has caught up, and continue what waited for it."""
        self.pace.caught_up()
        self._count_no_unread()
        if self._upgraded is not None:
            self._upgraded.writable_again()
        if self._awaits_reader:
            self._awaits_reader = False
            self._next()  # the client has caught up

    def _count_no_unread(self) -> None:
        if self._unread is not None:
            self._unread.leave()
            self._unread = None

    def _give_up(self) -> None:
        """End the connection: its client leaves more bytes unread than any other, and the total is over the limit."""
        if self._unread is not None:
            logger.warning("Dropped a connection: its client leaves %d bytes unread.", self._unread.held)
        self._count_no_unread()
        self.reset()

    # Callbacks of the parser, called during `_parse`; `received_of_body` calls `on_end`, too.

    def new_head(self) -> Request:
        return self._server.application.request(self)

    def on_head(self, head: Request) -> None:
        self._awaits_head = False
        if self._server.is_leaving and not head.upgrades:
            head.keep_alive = False
        self._incoming = head
        self._queue.append(head)

    def on_body(self, data: bytes) -> None:
        if self._incoming is not None and not self._incoming.take_body(data):
            self.set_reading(False)

    def on_end(self) -> None:
        request, self._incoming = self._incoming, None
        if request is not None:
            request.is_complete = True
            if not request.keep_alive:
                self._ignores_input = True
        if self._draining is not None:
            self._draining = None
            self._await_head()

    # Input.

    def _holds_input(self) -> bool:
        """Whether input must stay unparsed until an earlier request has been answered."""
        current = self._current
        if current is not None and current.is_complete:
            return True
        return self._awaits_reader or self.is_scheduled or len(self._queue) > 0 or len(self._held) > 0

    def _hold(self, data: bytes | memoryview) -> None:
        self._held += data
        if len(self._held) > _MAX_HELD:
            self.set_reading(False)

    def _feed(self, data: bytes) -> None:
        view = memoryview(data)
        end = self.turns.end_of_slice()
        start = 0
        while start < len(data) and not self._ignores_input:
            if self._upgraded is not None:
                self._upgraded.data_received(bytes(view[start:]))
                return
            if self._holds_input():
                self._hold(view[start:])
                return
            if start and monotonic() > end:
                self._hold(view[start:])
                self._schedule()
                return
            start += self._take(view[start:])
        request, transport = self._incoming, self._transport
        if request is None or transport is None or request.missing_size < _WORTH_RECEIVING:
            return
        if not transport.is_closing() and request.room() is not None:
            transport.set_protocol(BodyReceiver(self, transport, request))

    def _take(self, view: memoryview) -> int:
        """Take bytes of a body with a length, or parse a slice of others; return how many bytes these were.

        Of such a body the parser sees no more than what came in one slice with the head: after a part that it has not
        seen, it could not tell where the body ends.
        """
        request = self._incoming
        if request is None or not request.missing_size:
            self._parse(view[:_SLICE])
            return _SLICE
        piece = view[: request.missing_size]
        if not request.take_body(piece):
            self.set_reading(False)
        self.received_of_body(request)
        return len(piece)

    def received_of_body(self, request: Request) -> None:
        """Continue after bytes of a body were taken that the parser has not seen."""
        if not request.missing_size:
            self._begin_parser()
            self.on_end()
        self._advance()

    def _parse(self, data: bytes | memoryview) -> None:
        try:
            self._parser.feed(data)
        except BadHttpMessage as error:
            if not self._ignores_input:  # otherwise the malformed bytes follow the last request and do not matter
                self._fail_input(error)
        rest = self._parser.rest
        if rest is not None:  # the request asks for a WebSocket
            self._begin_parser()
            self._held += rest
        self._advance()

    def _begin_parser(self) -> None:
        """Parse what comes next as the beginning of a request."""
        self._parser.close()
        self._parser = RequestParser(self)

    def _fail_input(self, error: BadHttpMessage) -> None:
        self._ignores_input = True
        incoming, self._incoming = self._incoming, None
        if incoming is None:
            self._queue.append(error)
        else:
            incoming.body_error = BodyMalformed(str(error))

    def _advance(self) -> None:
        """Take the next step after bytes were parsed: begin a request, or adjust time limits and reading."""
        if self._current is not None:
            self._check_body(self._current)
        elif self._draining is not None:
            if self._ignores_input:
                self.linger()
        elif self._awaits_reader or self.is_scheduled:
            pass
        elif self._queue:
            self._begin()
        elif self._parser.is_within_head and not self._awaits_head:
            self._await_head()

    def _await_head(self) -> None:
        """Start the time limit for the rest of a head, or for the first byte of the next one."""
        self._awaits_head = self._parser.is_within_head
        if not self._awaits_head:
            self._timer.start(self._limits.idle_seconds, self.close)
            return
        seconds = self._limits.head_seconds
        message = f"The head of the request did not arrive within request_head_timeout ({seconds:g} seconds)."
        self._timer.start(seconds, lambda: self._refuse(408, message))

    def _refuse(self, status: int, message: str) -> None:
        """Answer bytes that never became a request with an error, and close the connection."""
        self.write(self._server.application.refusal(status, message, self.peer))
        self.linger()

    # Bodies.

    def wait_for_body(self, *, ask: bool) -> None:
        """Limit the time for the rest of the current request's body; with ``ask``, send ``100 Continue`` first."""
        if ask:
            self.write(CONTINUE)
        if self._current is not None:
            self.pace.watch_body(self._current)
        self.set_reading(True)

    def _check_body(self, request: Request) -> None:
        if request.awaits_body and (request.is_complete or request.body_error):
            self._timer.stop()
            request.deliver_body()
        elif request.awaits_body:
            self.pace.body_grew(request)

    def give_up_body(self, request: Request, error: BodyError) -> None:
        """Read no more of a body that arrives too slowly."""
        self._ignores_input = True
        request.body_error = error
        request.deliver_body()

    # Requests, from beginning to end.

    def _begin(self) -> None:
        self._timer.stop()
        request = self._queue.popleft()
        if isinstance(request, BadHttpMessage):
            self._refuse(400, str(request))
            return
        self._current = request
        try:
            request.begin()
        except Exception:
            logger.exception("%s %s failed.", request.method, ascii(request.path))  # a query may hold a secret
            request.finish()
        if self._current is request and self._held and not request.is_complete:
            self._schedule()

    def finished(self, request: Request, *, is_answered: bool) -> None:
        """Turn to the next request; called by a request when it is finished."""
        if request is not self._current:
            return
        self._current = None
        if self._transport is None:
            return
        if self._upgraded is not None:
            self.close()
        elif not is_answered:
            self.reset()
        elif not request.keep_alive or self.is_closing:
            (self.linger if self._incoming is request or request.body_error else self.close)()
        elif self._incoming is request:  # drop the rest of the unread body, for a limited time
            self._draining = request
            self.set_reading(True)
            self._timer.start(self._limits.linger_seconds, self.linger)
            if self._held and not self.is_scheduled:
                self._schedule()
        elif self.pace.is_reader_slow:
            self._awaits_reader = True
            self.pace.watch_reader()
        else:
            self._next()

    def _next(self) -> None:
        """Process what arrived behind an answered request, or wait for more input."""
        if self._queue or self._held:
            self._timer.stop()
            self._schedule()
        elif self._ignores_input:
            self.close()
        else:
            if not self._is_reading:
                self.set_reading(True)
            self._await_head()

    def _schedule(self) -> None:
        """Continue in a later turn of the event loop, so that other connections get their turns in between."""
        self.is_scheduled = True
        self.turns.put_off(self._go_on)

    def _go_on(self) -> None:
        self.is_scheduled = False
        current = self._current
        if self._transport is None or self.is_closing:
            pass
        elif current is None and self._queue:
            self._begin()
        elif self._held and (current is None or not current.is_complete):
            held, self._held = bytes(self._held), bytearray()
            self.set_reading(True)
            self._feed(held)

    # Upgrading, closing and pausing.

    def upgrade(self, head: bytes, receiver: Upgraded) -> None:
        """Send the head that switches protocols; from then on ``receiver`` gets all input."""
        self.write(head)
        self._upgraded = receiver
        self._timer.stop()
        held, self._held = bytes(self._held), bytearray()
        self.set_reading(True)
        receiver.data_received(held)

    def close_after_requests(self) -> None:
        """Close the connection after the last request whose head has arrived; without one, after the next."""
        last = self._queue[-1] if self._queue else self._current
        if isinstance(last, Request) and self._upgraded is None:
            last.keep_alive = False

    def go_away(self) -> None:
        """Close the connection as soon as the request that is being answered is finished."""
        self.is_closing = True
        if self._current is None:
            self.close()

    def close(self) -> None:
        """Close the connection after the client has read all output, unless it reads too slowly."""
        self.is_closing = self._ignores_input = True
        self._timer.stop()
        if self._transport is None:
            return
        if self.unread_size:
            self.pace.watch_reader()
        self._transport.close()

    def linger(self) -> None:
        """Close the connection after reading input for a moment; otherwise the client might not see the answer."""
        self.is_closing = self._ignores_input = True
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if transport.can_write_eof():
            transport.write_eof()
        self.set_reading(True)
        self._timer.start(self._limits.linger_seconds, self.close)


class BodyReceiver(asyncio.BufferedProtocol):
    """The transport's protocol while the rest of a body arrives; afterwards the connection is the protocol again."""

    def __init__(self, connection: HttpConnection, transport: asyncio.Transport, request: Request) -> None:
        self._connection = connection
        self._transport = transport
        self._request = request
        self._unwanted: bytearray | None = None

    def get_buffer(self, sizehint: int) -> memoryview | bytearray:
        """Return the memory for the bytes that come next."""
        room = self._request.room()
        if room is None:
            self._unwanted = bytearray(_UNWANTED)
            return self._unwanted
        return room

    def buffer_updated(self, nbytes: int) -> None:
        """Take the bytes that were written to the memory."""
        if self._unwanted is not None:
            self._transport.set_protocol(self._connection)
            self._connection.data_received(bytes(self._unwanted[:nbytes]))
            return
        self._request.filled(nbytes)
        if self._request.missing_size:
            self._connection.received_of_body(self._request)
        else:  # the transport still uses the memory of the body
            self._connection.set_reading(False)
            self._connection.loop.call_soon(self._end)

    def _end(self) -> None:
        if self._connection.is_connected:
            self._transport.set_protocol(self._connection)
            self._connection.set_reading(True)
            self._connection.received_of_body(self._request)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._connection.connection_lost(exc)

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()


class Pace:
    """How slowly the client of a connection may read answers and send bodies.

    The connection, whose timer is ``timer``, is reset if its client does not read. ``stall_seconds``: how long the
    client may send or read nothing.
    """

    def __init__(self, connection: HttpConnection, timer: Deadline, stall_seconds: float) -> None:
        #: Whether the transport's write buffer is above its high-water mark.
        self.is_reader_slow = False
        self._connection: HttpConnection = weakref.proxy(connection)  # which refers to this
        self._timer = timer
        self._stall = stall_seconds
        self._waiters: list[asyncio.Future[None]] = []
        #: When the wait began, and how many bytes were unread then and at the latest check.
        self._since = 0.0
        self._unread_first = self._unread = 0

    def caught_up(self) -> None:
        """End the wait: the client has read most of the output."""
        self.is_reader_slow = False
        if self._waiters:
            self._timer.stop()
        self._end(None)

    def on_disconnect(self) -> None:
        """End the wait: the client has disconnected."""
        self._end(ConnectionResetError("The client has disconnected."))

    async def drained(self) -> None:
        """Wait until the client has read most of the output.

        Raises ReaderStalled: the client does not read; its connection is reset. ConnectionError: the client has
        disconnected.
        """
        if not self.is_reader_slow:
            return
        waiter = self._connection.loop.create_future()
        self._waiters.append(waiter)
        self.watch_reader()
        await waiter

    def watch_reader(self) -> None:
        """Reset the connection as soon as its client has stalled, or reads too slowly."""
        self._since = self._timer.clock.now()
        self._unread_first = self._unread = self._connection.unread_size
        self._timer.start(self._stall, self._check_reader)

    def _check_reader(self) -> None:
        unread = self._connection.unread_size
        slowest = MIN_RATE * (self._timer.clock.now() - self._since - self._stall)
        if unread < self._unread and self._unread_first - unread >= slowest:
            self._unread = unread
            self._timer.start(self._stall, self._check_reader)
            return
        problem = f"the client has read nothing for {self._stall:g} seconds"
        if unread < self._unread:
            problem = f"the client reads fewer than {MIN_RATE:g} bytes per second"
        logger.warning("Dropped a connection: %s.", problem)
        self._end(ReaderStalled(problem))
        self._connection.reset()

    def _end(self, error: Exception | None) -> None:
        for waiter in self._waiters:
            if waiter.done():
                continue
            if error is None:
                waiter.set_result(None)
            else:
                waiter.set_exception(error)
        self._waiters.clear()

    def watch_body(self, request: Request) -> None:
        """Start the limits for the body that ``request`` waits for."""
        self._since = self._timer.clock.now()
        self._timer.start(self._stall, lambda: self._give_up(request))

    def body_grew(self, request: Request) -> None:
        """Move the limit: a piece of the body has arrived, and more follows."""
        now = self._timer.clock.now()
        in_time = min(now, self._since + request.body_size / MIN_RATE) + self._stall
        self._timer.start(in_time - now, lambda: self._give_up(request))

    def _give_up(self, request: Request) -> None:
        seconds = self._timer.clock.now() - self._since
        message = (
            f"The request body arrives too slowly: {request.body_size} bytes in {seconds:.0f} seconds. Its bytes may"
            f" pause for {self._stall:g} seconds and must come at {MIN_RATE:g} bytes per second or more on average."
        )
        self._connection.give_up_body(request, BodyTooSlow(message))
