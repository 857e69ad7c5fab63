"""Parses bytes into frames: the connection preface, complete frames, and whole header blocks."""

import math
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Final

from torchserve_py.net.http2 import frames
from torchserve_py.net.http2.abuse_allowance import AbuseAllowance
from torchserve_py.net.http2.frames import ConnectionFailed, ErrorCode, StreamFailed
from torchserve_py.net.http2.header_decoder import MAX_HEADER_LIST_SIZE

MAX_FRAME_SIZE: Final = 65_536
#: Header blocks of up to so many bytes are usual. A larger block costs as much allowance as a frame for each …
_USUAL_HEADERS: Final = 8192
#: … of so many bytes.
_HEADERS_PER_UNIT: Final = 64

#: The frames that calls are made of.
_OF_CALLS: Final = frozenset(
    {frames.DATA, frames.HEADERS, frames.CONTINUATION, frames.RST_STREAM, frames.WINDOW_UPDATE}
)

#: Gets a frame's flags, stream and payload.
FrameHandler = Callable[[int, int, bytes], None]


class FrameReader:
    """Splits a client's bytes into frames, for handlers by kind; HEADERS include their CONTINUATION frames.

    ``stream_failed`` gets what a handler raises for a violation within one stream, which ends only that stream.
    """

    def __init__(
        self,
        handlers: Mapping[int, FrameHandler],
        allowance: AbuseAllowance,
        stream_failed: Callable[[StreamFailed], None],
    ) -> None:
        #: Whether the client has said that it speaks HTTP/2.
        self.is_greeted = False
        #: How many frames, and headers in one piece, were complete so far.
        self.units = 0
        self._handlers = {
            **handlers,
            frames.HEADERS: self._on_headers,
            frames.CONTINUATION: self._on_continuation,
            frames.PUSH_PROMISE: _on_push_promise,
            frames.GOAWAY: _on_goaway,
        }
        self._take_headers = handlers[frames.HEADERS]
        self._stream_failed = stream_failed
        self._allowance = allowance
        self._rest = b""
        self._has_preface = False
        self._block: bytearray | None = None  # of headers that go on in CONTINUATION frames …
        self._block_of = (0, 0)  # … with these flags, for this stream

    def close(self) -> None:
        """Take no more bytes, and let go of those that wait, and of the handlers, which refer to the connection."""
        self._rest, self._block = b"", None
        self._handlers = {}
        del self._take_headers, self._stream_failed

    @property
    def is_midway(self) -> bool:
        """Whether a frame, or a header block that spans several frames, is incomplete."""
        return bool(self._rest) or self._block is not None

    def feed(self, data: bytes, until: float = math.inf) -> bool:
        """Hand over the frames that are complete with ``data``: one, and more until the time ``until`` (`monotonic`).

        Return whether all were handed over; if not, call `feed` without data in a later turn. Raises ConnectionFailed:
        the frames violate the protocol, or a handler raised it.
        """
        if self._rest:
            data = self._rest + data
        offset, end = 0, len(data)
        if not self._has_preface:
            if not frames.PREFACE.startswith(data[: len(frames.PREFACE)]):
                raise ConnectionFailed(ErrorCode.PROTOCOL_ERROR, "this is no HTTP/2")
            if end < len(frames.PREFACE):
                self._rest = data
                return True
            self._has_preface = True
            offset = len(frames.PREFACE)
        begun = offset
        while end - offset >= frames.HEADER_SIZE:
            if offset > begun and monotonic() > until:
                self._rest = data[offset:]
                return False
            length, kind, flags, stream_id = frames.parse_header(data, offset)
            if length > MAX_FRAME_SIZE:
                raise ConnectionFailed(ErrorCode.FRAME_SIZE_ERROR, f"a frame of {length} bytes")
            start = offset + frames.HEADER_SIZE
            if end - start < length:
                break
            offset = start + length
            self._take(kind, flags, stream_id, data[start:offset])
            if self._block is None:
                self.units += 1
        self._rest = data[offset:]
        return True

    def _take(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if not self.is_greeted:
            if kind != frames.SETTINGS or flags & frames.ACK:
                raise ConnectionFailed(ErrorCode.PROTOCOL_ERROR, "the first frame is not SETTINGS")
            self.is_greeted = True
        if self._block is not None and kind != frames.CONTINUATION:
            raise ConnectionFailed(ErrorCode.PROTOCOL_ERROR, "headers that are not continued")
        if kind not in _OF_CALLS or (not payload and kind != frames.DATA):
            self._allowance.spend(max(1, len(payload) // frames.SETTING_SIZE) if kind == frames.SETTINGS else 1)
        handler = self._handlers.get(kind)
        if handler is not None:  # RFC 9113 (5.5): unknown frames are ignored
            try:
                handler(flags, stream_id, payload)
            except StreamFailed as error:
                self._stream_failed(error)

    def _on_headers(self, flags: int, stream_id: int, payload: bytes) -> None:
        if not stream_id % 2:
            raise ConnectionFailed(ErrorCode.PROTOCOL_ERROR, f"headers of stream {stream_id}")
        payload = frames.unpadded(payload, flags)
        if flags & frames.HAS_PRIORITY:
            if len(payload) < frames.PRIORITY_SIZE:
                raise ConnectionFailed(ErrorCode.FRAME_SIZE_ERROR, "headers without their priority")
            if frames.depends_on(payload) == stream_id:
                flags |= frames.DEPENDS_ON_ITSELF
            payload = payload[frames.PRIORITY_SIZE :]
        if flags & frames.END_HEADERS:
            self._hand_over(flags, stream_id, payload)
        else:
            self._block, self._block_of = bytearray(payload), (flags, stream_id)

    def _on_continuation(self, flags: int, stream_id: int, payload: bytes) -> None:
        if self._block is None or stream_id != self._block_of[1]:
            raise ConnectionFailed(ErrorCode.PROTOCOL_ERROR, "a continuation of nothing")
        self._block += payload
        if len(self._block) > MAX_HEADER_LIST_SIZE:
            raise ConnectionFailed(ErrorCode.ENHANCE_YOUR_CALM, "headers larger than 64 KiB")
        if flags & frames.END_HEADERS:
            block, self._block = bytes(self._block), None
            self._hand_over(*self._block_of, block)

    def _hand_over(self, flags: int, stream_id: int, block: bytes) -> None:
        if len(block) > _USUAL_HEADERS:
            self._allowance.spend((len(block) - _USUAL_HEADERS) // _HEADERS_PER_UNIT)
        self._take_headers(flags, stream_id, block)


def _on_push_promise(flags: int, stream_id: int, payload: bytes) -> None:
    raise ConnectionFailed(ErrorCode.PROTOCOL_ERROR, "clients promise nothing")


def _on_goaway(flags: int, stream_id: int, payload: bytes) -> None:
    """A client may say that it takes no more streams from the server, which opens none."""
    if stream_id:
        raise ConnectionFailed(ErrorCode.PROTOCOL_ERROR, "a GOAWAY of a stream")
    if len(payload) < 8:
        raise ConnectionFailed(ErrorCode.FRAME_SIZE_ERROR, f"GOAWAY with {len(payload)} bytes")
