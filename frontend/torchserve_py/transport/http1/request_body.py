"""The bytes of a request's body as they arrive, put together in one block of memory."""

from io import BytesIO
from typing import Final

#: How much memory there is for a body that is received into it, as a multiple of what has arrived: a client must send
#: what makes the server take memory. And how much at least (bytes).
_GROWTH: Final = 4
_LEAST: Final = 256 * 1024


class Body:
    """Collects the pieces of a body; bytes can also be received straight into its memory, see `room`.

    Pieces are put together at once: in a list, chunks of two bytes would take twenty times their size.
    """

    __slots__ = ("_buffer", "_only", "_view", "capacity", "size")

    def __init__(self) -> None:
        #: How many bytes have arrived, and for how many `room` has made memory.
        self.size = self.capacity = 0
        self._only = b""
        self._buffer: BytesIO | None = None
        self._view: memoryview | None = None

    def add(self, piece: bytes | memoryview) -> None:
        """Add a piece behind what has arrived."""
        if not self.size and isinstance(piece, bytes):
            self._only = piece
        else:
            buffer = self._writable()
            buffer.seek(self.size)
            buffer.write(piece)
        self.size += len(piece)

    def next_capacity(self, length: int) -> int:
        """Return for how many bytes there should be memory now, if the whole body has ``length``."""
        return self.capacity if self.capacity > self.size else min(length, max(_LEAST, _GROWTH * self.size))

    def room(self, capacity: int) -> memoryview:
        """Return the memory behind what has arrived, up to ``capacity``; report what is written there to `filled`."""
        if capacity > self.capacity or self._view is None:
            buffer = self._writable()
            if capacity > self.capacity:
                buffer.seek(capacity - 1)
                buffer.write(b"\0")
                self.capacity = capacity
            self._view = buffer.getbuffer()
        return self._view[self.size :]

    def filled(self, count: int) -> None:
        """Note that ``count`` bytes were written to the start of `room`."""
        self.size += count

    def take(self) -> bytes:
        """Return the complete body, without a copy if no piece of its memory is in use, and forget it."""
        body = self._only if self._buffer is None else self._writable().getvalue()
        self._only, self._buffer = b"", None
        self.size = self.capacity = 0
        return body

    def _writable(self) -> BytesIO:
        if self._view is not None:
            self._view.release()
            self._view = None
        if self._buffer is None:
            self._buffer = BytesIO()
            self._buffer.write(self._only)
            self._only = b""
        return self._buffer
