"""Frames: a 4-byte big-endian length, one msgpack array ``[kind, …]`` of that length, then the array's large bodies.

`encode` yields a list of buffers instead of one joined block, so that a large body goes from its owner's memory to the
kernel without a copy. In the array an extension value with the length stands for a large body, which `FrameBuffer`, the
receiving side, reads into a ``bytearray`` of its own.
"""

import struct
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgpack

Buffer = bytes | bytearray | memoryview

_LENGTH = struct.Struct(">I")
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


def encode(message: list[Any] | tuple[Any, ...], *, large: bool = False) -> list[Buffer]:
    """Encode ``message`` as the buffers of one frame. Raises ValueError: it is longer than any frame may be.

    With ``large``, bodies of `LARGE_BODY` bytes or more become buffers of their own.
    """
    if not large:
        payload = _pack(message)
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


def unpack(payload: memoryview, make_body: Callable[[int, bytes], Any], most: int | None = None) -> Any:
    """Return the value in a payload. Raises ValueError: it is no msgpack; or it has lists and maps of too many items.

    Args:
        make_body: Returns the value for an extension value.
        most: How many items all lists and maps together may have; a longer list, or what is behind, is not built.
    """
    if most is None:
        return msgpack.unpackb(payload, ext_hook=make_body)
    left = most

    def counted(items: list[Any]) -> list[Any]:
        nonlocal left
        left -= len(items)
        if left < 0:
            raise ValueError(f"it has more than {most} values")
        return items

    return msgpack.unpackb(
        payload,
        ext_hook=make_body,
        list_hook=counted,
        object_pairs_hook=lambda pairs: dict(counted(pairs)),
        max_array_len=most,
        max_map_len=most,
    )


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
    def pending(self) -> int:
        """How many bytes wait, without those of large bodies."""
        return self._end - self._start

    def writable(self) -> memoryview:
        """Return memory for the bytes that come next: of the large body that is arriving, or free memory behind the
        buffered bytes, large enough for the array that has begun; never empty.
        """
        if self._missing:
            return self._missing[0]
        if not self._end:
            return self._view
        pending = self.pending
        needed = _INITIAL_CAPACITY
        if pending >= _LENGTH.size:
            needed = max(needed, _LENGTH.size + self._frame_length())
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
        while self._message is not None or (self._start < self._end and self._read_array()):
            if self._missing:
                self._move_bodies()
                if self._missing:
                    break
            message, self._message = self._message, None
            assert message is not None
            yield message
        if self._start == self._end:
            self._start = self._end = 0
            if len(self._data) > _SHRINK_ABOVE:
                self._replace(bytearray(_INITIAL_CAPACITY))

    def _read_array(self) -> bool:
        """Read the next array and make room for its large bodies; return whether an array is complete."""
        first = self._start + _LENGTH.size
        if self._end < first:
            return False
        length = self._frame_length()
        if self._end < first + length:
            return False
        payload = self._view[first : first + length]
        self._room = self._max_frame - length
        self._message = self._unpack(payload)
        self._start = first + length
        return True

    def _unpack(self, payload: memoryview) -> list[Any]:
        try:
            if self._max_values is None or len(payload) <= _SMALL:
                message = msgpack.unpackb(payload, ext_hook=self._make_body)
            else:
                message = unpack(payload, self._make_body, self._max_values)
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise FrameError(
                f"a frame of {len(payload)} bytes cannot be read: {error or type(error).__name__}"
            ) from error
        if not isinstance(message, list) or not message or not isinstance(message[0], str):
            raise FrameError("a frame must hold an array that starts with the kind of message")
        return message

    def _make_body(self, kind: int, length: bytes) -> bytearray:
        """Return the large body for an extension value; its bytes are still to come."""
        if kind != _BODY or len(length) != _LENGTH.size:
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
        pending = self.pending
        room = bytearray(capacity)
        room[:pending] = self._view[self._start : self._end]
        self._replace(room)
        self._start, self._end = 0, pending

    def _replace(self, data: bytearray) -> None:
        self._data = data
        self._view = memoryview(data)
