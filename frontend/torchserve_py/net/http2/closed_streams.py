"""Recently ended streams, and the frames of them that may still arrive (RFC 9113, 5.1).

After a stream that the client has ended, frames are violations. If the server ended the stream before the client had
sent everything, frames that the client sent before it knew are legitimate.
"""

from typing import Final

from torchserve_py.net.http2.frames import ConnectionFailed, ErrorCode, StreamFailed

#: How many streams are remembered.
_REMEMBERED: Final = 128
#: Pieces of data that are smaller than this, behind the end of their stream, ask for nothing (bytes).
_SMALL_PIECE: Final = 1024


class ClosedStreams:
    """The recently ended streams of one connection."""

    __slots__ = ("_streams",)

    def __init__(self) -> None:
        #: How many bytes of each stream may still arrive, None for nothing; the stream that ended first comes first.
        self._streams: dict[int, int | None] = {}

    def add(self, stream_id: int, under_way: int | None = None) -> None:
        """Add an ended stream; ``under_way`` bytes of data, and trailers, may still arrive, or nothing (None)."""
        self._streams[stream_id] = under_way
        if len(self._streams) > _REMEMBERED:
            del self._streams[next(iter(self._streams))]

    def forget(self, stream_id: int) -> None:
        """Note that the client has ended the stream, too: nothing more may arrive."""
        if stream_id in self._streams:
            self._streams[stream_id] = None

    def take_data(self, stream_id: int, size: int, *, ends: bool) -> bool:
        """Take data of an ended stream; return whether it costs allowance. Raises StreamFailed: it must not arrive."""
        left = self._streams.get(stream_id)
        if left is None or size > left:
            raise StreamFailed(stream_id, ErrorCode.STREAM_CLOSED)
        self._streams[stream_id] = None if ends else left - size
        return not ends and size < _SMALL_PIECE

    def take_headers(self, stream_id: int, *, are_trailers: bool) -> None:
        """Take headers of an ended or skipped stream. Raises ConnectionFailed: they are no trailers that may arrive."""
        if stream_id not in self._streams:
            raise ConnectionFailed(ErrorCode.PROTOCOL_ERROR, f"headers of stream {stream_id}, behind a later one")
        if self._streams[stream_id] is None or not are_trailers:
            raise ConnectionFailed(ErrorCode.STREAM_CLOSED, f"headers of stream {stream_id}, which is closed")
        self._streams[stream_id] = None
