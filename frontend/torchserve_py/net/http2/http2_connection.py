"""One HTTP/2 connection: frames in, and the calls that they carry.

The connection enforces all limits of a client: streams, the size of header blocks, windows, unread answers, and frames
that ask for nothing.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Mapping
from time import monotonic
from typing import TYPE_CHECKING, Final, Protocol, cast

from torchserve_py.net.admission import ConnectionPlace, peer_of
from torchserve_py.net.http2 import frames, header_blocks
from torchserve_py.net.http2.abuse_allowance import AbuseAllowance
from torchserve_py.net.http2.closed_streams import ClosedStreams
from torchserve_py.net.http2.frame_reader import MAX_FRAME_SIZE, FrameReader
from torchserve_py.net.http2.frames import ConnectionFailed, ErrorCode, StreamFailed
from torchserve_py.net.http2.grpc_messages import BadGrpcMessage
from torchserve_py.net.http2.grpc_status import StatusCode
from torchserve_py.net.http2.header_decoder import MAX_HEADER_LIST_SIZE, HeaderDecoder
from torchserve_py.net.http2.request_head import TRAILERS, RequestHead
from torchserve_py.net.http2.rpc import STREAM_WINDOW, Denied, Rpc, RpcLimits, RpcMethod
from torchserve_py.net.http2.stream import Buffer, Progress, whole_response, write
from torchserve_py.net.running_time import Deadline
from torchserve_py.net.turns import running_turns
from torchserve_py.net.unread import Unread, UnreadOfAll
from torchserve_py.net.unsent import unsent_size

if TYPE_CHECKING:
    from torchserve_py.net.decompression import Decompressor
    from torchserve_py.net.request_budget import RequestBudget

logger = logging.getLogger(__name__)

#: Bytes that a client may send on all streams together before the server has processed them.
_WINDOW: Final = 8 << 20
#: How long a client may take to say that it speaks HTTP/2 (seconds).
_GREETING_LIMIT: Final = 20.0
#: How long a client may take to answer the ping that comes with the first GOAWAY (seconds).
_PONG_LIMIT: Final = 5.0
_FAREWELL: Final = b"farewell"
_NOT_FOUND: Final = Denied(StatusCode.UNIMPLEMENTED, "Method not found!")
#: Bytes of answers handed to the transport at once; it may hold them until the client reads.
_WRITE_SIZE: Final = 1 << 20
#: The most unread frames that answer a client's own frames.
_MAX_UNREAD_FRAMES: Final = 10_000
#: For so many bytes of an answer the client may change a window for free …
_BYTES_PER_CHANGE: Final = 1024
#: … and so often at the beginning and at the end of a call: once for the stream, once for the connection.
_CHANGES_PER_CALL: Final = 2
_MAX_CHANGES: Final = 10_000
#: Going through so many calls because of a frame costs as much allowance as a frame.
_CALLS_PER_FRAME: Final = 32
#: A client is pinged when it has sent nothing for one to two times this long (seconds).
SILENCE: Final = 60.0
#: How long a client may take to answer (seconds), as with gRPC's own servers; some look only every 5 seconds.
ANSWER: Final = 20.0
_PING: Final = frames.header(8, frames.PING, 0, 0) + b"are-you?"
#: Bytes per second at which requests must arrive and answers must be read; the same as for HTTP/1.1 bodies.
_LEAST_RATE: Final = 500.0


class GrpcOwner(Protocol):
    """What a connection belongs to; it is `grpc_server.GrpcServer`."""

    methods: Mapping[str, RpcMethod]
    limits: RpcLimits
    budget: RequestBudget
    unread: UnreadOfAll
    decompressor: Decompressor

    def failed(self, peer: str, error: ConnectionFailed) -> None: ...
    def opened(self, connection: Http2Connection) -> None: ...
    def closed(self, connection: Http2Connection) -> None: ...


class Http2Connection(asyncio.Protocol):
    """One client of ``server``; ``place`` is given back when the connection is gone and its last handler has ended."""

    def __init__(self, server: GrpcOwner, place: ConnectionPlace | None = None) -> None:
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
        self._keep_alive: KeepAlive | None = None
        #: Whether the client has sent anything since `KeepAlive` last looked.
        self.was_heard = False
        self.allowance = AbuseAllowance()
        self._decoder = HeaderDecoder()
        self.calls: dict[int, Rpc] = {}
        self._ended = ClosedStreams()
        #: How many handlers run, those of calls that are over included.
        self.running = 0
        self._last_id = 0
        self._refuses = False
        self._receive_window = _WINDOW
        self.sender = FrameSender(self)
        handlers = {
            frames.DATA: self._on_data,
            frames.HEADERS: self._on_headers,
            frames.PRIORITY: frames.check_priority,
            frames.RST_STREAM: self._on_rst_stream,
            frames.SETTINGS: self._on_settings,
            frames.PING: self._on_ping,
            frames.WINDOW_UPDATE: self._on_window_update,
        }
        self.reader = FrameReader(handlers, self.allowance, self._stream_failed)

    # Callbacks of the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.peer = _grpc_name(peer_of(transport.get_extra_info("peername")))
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
        self._keep_alive = KeepAlive(self, self._transport)
        self.server.opened(self)
        self.sender.flush()

    def data_received(self, data: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        self.was_heard = True
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
        for timer in (self._greeting, self._farewell, self._stalls, self._keep_alive):
            if timer is not None:
                timer.cancel()
        self._stalls = self._keep_alive = None
        self._drop_all()
        self.reader.close()
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
        for rpc in self.calls.values():
            rpc.abandon()
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

    # Called by `Rpc`.

    def handler_ended(self) -> None:
        """Note that one of the running handlers has ended."""
        self.running -= 1
        self._leave()

    # Called by `FrameSender` and `Stalls`.

    def flushed(self) -> None:
        if self._refuses and not self.calls and self._transport is not None:
            self._transport.close()

    def answered(self, rpc: Rpc) -> None:
        """Note that the whole answer of a call has been sent."""
        stream_id = rpc.stream.id
        if self.calls.pop(stream_id, None) is not None:
            if rpc.input_has_ended:
                self._ended.add(stream_id)
            else:
                self.sender.out.append(frames.rst_stream(stream_id, ErrorCode.NO_ERROR))  # no more is wanted
                self._ended.add(stream_id, rpc.receive_window)
        rpc.finished()

    def reset(self, stream_id: int, code: ErrorCode = ErrorCode.CANCEL) -> None:
        self.sender.out.append(frames.rst_stream(stream_id, code))
        self._drop(stream_id, resets=True)
        self.sender.flush_soon()

    def _fail(self, error: ConnectionFailed) -> None:
        """End the connection with a GOAWAY that names the client's violation of the protocol."""
        self.server.failed(self.peer, error)
        if self._transport is not None:
            goaway = frames.goaway(self._last_id, error.code, str(error))
            self._transport.write(b"".join((*self.sender.out, goaway)))
            self._drop_all()
            self._transport.close()

    # Frames.

    def _stream_failed(self, error: StreamFailed) -> None:
        """End only the stream in which the client has violated the protocol."""
        self.allowance.spend()  # the client makes the server reset calls (CVE-2025-8671)
        self.reset(error.stream_id, error.code)

    def _drop(self, stream_id: int, *, resets: bool) -> None:
        """Forget a call that is over; with ``resets`` the server ends it, and the client may still send frames."""
        rpc = self.calls.pop(stream_id, None)
        if rpc is not None:
            self._ended.add(stream_id, rpc.receive_window if resets and not rpc.input_has_ended else None)
            self.sender.drop(rpc)
            rpc.abandon()

    def _on_headers(self, flags: int, stream_id: int, block: bytes) -> None:
        head = self._decoder.decode(block)
        ends = bool(flags & frames.END_STREAM)
        rpc = self.calls.get(stream_id)
        if rpc is not None:
            if rpc.input_has_ended:
                raise StreamFailed(stream_id, ErrorCode.STREAM_CLOSED)
            if head is not TRAILERS or not ends or flags & frames.DEPENDS_ON_ITSELF:
                raise StreamFailed(stream_id, ErrorCode.PROTOCOL_ERROR)
            rpc.end_input()
            return
        if stream_id <= self._last_id:
            self._ended.take_headers(stream_id, are_trailers=head is TRAILERS and ends)
            self.allowance.spend()
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
        admitted = _NOT_FOUND if method is None else method.admit and method.admit(head.metadata, self.peer)
        if method is not None and not isinstance(admitted, Denied):
            try:
                rpc = self.calls[stream_id] = Rpc(self, stream_id, head, method, admitted)
            except BadGrpcMessage as error:
                admitted = Denied(error.code, str(error))
            else:
                self.sender.allow_changes()
                if ends:
                    rpc.end_input()
        if isinstance(admitted, Denied):
            block = header_blocks.trailers(admitted.code, admitted.details, admitted.metadata)
            self._answer_at_once(stream_id, header_blocks.RESPONSE + block, ends=ends)

    def _answer_at_once(self, stream_id: int, block: bytes, *, ends: bool) -> None:
        self.allowance.spend()
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
            self.allowance.spend()
        rpc = self.calls.get(stream_id)
        if rpc is None:
            self._check_not_idle(stream_id, "data")
            if stream_id > self._last_id or self._ended.take_data(stream_id, size, ends=ends):
                self.allowance.spend()
            return
        if rpc.input_has_ended:
            raise StreamFailed(stream_id, ErrorCode.STREAM_CLOSED)
        rpc.receive_window -= size
        if rpc.receive_window < 0:
            raise StreamFailed(stream_id, ErrorCode.FLOW_CONTROL_ERROR)
        if content:
            rpc.take_data(content)
        if ends:
            rpc.end_input()

    def _check_not_idle(self, stream_id: int, what: str) -> None:
        if not stream_id % 2 or (stream_id > self._last_id and not self._refuses):
            raise ConnectionFailed(ErrorCode.PROTOCOL_ERROR, f"{what} for stream {stream_id}")

    def _on_rst_stream(self, flags: int, stream_id: int, payload: bytes) -> None:
        frames.check_size(payload, 4, "RST_STREAM")
        self._check_not_idle(stream_id, "RST_STREAM")
        rpc = self.calls.get(stream_id)
        if rpc is None or not rpc.has_begun:
            self.allowance.spend()
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
        rpc = self.calls.get(stream_id)
        if rpc is not None:
            self.sender.widen_stream(rpc, increment)
        else:
            self._check_not_idle(stream_id, "WINDOW_UPDATE")
            self.allowance.spend()


def _grpc_name(address: object) -> str:
    """Return ``ipv4:127.0.0.1:5``, ``ipv6:%5B::1%5D:5``, or ``unknown`` for other addresses."""
    if not isinstance(address, tuple):
        return "unknown"
    host, port = address[:2]
    return f"ipv6:%5B{host}%5D:{port}" if ":" in host else f"ipv4:{host}:{port}"


class FrameSender:
    """The sending half of a connection: its control frames, and the answers of its calls as the windows allow.

    Everything that is ready in one turn of the event loop is sent in one write. A call is ready when it has something
    new to send, waits while the window of the connection or the transport's buffer is full, and is parked while its own
    window is full. Changing windows costs a peer frames in proportion to the work that the changes cause (RFC 9113,
    6.9).
    """

    def __init__(self, connection: Http2Connection) -> None:
        #: Frames to be sent next.
        self.out: list[Buffer] = []
        self.max_frame = frames.DEFAULT_MAX_FRAME_SIZE
        #: Whether the transport takes more.
        self.writable = True
        #: Where to write; None before the connection begins, and once it has ended.
        self.transport: asyncio.Transport | None = None
        self._connection: Http2Connection = weakref.proxy(connection)  # which refers to this
        self._calls = connection.calls
        self._allowance = connection.allowance
        self._loop = asyncio.get_running_loop()
        self._turns = running_turns()
        self._window = frames.DEFAULT_WINDOW
        self._initial_window = frames.DEFAULT_WINDOW
        self._most_credit = 0  # at least the credit of every stream
        self._free_changes = 0
        self._ready: dict[Rpc, None] = {}
        self._waiting: dict[Rpc, None] = {}
        self._parked: dict[Rpc, None] = {}
        self._scheduled = False
        self._is_put_off = False

    def close(self) -> None:
        """Stop sending: the connection has ended."""
        self.transport = None
        for each in (self._ready, self._waiting, self._parked, self.out):
            each.clear()

    def drop(self, rpc: Rpc) -> None:
        """Forget a call; it sends nothing more."""
        self._ready.pop(rpc, None)
        self._waiting.pop(rpc, None)
        self._parked.pop(rpc, None)

    def ready(self, rpc: Rpc) -> None:
        """Send the new data of a call that is open by the end of this turn of the event loop."""
        if rpc.stream.id in self._calls:
            self._ready[rpc] = None
            self.flush_soon()

    def flush_soon(self) -> None:
        """Write by the end of this turn of the event loop."""
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self.flush)

    def give_window(self, stream_id: int, size: int) -> None:
        """Let the client send ``size`` more bytes in a stream."""
        self.out.append(frames.window_update(stream_id, size))
        self.flush_soon()

    def hold(self) -> None:
        """Write nothing until `flush` is called; the caller does so within this turn of the event loop."""
        self._scheduled = True

    def flush(self) -> None:
        """Write everything that can be sent now."""
        self._scheduled = False
        transport = self.transport
        if transport is None:
            return
        if not self.writable:
            if len(self.out) > _MAX_UNREAD_FRAMES:
                transport.abort()
            return
        room = _WRITE_SIZE
        end = self._turns.end_of_slice()
        is_over = False
        while self._ready and not is_over:
            rpc = next(iter(self._ready))
            del self._ready[rpc]
            room -= self._emit(rpc, 0 if self._waiting else min(room, self._window))
            is_over = monotonic() > end
        while self._waiting and room > 0 and self._window > 0 and not is_over:
            room -= self._emit(next(iter(self._waiting)), min(room, self._window))
            is_over = monotonic() > end
        if self.out:
            write(transport, self.out)
            self.out = []
        if self._ready or (self._waiting and self._window > 0):  # the rest leaves in a later turn
            self._put_off()
        self._connection.flushed()

    def _put_off(self) -> None:
        if not self._is_put_off:
            self._is_put_off = True
            self._turns.put_off(self._go_on)

    def _go_on(self) -> None:
        self._is_put_off = False
        self.flush()

    def _emit(self, rpc: Rpc, allowance: int) -> int:
        """Send as much of a call's answer as allowed; then queue, park or end the call."""
        stream = rpc.stream
        window = self._initial_window + stream.credit
        used = stream.emit(self.out, min(allowance, window), self.max_frame)
        self._window -= used
        if used:
            changes = used // _BYTES_PER_CHANGE + (0 if stream.pending else _CHANGES_PER_CALL)
            self.allow_changes(changes)
        if stream.has_ended:
            self._waiting.pop(rpc, None)
            if self._parked:
                self._parked.pop(rpc, None)
            self._connection.answered(rpc)
        elif stream.pending and window > used:
            if used:  # the others come first next time
                self._waiting.pop(rpc, None)
            self._waiting[rpc] = None
        else:
            if self._waiting:
                self._waiting.pop(rpc, None)
            if stream.pending:
                self._parked[rpc] = None
        return used

    def widen(self, increment: int) -> None:
        """Enlarge the window of the connection by ``increment`` bytes.

        Raises ConnectionFailed: the window would be too large, or grows by nothing, or such frames were too many.
        """
        self._window += increment
        if not increment or self._window > frames.MAX_WINDOW:
            code = ErrorCode.FLOW_CONTROL_ERROR if increment else ErrorCode.PROTOCOL_ERROR
            raise ConnectionFailed(code, f"a window that grows by {increment}")
        self._count_change()

    def widen_stream(self, rpc: Rpc, increment: int) -> None:
        """Enlarge the window of a call's stream by ``increment`` bytes.

        Raises StreamFailed: the window would be too large, or grows by nothing; ConnectionFailed: such frames were too
        many.
        """
        stream = rpc.stream
        stream.credit += increment
        window = self._initial_window + stream.credit
        if not increment or window > frames.MAX_WINDOW:
            raise StreamFailed(stream.id, ErrorCode.FLOW_CONTROL_ERROR if increment else ErrorCode.PROTOCOL_ERROR)
        self._most_credit = max(self._most_credit, stream.credit)
        if rpc in self._parked and window > 0:
            del self._parked[rpc]
            self._waiting[rpc] = None
        self._count_change()

    def resize(self, size: int) -> None:
        """Set the initial window of every stream, open ones included, to ``size`` bytes.

        Raises ConnectionFailed: the window of a stream would be too large, or such frames were too many.
        """
        if size + self._most_credit > frames.MAX_WINDOW:
            self._allowance.spend(len(self._calls) // _CALLS_PER_FRAME)
            self._most_credit = max((rpc.stream.credit for rpc in self._calls.values()), default=0)
            if size + self._most_credit > frames.MAX_WINDOW:
                raise ConnectionFailed(ErrorCode.FLOW_CONTROL_ERROR, "a window of more than 2^31-1 bytes")
        self._initial_window = size
        self._allowance.spend(len(self._parked) // _CALLS_PER_FRAME)
        for rpc in [each for each in self._parked if size + each.stream.credit > 0]:
            del self._parked[rpc]
            self._waiting[rpc] = None

    def allow_changes(self, count: int = _CHANGES_PER_CALL) -> None:
        """Let the client change windows so often for free; by default as often as for a call that begins."""
        self._free_changes = min(self._free_changes + count, _MAX_CHANGES)

    def _count_change(self) -> None:
        if self._free_changes:
            self._free_changes -= 1
        else:
            self._allowance.spend()


class Stalls:
    """Gives up calls and connections whose clients have stopped sending or reading, or nearly so.

    A connection is checked once per interval, without a timer per call: a call without progress between two checks has
    stalled for one to two intervals. Progress must reach a minimum rate; otherwise an occasional byte would keep a call
    open for ever. The connection is aborted if output does not leave, or if a frame stays incomplete.
    """

    def __init__(self, connection: Http2Connection, transport: asyncio.Transport) -> None:
        self._connection = connection
        self._transport = transport
        self._interval = connection.server.limits.stall
        #: The bytes that had not arrived at the client when its connection was last seen to wait for that.
        self.unsent: int | None = None
        self._unit: int | None = None
        self._seen: dict[Rpc, Progress] = {}
        self._timer = Deadline(asyncio.get_running_loop())
        self._timer.start(self._interval, self._look)

    def cancel(self) -> None:
        """Stop: the connection is gone."""
        self._timer.close()

    def _look(self) -> None:
        connection, reader = self._connection, self._connection.reader
        least = _LEAST_RATE * self._interval
        waits = self._transport.is_closing() or not connection.sender.writable
        unsent = unsent_size(self._transport) if waits else None
        stands = unsent is not None and self.unsent is not None and self.unsent - unsent < least
        unit = reader.units if reader.is_midway else None
        if stands or (unit is not None and unit == self._unit):
            self._transport.abort()
            return
        self.unsent, self._unit = unsent, unit
        before = self._seen
        self._seen = {rpc: rpc.progress for rpc in connection.calls.values()}
        for stream_id, rpc in tuple(connection.calls.items()):
            seen = before.get(rpc)
            if seen is not None and seen.stalls(self._seen[rpc], least):
                connection.reset(stream_id)
        self._timer.start(self._interval, self._look)


class KeepAlive:
    """Pings a client that has been silent for a while, and gives up one that does not answer: it is gone.

    TCP's keep-alive takes hours to find that out, and does not reach a client behind a proxy.
    """

    def __init__(self, connection: Http2Connection, transport: asyncio.Transport) -> None:
        self._connection = connection
        self._transport = transport
        #: The bytes that had not arrived at the client when its answer was last looked for.
        self._unsent = 0
        self._timer = Deadline(asyncio.get_running_loop())
        self._watch()

    def cancel(self) -> None:
        """Stop: the connection is gone."""
        self._timer.close()

    def _watch(self) -> None:
        self._connection.was_heard = False
        self._timer.start(SILENCE, self._ping)

    def _ping(self) -> None:
        sender = self._connection.sender
        if self._connection.was_heard or not sender.writable:  # `Stalls` watches those that do not read
            self._watch()
            return
        sender.out.append(_PING)
        sender.flush()
        self._unsent = unsent_size(self._transport)
        self._timer.start(ANSWER, self._check)

    def _check(self) -> None:
        """Give the client up, unless it has answered, or still fetches what was sent before the ping."""
        if self._connection.was_heard:
            self._watch()
            return
        unsent = unsent_size(self._transport)
        if unsent < self._unsent:
            self._unsent = unsent
            self._timer.start(ANSWER, self._check)
            return
        logger.info("The gRPC connection of %s ends: its client does not answer a ping.", self._connection.peer)
        self._transport.abort()
