"""Frames: a 4-byte big-endian length, then one msgpack array ``[kind, …]``.

Both ends of the socket use this module. `encode` yields a list of buffers instead of one joined block, so that a large
body goes from its owner's memory to the kernel without a copy in between (`socket.sendmsg`, `transport.writelines`).
`FrameBuffer` is the receiving side: it offers memory to receive into and hands out the complete messages.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import msgpack

Buffer = bytes | bytearray | memoryview

_LENGTH = struct.Struct(">I")
_BIN32 = 0xC6
#: A body at least this long is sent as a buffer of its own; below it a copy is cheaper than one more buffer.
LARGE_BODY = 16 * 1024
#: The default limit on a frame: a longer one means that the length field is corrupt or the peer hostile.
MAX_FRAME = 2**31 - 1
_INITIAL_CAPACITY = 64 * 1024
_SHRINK_ABOVE = 1024 * 1024


class FrameError(Exception):
    """The peer sent bytes that are no frame; the connection cannot be used any longer."""


def encode(message: list[Any] | tuple[Any, ...], *, large: bool = False) -> list[Buffer]:
    """Encode ``message`` as the buffers of one frame, to be written in order.

    Raises ValueError: it would be longer than any frame may be.

    Args:
        message: The array ``[kind, …]``.
        large: Whether it may hold bodies of `LARGE_BODY` bytes or more; they then become buffers of their own.
    """
    if not large:
        payload = _pack(message)
        return [_LENGTH.pack(len(payload)) + payload]
    packer = msgpack.Packer(autoreset=False)
    segments: list[Buffer] = []
    _append_segments(message, packer, segments)
    segments.append(packer.bytes())
    length = sum(map(len, segments))
    if length > MAX_FRAME:
        raise ValueError(f"a frame of {length} bytes is over the limit of {MAX_FRAME} bytes")
    return [_LENGTH.pack(length), *segments]


_pack = msgpack.Packer().pack


def _append_segments(value: Any, packer: msgpack.Packer, segments: list[Buffer]) -> None:
    if isinstance(value, list | tuple):
        packer.pack_array_header(len(value))
        for item in value:
            _append_segments(item, packer, segments)
    elif isinstance(value, bytes | bytearray | memoryview) and len(value) >= LARGE_BODY:
        segments.append(packer.bytes() + struct.pack(">BI", _BIN32, len(value)))
        segments.append(value)
        packer.reset()
    else:
        packer.pack(value)


class FrameBuffer:
    """Collects received bytes and cuts them into messages.

    Receive into ``writable()``, report the number of bytes with ``received(n)``, then take the complete messages from
    ``messages()``. The memory that ``writable()`` returned is valid until the next call of any method.
    """

    def __init__(self, max_frame: int = MAX_FRAME) -> None:
        self._max_frame = max_frame
        self._data = bytearray(_INITIAL_CAPACITY)
        self._view = memoryview(self._data)
        self._start = 0
        self._end = 0

    def limit(self, max_frame: int) -> None:
        """Refuse frames longer than ``max_frame`` bytes from now on."""
        self._max_frame = max_frame

    def writable(self) -> memoryview:
        """Return the free memory behind the buffered bytes, large enough for the frame that has begun; never empty."""
        pending = self._end - self._start
        needed = _INITIAL_CAPACITY
        if pending >= _LENGTH.size:
            needed = max(needed, _LENGTH.size + self._frame_length())
        if self._start + needed > len(self._data) or self._end == len(self._data):
            self._make_room(max(needed, pending + _INITIAL_CAPACITY))
        return self._view[self._end :]

    def received(self, count: int) -> None:
        """Report that ``count`` bytes were written to the start of ``writable()``."""
        self._end += count

    def messages(self) -> Iterator[list[Any]]:
        """Yield every complete message, in order.

        Raises FrameError: a length over the limit, or content that is not one msgpack array with a kind in front.
        """
        while self._end - self._start >= _LENGTH.size:
            length = self._frame_length()
            first = self._start + _LENGTH.size
            if self._end - first < length:
                return
            message = _unpack(self._view[first : first + length])
            self._start = first + length
            yield message
        if self._start == self._end:
            self._start = self._end = 0
            if len(self._data) > _SHRINK_ABOVE:
                self._replace(bytearray(_INITIAL_CAPACITY))

    def _frame_length(self) -> int:
        length: int = _LENGTH.unpack_from(self._data, self._start)[0]
        if length > self._max_frame:
            raise FrameError(f"a frame of {length} bytes is over the limit of {self._max_frame} bytes")
        return length

    def _make_room(self, capacity: int) -> None:
        pending = self._end - self._start
        room = bytearray(capacity)
        room[:pending] = self._view[self._start : self._end]
        self._replace(room)
        self._start, self._end = 0, pending

    def _replace(self, data: bytearray) -> None:
        self._data = data
        self._view = memoryview(data)


def _unpack(payload: memoryview) -> list[Any]:
    try:
        message = msgpack.unpackb(payload)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise FrameError(f"a frame of {len(payload)} bytes is not msgpack: {error or type(error).__name__}") from error
    if not isinstance(message, list) or not message or not isinstance(message[0], str):
        raise FrameError("a frame must hold an array that starts with the kind of message")
    return message
