"""Frames: a 4-byte big-endian length, one msgpack array ``[kind, …]`` of that length, then the array's large bodies.

`encode` yields a list of buffers instead of one joined block, so that a large body goes from its owner's memory to the
kernel without a copy. In the array an extension value with the length stands for a large body, which `FrameBuffer`, the
receiving side, reads into a ``bytearray`` of its own.
"""

import struct
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgpack

Buffer = bytes | bytearray | memoryview

_LENGTH = struct.Struct(">I")
_LENGTH_SIZE: Final = _LENGTH.size
#: The type of the extension value that stands for a large body.
_BODY: Final = 1
#: A body at least this long is sent behind the array; below it a copy is cheaper than one more buffer.
LARGE_BODY = 16 * 1024
#: The default limit on a frame: a longer one means that the length field is corrupt or the peer hostile.
MAX_FRAME = 2**31 - 1
#: The send buffer that both ends ask the kernel for (bytes): the more of a large body fits, the less often the two
#: processes wait for each other. The kernel gives what it allows.
SEND_BUFFER: Final = 512 * 1024
_INITIAL_CAPACITY = 64 * 1024
#: Arrays of up to so many bytes are built without a look at how many values they have.
_SMALL = 64 * 1024
_SHRINK_ABOVE = 1024 * 1024


class FrameError(Exception):
    """The peer sent bytes that are no frame; the connection cannot be used any longer."""


def encode(message: list[Any] | tuple[Any, ...], *, large: bool = False, spelled_out: bool = False) -> list[Buffer]:
    """Encode ``message`` as the buffers of one frame.

    With ``large``, bodies of `LARGE_BODY` bytes or more become buffers of their own. Halves of surrogate pairs, which
    have no bytes in UTF-8, are written as ``\\udc80`` with ``spelled_out``.

    Raises ValueError: the frame would be longer than any may be, or a text has half of a surrogate pair.
    """
    if not large:
        payload = (_pack_spelled_out if spelled_out else _pack)(message)
        return [_LENGTH.pack(len(payload)) + payload]
    packer = msgpack.Packer(autoreset=False)
    bodies: list[Buffer] = []
    _append(message, packer, bodies)
    payload = packer.bytes()
    length = len(payload) + sum(map(len, bodies))
    if length > MAX_FRAME:
        raise ValueError(f"a frame of {length} bytes is over the limit of {MAX_FRAME} bytes")
    return [_LENGTH.pack(len(payload)) + payload, *bodies]


_pack = msgpack.Packer().pack
_pack_spelled_out = msgpack.Packer(unicode_errors="backslashreplace").pack


def _append(value: Any, packer: msgpack.Packer, bodies: list[Buffer]) -> None:
    if isinstance(value, list | tuple):
        packer.pack_array_header(len(value))
        for item in value:
            _append(item, packer, bodies)
    elif isinstance(value, bytes | bytearray | memoryview) and len(value) >= LARGE_BODY:
        packer.pack_ext_type(_BODY, _LENGTH.pack(len(value)))
        bodies.append(value)
    else:
        packer.pack(value)


class FrameBuffer:
    """Collects received bytes and cuts them into messages.

    Receive into ``writable()``, report the number of bytes with ``received(n)``, then take the complete messages from
    ``messages()``. The memory that ``writable()`` returned is valid until the next call of any method.
    """

    def __init__(self, max_frame: int = MAX_FRAME) -> None:
        self._max_frame = max_frame
        self._max_values: int | None = None
        self._data = bytearray(_INITIAL_CAPACITY)
        self._view = memoryview(self._data)
        self._start = 0
        self._end = 0
        #: The message whose large bodies are arriving, and the parts of their memory that are still to be filled.
        self._message: list[Any] | None = None
        self._missing: deque[memoryview] = deque()
        #: How many bytes the large bodies of the array that is being read may still have.
        self._room = 0

    def limit(self, max_frame: int, max_values: int) -> None:
        """Refuse frames longer than ``max_frame`` bytes from now on, and large ones of more than ``max_values`` values.

        A body is one value, however long. Values by the million would keep the reader busy while they are built.
        """
        self._max_frame = max_frame
        self._max_values = max_values

    @property
    def _pending(self) -> int:
        """How many bytes wait, without those of large bodies."""
        return self._end - self._start

    @property
    def has_part(self) -> bool:
        """Whether a part of a message has arrived that is not complete, as far as messages were taken."""
        return self._message is not None or self._end > self._start

    def writable(self) -> memoryview:
        """Return memory for the bytes that come next: of the large body that is arriving, or free memory behind the
        buffered bytes, large enough for the array that has begun; never empty.
        """
        if self._missing:
            return self._missing[0]
        if not self._end:
            return self._view
        pending = self._pending
        needed = _INITIAL_CAPACITY
        if pending >= _LENGTH_SIZE:
            needed = max(needed, _LENGTH_SIZE + self._frame_length())
        if self._start + needed > len(self._data) or self._end == len(self._data):
            self._make_room(max(needed, pending + _INITIAL_CAPACITY))
        return self._view[self._end :]

    def received(self, count: int) -> None:
        """Report that ``count`` bytes were written to the start of ``writable()``."""
        if self._missing:
            self._fill(count)
        else:
            self._end += count

    def _fill(self, count: int) -> None:
        view = self._missing.popleft()
        if count < len(view):
            self._missing.appendleft(view[count:])

    def messages(self) -> Iterator[list[Any]]:
        """Yield every complete message, in order. Raises FrameError: the bytes are no frame, or a frame is too long."""
        while (message := self._next()) is not None:
            yield message
        if self._start == self._end:
            self._start = self._end = 0
            if len(self._data) > _SHRINK_ABOVE:
                self._replace(bytearray(_INITIAL_CAPACITY))

    def _next(self) -> list[Any] | None:
        """Take the next message; None if it is not complete. Makes room for its large bodies once its array is here."""
        message, self._message = self._message, None
        if message is None:
            first = self._start + _LENGTH_SIZE
            if self._end < first:
                return None
            behind = first + self._frame_length()
            if self._end < behind:
                return None
            self._start = behind
            message = self._unpack(self._view[first:behind])
        if self._missing:
            self._move_bodies()
            if self._missing:
                self._message = message
                return None
        return message

    def _unpack(self, payload: memoryview) -> list[Any]:
        length = len(payload)
        if length > _SMALL and self._max_values is not None:
            check_values(payload, self._max_values)
        self._room = self._max_frame - length
        try:
            message = msgpack.unpackb(payload, ext_hook=self._make_body)
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise FrameError(f"a frame of {length} bytes is not msgpack: {error or type(error).__name__}") from error
        if type(message) is not list or not message or type(message[0]) is not str:
            raise FrameError("a frame must hold an array that starts with the kind of message")
        return message

    def _make_body(self, kind: int, length: bytes) -> bytearray:
        """Return the large body for an extension value; its bytes are still to come."""
        if kind != _BODY or len(length) != _LENGTH_SIZE:
            raise FrameError(f"an extension value of type {kind} with {len(length)} bytes stands for no body")
        (size,) = _LENGTH.unpack(length)
        if size > self._room:
            raise FrameError(f"a body of {size} bytes, of which the frame may hold only {self._room} more")
        self._room -= size
        body = bytearray(size)
        if size:
            self._missing.append(memoryview(body))
        return body

    def _move_bodies(self) -> None:
        """Move the buffered bytes of large bodies to their own memory."""
        while self._missing and self._start < self._end:
            view = self._missing[0]
            count = min(len(view), self._end - self._start)
            view[:count] = self._view[self._start : self._start + count]
            self._start += count
            self._fill(count)

    def _frame_length(self) -> int:
        length: int = _LENGTH.unpack_from(self._data, self._start)[0]
        if length > self._max_frame:
            raise FrameError(f"a frame of {length} bytes is over the limit of {self._max_frame} bytes")
        return length

    def _make_room(self, capacity: int) -> None:
        pending = self._pending
        room = bytearray(capacity)
        room[:pending] = self._view[self._start : self._end]
        self._replace(room)
        self._start, self._end = 0, pending

    def _replace(self, data: bytearray) -> None:
        self._data = data
        self._view = memoryview(data)


#: For the first bytes of msgpack's values that do not tell their size: how many bytes the value has before its content,
#: and how many of these, right behind the first, are the length of that content.
_FORMATS: Final[Mapping[int, tuple[int, int]]] = {
    **dict.fromkeys((0xC0, 0xC1, 0xC2, 0xC3), (1, 0)),
    **dict.fromkeys((0xCC, 0xD0), (2, 0)),
    **dict.fromkeys((0xCD, 0xD1), (3, 0)),
    **dict.fromkeys((0xCA, 0xCE, 0xD2), (5, 0)),
    **dict.fromkeys((0xCB, 0xCF, 0xD3), (9, 0)),
    **{0xD4: (3, 0), 0xD5: (4, 0), 0xD6: (6, 0), 0xD7: (10, 0), 0xD8: (18, 0)},
    **dict.fromkeys((0xC4, 0xD9), (2, 1)),
    **dict.fromkeys((0xC5, 0xDA, 0xDC, 0xDE), (3, 2)),
    **dict.fromkeys((0xC6, 0xDB, 0xDD, 0xDF), (5, 4)),
    **{0xC7: (3, 1), 0xC8: (4, 2), 0xC9: (6, 4)},
}


def check_values(payload: memoryview, most: int) -> None:
    """Check that a payload has at most ``most`` values, without building one. What is cut short is not looked at.

    Raises FrameError: it has more.
    """
    position, end, awaited = 0, len(payload), 1
    for _ in range(most):
        if not awaited or position >= end:
            return
        awaited -= 1
        kind = payload[position]
        if kind < 0x80 or kind >= 0xE0:
            position += 1
        elif kind < 0xA0:
            awaited += (kind & 0x0F) * (1 if kind & 0x10 else 2)
            position += 1
        elif kind < 0xC0:
            position += 1 + (kind & 0x1F)
        else:
            size, length_size = _FORMATS[kind]
            length = int.from_bytes(payload[position + 1 : position + 1 + length_size], "big")
            position += size
            if kind >= 0xDC:  # an array or a map
                awaited += length * (1 if kind < 0xDE else 2)
            else:
                position += length
    if awaited and position < end:
        raise FrameError(f"a frame of {end} bytes has more than {most} values")
