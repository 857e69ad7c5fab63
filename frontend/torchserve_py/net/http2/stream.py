"""The sending half of one stream: headers, data within the flow-control window, trailers."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, NamedTuple

from torchserve_py.net.http2.frames import CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, header
from torchserve_py.net.http2.header_blocks import RESPONSE
from torchserve_py.net.unread import Unread

#: A writer pauses while more than this many bytes are unsent …
_HIGH_WATER: Final = 65_536
#: … until at most this many are left.
_LOW_WATER: Final = 16_384
#: How much is joined into one piece before it is written (bytes).
_JOIN_LIMIT: Final = 65_536
#: Data that is at least as long is not joined with its prefix (bytes).
_LARGE: Final = 16 * 1024


Buffer = bytes | bytearray | memoryview


class Stream:
    """The sending half of a stream; ``unread`` counts the bytes that the peer has not read."""

    __slots__ = ("_chunks", "_drained", "_head", "_trailers", "_unread", "credit", "has_ended", "id", "pending", "sent")

    def __init__(self, stream_id: int, unread: Unread) -> None:
        self.id = stream_id
        #: How many bytes of data the peer takes beyond the initial window of its streams; may be negative.
        self.credit = 0
        #: How many bytes of data have left.
        self.sent = 0
        self._unread = unread
        #: How many bytes of data wait to leave.
        self.pending = 0
        #: Whether the trailers have left.
        self.has_ended = False
        #: The headers of the response, until they have left.
        self._head = RESPONSE
        self._chunks: deque[Buffer] = deque()
        self._trailers: bytes | None = None
        self._drained: asyncio.Future[None] | None = None

    def send(self, prefix: bytes, data: Buffer) -> None:
        """Send data, which must not be changed afterwards, and a few bytes before it."""
        size = len(prefix) + len(data)
        self._chunks += (prefix, data) if len(data) >= _LARGE else (prefix + data,)
        self.pending += size
        self._unread.take(size)

    def end(self, block: bytes) -> None:
        """Send trailers behind everything else; in one block with the headers if there is no data."""
        self._trailers = block

    def discard(self) -> None:
        self._chunks.clear()
        self._unread.release(self.pending)
        self.pending = 0
        self._wake()

    @property
    def is_full(self) -> bool:
        """Whether so much data is unsent that the writer should wait."""
        return self.pending > _HIGH_WATER

    async def drained(self) -> None:
        """Wait until there is room."""
        if self.pending > _LOW_WATER:
            if self._drained is None:
                self._drained = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._drained)

    def emit(self, out: list[Buffer], allowance: int, max_frame: int) -> int:
        """Append frames that may leave to ``out``; return their bytes of data, at most ``allowance``.

        The allowance may be negative: a peer can make windows smaller than what was sent.
        """
        used = 0
        if self.pending:
            if self._head:
                _emit_headers(out, self.id, self._head, 0, max_frame)
                self._head = b""
            used = max(0, min(self.pending, allowance))
            self.credit -= used
            self.pending -= used
            self.sent += used
            self._unread.release(used)
            self._emit_data(out, used, max_frame)
            if self.pending <= _LOW_WATER:
                self._wake()
        if self._trailers is not None and not self.pending:
            _emit_headers(out, self.id, self._head + self._trailers, END_STREAM, max_frame)
            self._trailers = None
            self.has_ended = True
        return used

    def _emit_data(self, out: list[Buffer], size: int, max_frame: int) -> None:
        """Move the first ``size`` bytes, in as few frames as there can be."""
        chunks = self._chunks
        while size:
            left = length = min(size, max_frame)
            out.append(header(length, DATA, 0, self.id))
            while left:
                chunk = chunks.popleft()
                if len(chunk) > left:
                    view = memoryview(chunk)
                    chunks.appendleft(view[left:])
                    chunk = view[:left]
                out.append(chunk)
                left -= len(chunk)
            size -= length

    def _wake(self) -> None:
        if self._drained is not None:
            if not self._drained.done():
                self._drained.set_result(None)
            self._drained = None


def _emit_headers(out: list[Buffer], stream_id: int, block: bytes, flags: int, max_frame: int) -> None:
    if len(block) <= max_frame:
        out.append(header(len(block), HEADERS, END_HEADERS | flags, stream_id))
        out.append(block)
        return
    kind = HEADERS
    for start in range(0, len(block), max_frame):
        piece = block[start : start + max_frame]
        last = END_HEADERS if start + max_frame >= len(block) else 0
        out.append(header(len(piece), kind, flags | last, stream_id))
        out.append(piece)
        kind, flags = CONTINUATION, 0


def whole_response(stream_id: int, block: bytes) -> bytes:
    """Return a response that consists of one small header block."""
    return header(len(block), HEADERS, END_HEADERS | END_STREAM, stream_id) + block


def write(transport: asyncio.Transport, pieces: list[Buffer]) -> None:
    """Write all pieces at once; large pieces are not copied."""
    if len(pieces) < 64 and sum(map(len, pieces)) > _JOIN_LIMIT:
        transport.writelines(pieces)
    else:
        transport.write(b"".join(pieces))


class Progress(NamedTuple):
    """The bytes and complete messages that a call has received, and the bytes that it has sent, so far.

    ``awaits``: whether the call waits for the rest of a message; ``pending``: bytes that wait for the client's window.
    """

    awaits: bool
    received: int
    messages: int
    pending: int
    sent: int

    def stalls(self, now: Progress, least: float) -> bool:
        """Return whether the client has since sent or read fewer than ``least`` bytes that the call waits for."""
        if self.awaits and now.awaits and now.messages == self.messages and now.received - self.received < least:
            return True
        return bool(now.pending and self.pending) and now.sent - self.sent < min(self.pending, least)
