"""The sending half of one connection: its control frames, and the answers of its calls as the windows allow.

Everything that is ready in one turn of the event loop is sent in one write. A call is ready when it has something new
to send, waits while the window of the connection or the transport's buffer is full, and is parked while its own window
is full. Changing windows costs a peer frames in proportion to the work that the changes cause (RFC 9113, 6.9).
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import TYPE_CHECKING, Final

from torchserve_py.transport.http2 import frames
from torchserve_py.transport.http2.frames import ConnectionFailed, ErrorCode, StreamFailed
from torchserve_py.transport.http2.stream import Buffer, write
from torchserve_py.transport.turns import running_turns

if TYPE_CHECKING:
    from torchserve_py.transport.http2.call import Call
    from torchserve_py.transport.http2.http2_connection import Http2Connection

#: Bytes of answers handed to the transport at once; it may hold them until the client reads.
_WRITE_SIZE: Final = 1 << 20
#: The most unread frames that answer a client's own frames.
_MAX_UNREAD_FRAMES: Final = 10_000
#: For so many bytes of an answer the client may change a window for free …
_BYTES_PER_CHANGE: Final = 1024
#: … and so often at the begin and at the end of a call: once for the stream, once for the connection.
_CHANGES_PER_CALL: Final = 2
_MAX_CHANGES: Final = 10_000
#: Going through so many calls because of a frame costs as much patience as a frame.
_CALLS_PER_FRAME: Final = 32


class Sender:
    """The sending half of a connection."""

    def __init__(self, connection: Http2Connection) -> None:
        #: Frames to be sent next.
        self.out: list[Buffer] = []
        self.max_frame = frames.DEFAULT_MAX_FRAME_SIZE
        #: Whether the transport takes more.
        self.writable = True
        #: Where to write; None before the connection begins, and once it has ended.
        self.transport: asyncio.Transport | None = None
        self._connection = connection
        self._calls = connection.calls
        self._patience = connection.patience
        self._loop = asyncio.get_running_loop()
        self._turns = running_turns()
        self._window = frames.DEFAULT_WINDOW
        self._initial_window = frames.DEFAULT_WINDOW
        self._most_credit = 0  # at least the credit of every stream
        self._free_changes = 0
        self._ready: dict[Call, None] = {}
        self._waiting: dict[Call, None] = {}
        self._parked: dict[Call, None] = {}
        self._scheduled = False
        self._is_put_off = False

    def close(self) -> None:
        """Stop sending: the connection has ended."""
        self.transport = None
        for each in (self._ready, self._waiting, self._parked, self.out):
            each.clear()

    def drop(self, call: Call) -> None:
        """Forget a call; it sends nothing more."""
        self._ready.pop(call, None)
        self._waiting.pop(call, None)
        self._parked.pop(call, None)

    def ready(self, call: Call) -> None:
        """Send the new data of a call that is open by the end of this turn of the event loop."""
        if call.stream.id in self._calls:
            self._ready[call] = None
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
            call = next(iter(self._ready))
            del self._ready[call]
            room -= self._emit(call, 0 if self._waiting else min(room, self._window))
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

    def _emit(self, call: Call, allowance: int) -> int:
        """Send as much of a call's answer as allowed; then queue, park or end the call."""
        stream = call.stream
        window = self._initial_window + stream.credit
        used = stream.emit(self.out, min(allowance, window), self.max_frame)
        self._window -= used
        if used:
            changes = used // _BYTES_PER_CHANGE + (0 if stream.pending else _CHANGES_PER_CALL)
            self.allow_changes(changes)
        if stream.has_ended:
            self._waiting.pop(call, None)
            if self._parked:
                self._parked.pop(call, None)
            self._connection.answered(call)
        elif stream.pending and window > used:
            if used:  # the others come first next time
                self._waiting.pop(call, None)
            self._waiting[call] = None
        else:
            if self._waiting:
                self._waiting.pop(call, None)
            if stream.pending:
                self._parked[call] = None
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

    def widen_stream(self, call: Call, increment: int) -> None:
        """Enlarge the window of a call's stream by ``increment`` bytes.

        Raises StreamFailed: the window would be too large, or grows by nothing; ConnectionFailed: such frames were too
        many.
        """
        stream = call.stream
        stream.credit += increment
        window = self._initial_window + stream.credit
        if not increment or window > frames.MAX_WINDOW:
            raise StreamFailed(stream.id, ErrorCode.FLOW_CONTROL_ERROR if increment else ErrorCode.PROTOCOL_ERROR)
        self._most_credit = max(self._most_credit, stream.credit)
        if call in self._parked and window > 0:
            del self._parked[call]
            self._waiting[call] = None
        self._count_change()

    def resize(self, size: int) -> None:
        """Set the initial window of every stream, open ones included, to ``size`` bytes.

        Raises ConnectionFailed: the window of a stream would be too large, or such frames were too many.
        """
        if size + self._most_credit > frames.MAX_WINDOW:
            self._patience.spend(len(self._calls) // _CALLS_PER_FRAME)
            self._most_credit = max((call.stream.credit for call in self._calls.values()), default=0)
            if size + self._most_credit > frames.MAX_WINDOW:
                raise ConnectionFailed(ErrorCode.FLOW_CONTROL_ERROR, "a window of more than 2^31-1 bytes")
        self._initial_window = size
        self._patience.spend(len(self._parked) // _CALLS_PER_FRAME)
        for call in [each for each in self._parked if size + each.stream.credit > 0]:
            del self._parked[call]
            self._waiting[call] = None

    def allow_changes(self, count: int = _CHANGES_PER_CALL) -> None:
        """Let the client change windows so often for free; by default as often as for a call that begins."""
        self._free_changes = min(self._free_changes + count, _MAX_CHANGES)

    def _count_change(self) -> None:
        if self._free_changes:
            self._free_changes -= 1
        else:
            self._patience.spend()
