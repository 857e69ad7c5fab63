"""Streams that have ended not long ago, and what of them may still be under way (RFC 9113, 5.1).

A client that has ended a stream, or was answered to the end, sends nothing more in it. One whose stream the server has
ended without its having sent everything may not know that yet: what it has sent by then is no mistake.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from torchserve_py.transport.http2.frames import ConnectionFailed, ErrorCode, StreamFailed

#: How many streams are remembered.
_REMEMBERED: Final = 128
#: Pieces of data that are smaller than this, behind the end of their stream, ask for nothing (bytes).
_SMALL_PIECE: Final = 1024


class ClosedStreams:
    """Those of one connection."""

    __slots__ = ("_order", "_streams")

    def __init__(self) -> None:
        #: How many bytes may still be under way; None where nothing may.
        self._streams: dict[int, int | None] = {}
        self._order: deque[int] = deque()

    def add(self, stream_id: int, under_way: int | None = None) -> None:
        """A stream has ended; so many bytes of data, and trailers, may be under way, or nothing."""
        if stream_id not in self._streams:
            self._order.append(stream_id)
            if len(self._order) > _REMEMBERED:
                del self._streams[self._order.popleft()]
        self._streams[stream_id] = under_way

    def forget(self, stream_id: int) -> None:
        """The client ends it, too: nothing is under way any more."""
        if stream_id in self._streams:
            self._streams[stream_id] = None

    def take_data(self, stream_id: int, size: int, *, ends: bool) -> bool:
        """Data for such a stream; returns whether it costs patience.

        Raises:
            StreamFailed: None can be under way.
        """
        left = self._streams.get(stream_id)
        if left is None or size > left:
            raise StreamFailed(stream_id, ErrorCode.STREAM_CLOSED)
        self._streams[stream_id] = None if ends else left - size
        return not ends and size < _SMALL_PIECE

    def take_headers(self, stream_id: int, *, are_trailers: bool) -> None:
        """Headers for such a stream, or one that was skipped.

        Raises:
            ConnectionFailed: They are not the trailers that can be under way.
        """
        if stream_id not in self._streams:
            raise ConnectionFailed(ErrorCode.PROTOCOL_ERROR, f"headers of stream {stream_id}, behind a later one")
        if self._streams[stream_id] is None or not are_trailers:
            raise ConnectionFailed(ErrorCode.STREAM_CLOSED, f"headers of stream {stream_id}, which is closed")
        self._streams[stream_id] = None
