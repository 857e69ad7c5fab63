"""One HTTP/1.1 connection: it answers requests one after the other, and every wait has a time limit.

Input is parsed on arrival, in small slices, so that little is parsed ahead of the request that is being answered. While
a request with a complete body is being answered, later bytes stay unparsed; above `_MAX_HELD` of them the connection
stops reading from the client.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, cast

from torchserve_py.transport.http1.body_receiver import BodyReceiver
from torchserve_py.transport.http1.client_transport import ClientTransport
from torchserve_py.transport.http1.deadline import Deadline
from torchserve_py.transport.http1.errors import BadMessage, BodyError, BodyMalformed
from torchserve_py.transport.http1.parser import MAX_PIECE, Head, RequestParser
from torchserve_py.transport.http1.request import Request
from torchserve_py.transport.http1.response import CONTINUE
from torchserve_py.transport.http1.slow_clients import Pace
from torchserve_py.transport.turns import running_turns

if TYPE_CHECKING:
    from torchserve_py.transport.admission import Place
    from torchserve_py.transport.http1.http_server import HttpServer
    from torchserve_py.transport.http1.websocket import WebSocket

logger = logging.getLogger(__name__)

#: Bytes parsed at a time, one slice at least in a turn of the event loop. Small, because each byte can be expensive:
#: chunks and pipelined requests may be tiny.
_SLICE: Final = MAX_PIECE
#: Bytes that may wait unparsed behind a request that is being answered; above it, reading from the client pauses.
_MAX_HELD: Final = 64 * 1024
#: The rest of a body that is at least as long is received straight into the memory of the body (bytes).
_WORTH_RECEIVING: Final = 32 * 1024


class HttpConnection(ClientTransport):
    """The server's end of one connection; ``place`` is given back when the connection has ended."""

    def __init__(self, server: HttpServer, place: Place | None = None) -> None:
        super().__init__()
        self._place = place
        self.loop = server.loop
        self.peer: Any = None
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
        self._queue: deque[Request | BadMessage] = deque()
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
        self._upgraded: WebSocket | None = None

    # Callbacks of the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.peer = transport.get_extra_info("peername")
        self.is_secure = transport.get_extra_info("sslcontext") is not None
        self._server.opened(self)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        """Parse the bytes, and begin to answer the first request whose head is complete."""
        if self._upgraded is not None:
            self._upgraded.data_received(data)
        elif self._ignores_input:
            pass
        elif self._holds_input():
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
        self._held.clear()
        self._server.closed(self)
        if self._place is not None:
            self._place.leave()
        self.pace.left()
        if self._upgraded is not None:
            self._upgraded.connection_lost()
        current, self._current = self._current, None
        for request in (current, self._incoming, *self._queue):
            if isinstance(request, Request):
                request.lose()
        self._queue.clear()

    def pause_writing(self) -> None:
        self.pace.is_reader_slow = True

    def resume_writing(self) -> None:
        """Note that the client has caught up, and go on with what waited for it."""
        self.pace.caught_up()
        if self._upgraded is not None:
            self._upgraded.writable_again()
        if self._awaits_reader:
            self._awaits_reader = False
            self._next()

    # Callbacks of the parser, called during `_parse`; `received_of_body` calls `on_end`, too.

    def on_head(self, head: Head) -> None:
        self._awaits_head = False
        self._incoming = request = Request(head, self)
        self._queue.append(request)

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
        """Take bytes of a body with a length, or parse a slice of others; return how many bytes these were."""
        request = self._incoming
        if request is None or request.missing_size <= _SLICE:
            self._parse(view[:_SLICE])
            return _SLICE
        piece = view[: request.missing_size]
        if not request.take_body(piece):
            self.set_reading(False)
        self.received_of_body(request)
        return len(piece)

    def received_of_body(self, request: Request) -> None:
        """Go on after bytes of a body were taken that the parser has not seen."""
        if not request.missing_size:
            self._parser = RequestParser(self)
            self.on_end()
        self._advance()

    def _parse(self, data: bytes | memoryview) -> None:
        try:
            self._parser.feed(data)
        except BadMessage as error:
            if not self._ignores_input:  # otherwise the malformed bytes follow the last request and do not matter
                self._fail_input(error)
        rest = self._parser.rest
        if rest is not None:  # the request asks for a WebSocket
            self._parser = RequestParser(self)
            self._held += rest
        self._advance()

    def _fail_input(self, error: BadMessage) -> None:
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
        if isinstance(request, BadMessage):
            self._refuse(400, str(request))
            return
        self._current = request
        try:
            self._server.application.begin(request)
        except Exception:
            logger.exception("%s %s failed.", request.method, ascii(request.target))
            request.finish()
        if self._current is request and self._held and not request.is_complete:
            self._schedule()

    def finished(self, request: Request) -> None:
        """Go on to the next request; called by a request when it is finished."""
        if request is not self._current:
            return
        self._current = None
        if self._transport is None:
            return
        if self._upgraded is not None:
            self.close()
        elif not request.is_answered:
            self.reset()
        elif not request.keep_alive or self.is_closing:
            (self.linger if self._incoming is request or request.body_error else self.close)()
        elif self._incoming is request:  # drop the rest of the unread body, for a limited time
            self._draining = request
            self.set_reading(True)
            self._timer.start(self._limits.linger_seconds, self.linger)
            if self._held and not self.is_scheduled:
                self._schedule()
        else:
            self._next()

    def _next(self) -> None:
        """Process what arrived behind an answered request, or wait for more input."""
        if self.pace.is_reader_slow:
            self._awaits_reader = True
            self.pace.watch_reader()
        elif self._queue or self._held:
            self._timer.stop()
            self._schedule()
        elif self._ignores_input:
            self.close()
        else:
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

    def upgrade(self, head: bytes, receiver: WebSocket) -> None:
        """Send the head that switches protocols; from then on ``receiver`` gets all input."""
        self.write(head)
        self._upgraded = receiver
        self._timer.stop()
        held, self._held = bytes(self._held), bytearray()
        self.set_reading(True)
        receiver.data_received(held)

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
