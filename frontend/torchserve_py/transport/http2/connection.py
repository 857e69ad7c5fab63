"""One HTTP/2 connection: frames in and out, and the calls that they carry.

What its calls have to send leaves together, once per turn of the event loop. Every limit of what a client can make the
server hold is here: the number of streams, the size of header blocks, the windows, and the answers that it does not
fetch.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, cast

from grpc import StatusCode

from torchserve_py.transport.http2 import frames, header_blocks
from torchserve_py.transport.http2.call import STREAM_WINDOW, Call
from torchserve_py.transport.http2.farewell import Farewell
from torchserve_py.transport.http2.frame_reader import MAX_FRAME_SIZE, FrameHandler, FrameReader
from torchserve_py.transport.http2.frames import ConnectionFailed, ErrorCode, StreamFailed
from torchserve_py.transport.http2.header_blocks import HeaderDecoder
from torchserve_py.transport.http2.methods import Methods
from torchserve_py.transport.http2.patience import Patience
from torchserve_py.transport.http2.peers import grpc_name, keep_alive
from torchserve_py.transport.http2.stalls import Stalls
from torchserve_py.transport.http2.stream import Stream, whole_response, write

logger = logging.getLogger(__name__)

#: How many bytes of all streams together a client may send before they were looked at.
_WINDOW: Final = 8 << 20
#: How long a client may take to say that it speaks HTTP/2 (seconds).
_GREETING_LIMIT: Final = 20.0
#: How many frames a client may leave unread of those that answer its own.
_MAX_UNREAD_FRAMES: Final = 10_000


class Connection(asyncio.Protocol):
    """One client.

    Args:
        methods: What it may call.
        opened: Called when the connection is there.
        closed: Called when it is gone and no handler of it runs any more.
    """

    def __init__(
        self, methods: Methods, opened: Callable[[Connection], None], closed: Callable[[Connection], None]
    ) -> None:
        #: The client's address, and the same as gRPC writes it.
        self.address: object = None
        self.peer = ""
        self._methods = methods
        self._opened = opened
        self._closed = closed
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._greeting: asyncio.TimerHandle | None = None
        self._farewell: Farewell | None = None
        self._stalls: Stalls | None = None
        self._patience = Patience()
        self._decoder = HeaderDecoder()
        self._calls: dict[int, Call] = {}
        self._running = 0
        self._last_id = 0
        self._refuses = False
        self._receive_window = _WINDOW
        self._send_window = frames.DEFAULT_WINDOW
        self._stream_window = frames.DEFAULT_WINDOW
        self._max_frame = frames.DEFAULT_MAX_FRAME_SIZE
        self._out: list[bytes] = []
        self._ready: dict[Call, None] = {}
        self._blocked: dict[Call, None] = {}
        self._writable = True
        self._flushes = False
        handlers = {
            frames.DATA: self._on_data,
            frames.HEADERS: self._on_headers,
            frames.PRIORITY: frames.check_priority,
            frames.RST_STREAM: self._on_rst_stream,
            frames.SETTINGS: self._on_settings,
            frames.PING: self._on_ping,
            frames.WINDOW_UPDATE: self._on_window_update,
        }
        within = {kind: self._within_stream(handler) for kind, handler in handlers.items()}
        self._reader = FrameReader(within, self._patience)

    # What the transport tells.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say hello."""
        self._transport = cast(asyncio.Transport, transport)
        keep_alive(self._transport)
        self.address = transport.get_extra_info("peername")
        self.peer = grpc_name(self.address)
        settings = {
            frames.MAX_CONCURRENT_STREAMS: self._methods.limits.streams,
            frames.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
            frames.MAX_FRAME_SIZE: MAX_FRAME_SIZE,
            frames.MAX_HEADER_LIST_SIZE: header_blocks.MAX_HEADER_LIST_SIZE,
        }
        self._out = [frames.settings(settings), frames.window_update(0, _WINDOW - frames.DEFAULT_WINDOW)]
        self._greeting = self._loop.call_later(_GREETING_LIMIT, self._transport.abort)
        self._stalls = Stalls(self._transport, self._calls, self._reset, self._methods.limits.stall)
        self._opened(self)
        self.flush()

    def data_received(self, data: bytes) -> None:
        """Take the frames that are complete."""
        if self._transport is None or self._transport.is_closing():
            return
        self._flushes = True  # at the end
        try:
            self._reader.feed(data)
        except ConnectionFailed as error:
            self._fail(error)
            return
        if self._greeting is not None and self._reader.is_greeted:
            self._greeting.cancel()
            self._greeting = None
        self.flush()

    def connection_lost(self, error: Exception | None) -> None:
        """Nobody is there any more."""
        self._transport = None
        for timer in (self._greeting, self._farewell, self._stalls):
            if timer is not None:
                timer.cancel()
        self._refuses = True
        for call in self._calls.values():
            call.abandon()
        self._calls.clear()
        self._ready.clear()
        self._blocked.clear()
        if not self._running:
            self._closed(self)

    def pause_writing(self) -> None:
        """The client reads more slowly than it is written to."""
        self._writable = False
        cast(Stalls, self._stalls).pause()

    def resume_writing(self) -> None:
        """It has caught up."""
        self._writable = True
        cast(Stalls, self._stalls).resume()
        self.flush()

    # What the server tells.

    def finish(self) -> None:
        """Take no more calls than those under way, and close when they have ended."""
        if self._refuses or self._farewell is not None:
            return
        if self._reader.is_greeted:
            self._farewell = Farewell(self._out, self._refuse)
        else:
            self._refuse()
        self.flush()

    def _refuse(self) -> None:
        self._refuses = True
        self._out.append(frames.goaway(self._last_id, ErrorCode.NO_ERROR))
        self._flush_soon()

    def abort(self) -> None:
        """End every call and close now."""
        if self._transport is not None:
            self._transport.abort()

    # What calls tell.

    def ready(self, call: Call) -> None:
        """There is something to send, by the end of this turn of the event loop."""
        self._ready[call] = None
        self._flush_soon()

    def give_window(self, stream_id: int, size: int) -> None:
        """Let the client send so many bytes more."""
        self._out.append(frames.window_update(stream_id, size))
        self._flush_soon()

    def task_started(self) -> None:
        """A handler runs."""
        self._running += 1

    def task_ended(self) -> None:
        """A handler runs no more."""
        self._running -= 1
        if self._transport is None and not self._running:
            self._closed(self)

    def _flush_soon(self) -> None:
        if not self._flushes:
            self._flushes = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Write what can leave now."""
        self._flushes = False
        if self._transport is None:
            return
        out = self._out
        if not self._writable:
            if len(out) > _MAX_UNREAD_FRAMES:
                self._transport.abort()
            return
        served = [call for call in self._ready if self._emit(call, out)]
        self._ready.clear()
        for call in served if self._blocked else ():  # next time it is the turn of the others first
            if self._blocked.pop(call, True) is None:
                self._blocked[call] = None
        if out:
            write(self._transport, out)
            self._out = []
        if self._refuses and not self._calls:
            self._transport.close()

    def _emit(self, call: Call, out: list[bytes]) -> int:
        stream = call.stream
        used = stream.emit(out, self._send_window, self._max_frame)
        self._send_window -= used
        if stream.has_ended:
            self._blocked.pop(call, None)
            if self._calls.pop(stream.id, None) is not None and not call.input_has_ended:
                out.append(frames.rst_stream(stream.id, ErrorCode.NO_ERROR))  # no more is wanted
            call.finished()
        elif stream.pending:
            self._blocked[call] = None
        return used

    def _fail(self, error: ConnectionFailed) -> None:
        """The client has broken the rules: say so and hang up."""
        logger.debug("The gRPC connection of %s ends: %s: %s", self.peer, error.code.name, error)
        if self._transport is not None:
            self._out.append(frames.goaway(self._last_id, error.code, str(error)))
            self._transport.write(b"".join(self._out))
            self._out = []
            self._transport.close()

    # Frames.

    def _within_stream(self, handler: FrameHandler) -> FrameHandler:
        """What breaks the rules in one stream ends that stream."""

        def handle(flags: int, stream_id: int, payload: bytes) -> None:
            try:
                handler(flags, stream_id, payload)
            except StreamFailed as error:
                self._patience.spend()  # with calls that the server is made to take back, too (CVE-2025-8671)
                self._reset(error.stream_id, error.code)

        return handle

    def _reset(self, stream_id: int, code: ErrorCode = ErrorCode.CANCEL) -> None:
        self._out.append(frames.rst_stream(stream_id, code))
        self._drop(stream_id)
        self._flush_soon()

    def _drop(self, stream_id: int) -> None:
        call = self._calls.pop(stream_id, None)
        if call is not None:
            self._ready.pop(call, None)
            self._blocked.pop(call, None)
            call.abandon()

    def _on_headers(self, flags: int, stream_id: int, block: bytes) -> None:
        head = self._decoder.decode(block)
        ends = bool(flags & frames.END_STREAM)
        call = self._calls.get(stream_id)
        if call is not None:
            if not ends or call.input_has_ended:
                raise StreamFailed(stream_id, ErrorCode.PROTOCOL_ERROR)
            call.end_input()
            return
        if stream_id <= self._last_id:
            if head is None and ends:
                return  # trailers that were under way when the call ended
            raise ConnectionFailed(ErrorCode.STREAM_CLOSED, f"headers of stream {stream_id}, which is closed")
        if self._refuses:
            return  # told in GOAWAY
        self._last_id = stream_id
        streams = self._methods.limits.streams
        if len(self._calls) >= streams or self._running >= 2 * streams:  # a handler may outlive its call
            raise StreamFailed(stream_id, ErrorCode.REFUSED_STREAM)
        if head is None:
            raise StreamFailed(stream_id, ErrorCode.PROTOCOL_ERROR)
        self._begin(stream_id, head, ends=ends)

    def _begin(self, stream_id: int, head: header_blocks.RequestHead, *, ends: bool) -> None:
        handler = self._methods.handlers.get(head.path)
        if head.http_status != 200:
            self._answer_at_once(stream_id, header_blocks.http_error(head.http_status), ends=ends)
        elif handler is None:
            block = header_blocks.trailers(StatusCode.UNIMPLEMENTED.value[0], "Method not found!", ())
            self._answer_at_once(stream_id, header_blocks.RESPONSE + block, ends=ends)
        else:
            stream = Stream(stream_id, self._stream_window)
            limit = self._methods.message_limits.get(head.path, self._methods.message_limit)
            call = Call(self, stream, head, handler, limit)
            self._calls[stream_id] = call
            if ends:
                call.end_input()

    def _answer_at_once(self, stream_id: int, block: bytes, *, ends: bool) -> None:
        self._out.append(whole_response(stream_id, block))
        if not ends:
            self._out.append(frames.rst_stream(stream_id, ErrorCode.NO_ERROR))

    def _on_data(self, flags: int, stream_id: int, payload: bytes) -> None:
        size = len(payload)
        self._receive_window -= size
        if self._receive_window < 0:
            raise ConnectionFailed(ErrorCode.FLOW_CONTROL_ERROR, "more data than the window of the connection")
        if self._receive_window < _WINDOW // 2:
            self._out.append(frames.window_update(0, _WINDOW - self._receive_window))
            self._receive_window = _WINDOW
        call = self._calls.get(stream_id)
        if call is None:
            self._check_not_idle(stream_id, "data")
            return
        if call.input_has_ended:
            raise StreamFailed(stream_id, ErrorCode.STREAM_CLOSED)
        call.receive_window -= size
        if call.receive_window < 0:
            raise StreamFailed(stream_id, ErrorCode.FLOW_CONTROL_ERROR)
        if payload:
            call.take_data(frames.unpadded(payload, flags))
        if flags & frames.END_STREAM:
            call.end_input()

    def _check_not_idle(self, stream_id: int, what: str) -> None:
        if not stream_id % 2 or (stream_id > self._last_id and not self._refuses):
            raise ConnectionFailed(ErrorCode.PROTOCOL_ERROR, f"{what} for stream {stream_id}")

    def _on_rst_stream(self, flags: int, stream_id: int, payload: bytes) -> None:
        frames.check_size(payload, 4, "RST_STREAM")
        self._check_not_idle(stream_id, "RST_STREAM")
        call = self._calls.get(stream_id)
        if call is not None and not call.is_served:
            self._patience.spend()
        self._drop(stream_id)

    def _on_settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise ConnectionFailed(ErrorCode.PROTOCOL_ERROR, "settings of a stream")
        if flags & frames.ACK:
            frames.check_size(payload, 0, "SETTINGS")
            return
        for name, value in dict(frames.parse_settings(payload)).items():  # the last of each counts
            if name == frames.INITIAL_WINDOW_SIZE:
                self._resize_windows(value)
            elif name == frames.MAX_FRAME_SIZE:
                self._max_frame = min(value, MAX_FRAME_SIZE)
        self._out.append(frames.header(0, frames.SETTINGS, frames.ACK, 0))

    def _resize_windows(self, size: int) -> None:
        change = size - self._stream_window
        self._stream_window = size
        for call in self._calls.values():
            call.stream.window += change
            if call.stream.window > frames.MAX_WINDOW:
                raise ConnectionFailed(ErrorCode.FLOW_CONTROL_ERROR, "a window of more than 2^31-1 bytes")
        self._unblock()

    def _unblock(self) -> None:
        self._ready |= self._blocked
        self._blocked.clear()

    def _on_ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise ConnectionFailed(ErrorCode.PROTOCOL_ERROR, "a ping in a stream")
        frames.check_size(payload, 8, "PING")
        if not flags & frames.ACK:
            self._out.append(frames.header(8, frames.PING, frames.ACK, 0) + payload)
        elif self._farewell is not None:
            self._farewell.take_pong(payload)

    def _on_window_update(self, flags: int, stream_id: int, payload: bytes) -> None:
        frames.check_size(payload, 4, "WINDOW_UPDATE")
        increment = frames.NUMBER.unpack(payload)[0] & frames.MAX_WINDOW
        if not stream_id:
            self._send_window += increment
            if not increment or self._send_window > frames.MAX_WINDOW:
                code = ErrorCode.FLOW_CONTROL_ERROR if increment else ErrorCode.PROTOCOL_ERROR
                raise ConnectionFailed(code, f"a window that grows by {increment}")
            self._unblock()
            return
        call = self._calls.get(stream_id)
        if call is None:
            self._check_not_idle(stream_id, "WINDOW_UPDATE")
            return
        call.stream.window += increment
        if not increment or call.stream.window > frames.MAX_WINDOW:
            raise StreamFailed(stream_id, ErrorCode.FLOW_CONTROL_ERROR if increment else ErrorCode.PROTOCOL_ERROR)
        if self._blocked.pop(call, True) is None:
            self._ready[call] = None
