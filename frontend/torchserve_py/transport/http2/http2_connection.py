"""One HTTP/2 connection: frames in, and the calls that they carry.

The connection enforces all limits of a client: streams, the size of header blocks, windows, unread answers, and frames
that ask for nothing.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, cast

from grpc import StatusCode

from torchserve_py.transport.http2 import frames, header_blocks
from torchserve_py.transport.http2.call import STREAM_WINDOW, Call
from torchserve_py.transport.http2.closed_streams import ClosedStreams
from torchserve_py.transport.http2.frame_reader import MAX_FRAME_SIZE, FrameHandler, FrameReader
from torchserve_py.transport.http2.frames import ConnectionFailed, ErrorCode, StreamFailed
from torchserve_py.transport.http2.grpc_messages import BadMessage
from torchserve_py.transport.http2.header_decoder import MAX_HEADER_LIST_SIZE, HeaderDecoder
from torchserve_py.transport.http2.methods import Denied
from torchserve_py.transport.http2.patience import Patience
from torchserve_py.transport.http2.request_head import TRAILERS, RequestHead
from torchserve_py.transport.http2.sender import Sender
from torchserve_py.transport.http2.stalls import Stalls
from torchserve_py.transport.http2.stream import whole_response
from torchserve_py.transport.http2.unread import Unread
from torchserve_py.transport.turns import running_turns

if TYPE_CHECKING:
    from torchserve_py.transport.admission import Place
    from torchserve_py.transport.http2.grpc_server import GrpcServer

logger = logging.getLogger(__name__)

#: Bytes that a client may send on all streams together before the server has processed them.
_WINDOW: Final = 8 << 20
#: How long a client may take to say that it speaks HTTP/2 (seconds).
_GREETING_LIMIT: Final = 20.0

#: How long a client may take to answer the ping that comes with the first GOAWAY (seconds).
_PONG_LIMIT: Final = 5.0
_FAREWELL: Final = b"farewell"

_NOT_FOUND: Final = Denied(StatusCode.UNIMPLEMENTED, "Method not found!")


class Http2Connection(asyncio.Protocol):
    """One client of ``server``; ``place`` is given back when the connection is gone and its last handler has ended."""

    def __init__(self, server: GrpcServer, place: Place | None = None) -> None:
        #: The client's address as gRPC writes it.
        self.peer = ""
        #: The count of bytes that the client has not read.
        self.unread = Unread(server.unread, self._give_up)
        self.server = server
        self._place = place
        self._turns = running_turns()
        self._transport: asyncio.Transport | None = None
        self._greeting: asyncio.TimerHandle | None = None
        self._farewell: asyncio.TimerHandle | None = None
        self._stalls: Stalls | None = None
        self.patience = Patience()
        self._decoder = HeaderDecoder()
        self.calls: dict[int, Call] = {}
        self._ended = ClosedStreams()
        #: How many handlers run, those of calls that are over included.
        self.running = 0
        self._last_id = 0
        self._refuses = False
        self._receive_window = _WINDOW
        self.sender = Sender(self)
        handlers = {
            frames.DATA: self._on_data,
            frames.HEADERS: self._on_headers,
            frames.PRIORITY: frames.check_priority,
            frames.RST_STREAM: self._on_rst_stream,
            frames.SETTINGS: self._on_settings,
            frames.PING: self._on_ping,
            frames.WINDOW_UPDATE: self._on_window_update,
        }
        self.reader = FrameReader({kind: self._within_stream(each) for kind, each in handlers.items()}, self.patience)

    # Callbacks of the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.peer = _grpc_name(transport.get_extra_info("peername"))
        settings = {
            frames.MAX_CONCURRENT_STREAMS: self.server.limits.streams,
            frames.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
            frames.MAX_FRAME_SIZE: MAX_FRAME_SIZE,
            frames.MAX_HEADER_LIST_SIZE: MAX_HEADER_LIST_SIZE,
        }
        self.sender.transport = self._transport
        self.sender.out += [frames.settings(settings), frames.window_update(0, _WINDOW - frames.DEFAULT_WINDOW)]
        self._greeting = asyncio.get_running_loop().call_later(_GREETING_LIMIT, self._transport.abort)
        self._stalls = Stalls(self, self._transport)
        self.server.opened(self)
        self.sender.flush()

    def data_received(self, data: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        self.sender.hold()  # what is ready leaves at the end
        try:
            is_done = self.reader.feed(data, self._turns.end_of_slice())
        except ConnectionFailed as error:
            self._fail(error)
            return
        if self._greeting is not None and self.reader.is_greeted:
            self._greeting.cancel()
            self._greeting = None
        if not is_done:
            self._transport.pause_reading()
            self._turns.put_off(self._go_on)
        self.sender.flush()

    def _go_on(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
            self.data_received(b"")

    def connection_lost(self, error: Exception | None) -> None:
        """Drop everything: the client has disconnected."""
        for timer in (self._greeting, self._farewell, self._stalls):
            if timer is not None:
                timer.cancel()
        self._drop_all()
        self.unread.leave()
        self._transport = None
        self._leave()

    def _leave(self) -> None:
        if self._transport is None and not self.running:
            self.server.closed(self)
            if self._place is not None:
                self._place.leave()

    def _drop_all(self) -> None:
        self._refuses = True
        self.sender.close()
        for call in self.calls.values():
            call.abandon()
        self.calls.clear()

    def pause_writing(self) -> None:
        self.sender.writable = False

    def resume_writing(self) -> None:
        self.sender.writable = True
        cast(Stalls, self._stalls).unsent = None
        self.sender.flush()

    # Called by the server.

    def finish(self) -> None:
        """Refuse new calls, and close when the running ones have ended; no call is lost (RFC 9113, 6.8).

        The first GOAWAY only asks the client to open no more calls. The answer to the ping arrives behind all calls
        that the client opened before it read the GOAWAY. The last GOAWAY then names the last call that is served.
        """
        if self._refuses or self._farewell is not None:
            return
        if self.reader.is_greeted:
            self.sender.out.append(frames.goaway(frames.MAX_STREAM_ID, ErrorCode.NO_ERROR))
            self.sender.out.append(frames.header(len(_FAREWELL), frames.PING, 0, 0) + _FAREWELL)
            self._farewell = asyncio.get_running_loop().call_later(_PONG_LIMIT, self._refuse)
        else:
            self._refuse()
        self.sender.flush()

    def _refuse(self) -> None:
        self._refuses = True
        self.sender.out.append(frames.goaway(self._last_id, ErrorCode.NO_ERROR))
        self.sender.flush_soon()

    def abort(self) -> None:
        """End every call and close now."""
        if self._transport is not None:
            self._transport.abort()

    def _give_up(self) -> None:
        """End the connection: its client leaves more bytes unread than any other, and the total is over the limit."""
        logger.warning("The gRPC connection of %s ends: it leaves %d bytes unread.", self.peer, self.unread.held)
        self._drop_all()
        self.abort()

    # Called by `Call`.

    def handler_ended(self) -> None:
        """Note that one of the running handlers has ended."""
        self.running -= 1
        self._leave()

    # Called by `Sender` and `Stalls`.

    def flushed(self) -> None:
        if self._refuses and not self.calls and self._transport is not None:
            self._transport.close()

    def answered(self, call: Call) -> None:
        """Note that the whole answer of a call has been sent."""
        stream_id = call.stream.id
        if self.calls.pop(stream_id, None) is not None:
            if call.input_has_ended:
                self._ended.add(stream_id)
            else:
                self.sender.out.append(frames.rst_stream(stream_id, ErrorCode.NO_ERROR))  # no more is wanted
                self._ended.add(stream_id, call.receive_window)
        call.finished()

    def reset(self, stream_id: int, code: ErrorCode = ErrorCode.CANCEL) -> None:
        self.sender.out.append(frames.rst_stream(stream_id, code))
        self._drop(stream_id, resets=True)
        self.sender.flush_soon()

    def _fail(self, error: ConnectionFailed) -> None:
        """End the connection with a GOAWAY that names the client's violation of the protocol."""
        logger.debug("The gRPC connection of %s ends: %s: %s", self.peer, error.code.name, error)
        if self._transport is not None:
            goaway = frames.goaway(self._last_id, error.code, str(error))
            self._transport.write(b"".join((*self.sender.out, goaway)))
            self._drop_all()
            self._transport.close()

    # Frames.

    def _within_stream(self, handler: FrameHandler) -> FrameHandler:
        """Return a handler under which a violation within one stream ends only that stream."""

        def handle(flags: int, stream_id: int, payload: bytes) -> None:
            try:
                handler(flags, stream_id, payload)
            except StreamFailed as error:
                self.patience.spend()  # the client makes the server reset calls (CVE-2025-8671)
                self.reset(error.stream_id, error.code)

        return handle

    def _drop(self, stream_id: int, *, resets: bool) -> None:
        """Forget a call that is over; with ``resets`` the server ends it, and the client may still send frames."""
        call = self.calls.pop(stream_id, None)
        if call is not None:
            self._ended.add(stream_id, call.receive_window if resets and not call.input_has_ended else None)
            self.sender.drop(call)
            call.abandon()

    def _on_headers(self, flags: int, stream_id: int, block: bytes) -> None:
        head = self._decoder.decode(block)
        ends = bool(flags & frames.END_STREAM)
        call = self.calls.get(stream_id)
        if call is not None:
            if call.input_has_ended:
                raise StreamFailed(stream_id, ErrorCode.STREAM_CLOSED)
            if head is not TRAILERS or not ends or flags & frames.DEPENDS_ON_ITSELF:
                raise StreamFailed(stream_id, ErrorCode.PROTOCOL_ERROR)
            call.end_input()
            return
        if stream_id <= self._last_id:
            self._ended.take_headers(stream_id, are_trailers=head is TRAILERS and ends)
            self.patience.spend()
            return
        if self._refuses:
            return  # the client learns that from GOAWAY
        self._last_id = stream_id
        streams = self.server.limits.streams
        code = None
        if len(self.calls) >= streams or self.running >= 2 * streams:  # a handler may outlive its call
            code = ErrorCode.REFUSED_STREAM
        elif not isinstance(head, RequestHead) or flags & frames.DEPENDS_ON_ITSELF or (ends and head.content_length):
            code = ErrorCode.PROTOCOL_ERROR
        else:
            self._begin(stream_id, head, ends=ends)
        if code is not None:
            self._ended.add(stream_id, None if ends else STREAM_WINDOW)
            raise StreamFailed(stream_id, code)

    def _begin(self, stream_id: int, head: RequestHead, *, ends: bool) -> None:
        if head.http_status != 200:
            self._answer_at_once(stream_id, header_blocks.http_error(head.http_status), ends=ends)
            return
        method = self.server.methods.get(head.path)
        denied = _NOT_FOUND if method is None else method.admit and method.admit(head.metadata, self.peer)
        if method is not None and denied is None:
            try:
                call = self.calls[stream_id] = Call(self, stream_id, head, method)
            except BadMessage as error:
                denied = Denied(error.code, str(error))
            else:
                self.sender.allow_changes()
                if ends:
                    call.end_input()
        if denied is not None:
            block = header_blocks.trailers(denied.code.value[0], denied.details, denied.metadata)
            self._answer_at_once(stream_id, header_blocks.RESPONSE + block, ends=ends)

    def _answer_at_once(self, stream_id: int, block: bytes, *, ends: bool) -> None:
        self.patience.spend()
        self.sender.out.append(whole_response(stream_id, block))
        self._ended.add(stream_id, None if ends else STREAM_WINDOW)
        if not ends:
            self.sender.out.append(frames.rst_stream(stream_id, ErrorCode.NO_ERROR))

    def _on_data(self, flags: int, stream_id: int, payload: bytes) -> None:
        size = len(payload)
        self._receive_window -= size
        if self._receive_window < 0:
            raise ConnectionFailed(ErrorCode.FLOW_CONTROL_ERROR, "more data than the window of the connection")
        if self._receive_window < _WINDOW // 2:
            self.sender.out.append(frames.window_update(0, _WINDOW - self._receive_window))
            self._receive_window = _WINDOW
        content = frames.unpadded(payload, flags) if flags & frames.PADDED else payload
        ends = bool(flags & frames.END_STREAM)
        if not content and not ends:
            self.patience.spend()
        call = self.calls.get(stream_id)
        if call is None:
            self._check_not_idle(stream_id, "data")
            if stream_id > self._last_id or self._ended.take_data(stream_id, size, ends=ends):
                self.patience.spend()
            return
        if call.input_has_ended:
            raise StreamFailed(stream_id, ErrorCode.STREAM_CLOSED)
        call.receive_window -= size
        if call.receive_window < 0:
            raise StreamFailed(stream_id, ErrorCode.FLOW_CONTROL_ERROR)
        if content:
            call.take_data(content)
        if ends:
            call.end_input()

    def _check_not_idle(self, stream_id: int, what: str) -> None:
        if not stream_id % 2 or (stream_id > self._last_id and not self._refuses):
            raise ConnectionFailed(ErrorCode.PROTOCOL_ERROR, f"{what} for stream {stream_id}")

    def _on_rst_stream(self, flags: int, stream_id: int, payload: bytes) -> None:
        frames.check_size(payload, 4, "RST_STREAM")
        self._check_not_idle(stream_id, "RST_STREAM")
        call = self.calls.get(stream_id)
        if call is None or not call.has_begun:
            self.patience.spend()
        self._ended.forget(stream_id)
        self._drop(stream_id, resets=False)

    def _on_settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise ConnectionFailed(ErrorCode.PROTOCOL_ERROR, "settings of a stream")
        if flags & frames.ACK:
            frames.check_size(payload, 0, "SETTINGS")
            return
        for name, value in dict(frames.parse_settings(payload)).items():  # the last of each counts
            if name == frames.INITIAL_WINDOW_SIZE:
                self.sender.resize(value)
            elif name == frames.MAX_FRAME_SIZE:
                self.sender.max_frame = min(value, MAX_FRAME_SIZE)
        self.sender.out.append(frames.header(0, frames.SETTINGS, frames.ACK, 0))

    def _on_ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise ConnectionFailed(ErrorCode.PROTOCOL_ERROR, "a ping in a stream")
        frames.check_size(payload, 8, "PING")
        if not flags & frames.ACK:
            self.sender.out.append(frames.header(8, frames.PING, frames.ACK, 0) + payload)
        elif self._farewell is not None and payload == _FAREWELL and not self._refuses:
            self._farewell.cancel()
            self._refuse()

    def _on_window_update(self, flags: int, stream_id: int, payload: bytes) -> None:
        frames.check_size(payload, 4, "WINDOW_UPDATE")
        increment = frames.NUMBER.unpack(payload)[0] & frames.MAX_WINDOW
        if not stream_id:
            self.sender.widen(increment)
            return
        call = self.calls.get(stream_id)
        if call is not None:
            self.sender.widen_stream(call, increment)
        else:
            self._check_not_idle(stream_id, "WINDOW_UPDATE")
            self.patience.spend()


def _grpc_name(address: object) -> str:
    """Return ``ipv4:127.0.0.1:5``, ``ipv6:%5B::1%5D:5``, or ``unknown`` for other addresses."""
    if not isinstance(address, tuple):
        return "unknown"
    host, port = address[:2]
    return f"ipv6:%5B{host}%5D:{port}" if ":" in host else f"ipv4:{host}:{port}"
