"""gRPC's messages in the bytes of a stream: five bytes before each say whether it is compressed, and its length."""

from __future__ import annotations

import struct
import zlib
from typing import Final, NamedTuple

from grpc import StatusCode

from torchserve_py.transport.decompression import GZIP_WINDOW, ZLIB_WINDOW, Decompressor
from torchserve_py.transport.request_budget import NoRoomError, RequestBudget

_WINDOWS: Final = {"gzip": GZIP_WINDOW, "deflate": ZLIB_WINDOW}
#: What protobuf can hold in one message (bytes).
LARGEST: Final = 2**31 - 1
PREFIX: Final = struct.Struct(">BI")
#: Pieces of a message that are smaller than this are joined as they come: each would take more memory than it holds.
_SMALL_PIECE: Final = 1024


class BadMessage(Exception):
    """A message or a call that cannot be taken; the call ends with ``code``."""

    def __init__(self, code: StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class MessageLimit(NamedTuple):
    """How many bytes a message of a method may have, and what says so."""

    size: int
    origin: str

    def check(self, size: int) -> None:
        """Check the size of a message.

        Raises:
            BadMessage: It is too large.
        """
        if size > self.size:
            message = f"Received message larger than max ({size} vs. {self.size}), which {self.origin}"
            raise BadMessage(StatusCode.RESOURCE_EXHAUSTED, message)


class Compressed(bytes):
    """A message as it arrived; it is decompressed when it is its turn, so that few are large at a time."""


class MessageReader:
    """Cuts what arrives into messages. Whatever it is fed is counted in the server's budget until it is released.

    Args:
        limit: How large a message may be.
        budget: The server's.
    """

    __slots__ = ("_budget", "_chunks", "_held", "_limit", "_needed", "arrived", "completed")

    def __init__(self, limit: MessageLimit, budget: RequestBudget) -> None:
        self._limit = limit
        self._budget = budget
        self._chunks: list[bytes | bytearray] = []
        #: How many bytes are here of a message that is not complete.
        self.arrived = 0
        #: How many messages were complete so far.
        self.completed = 0
        self._needed = PREFIX.size
        self._held = 0

    @property
    def is_between_messages(self) -> bool:
        """Whether no message has begun that has not ended."""
        return not self.arrived

    def feed(self, data: bytes) -> list[bytes]:
        """The messages that are complete with ``data``; those that are `Compressed` are to be decompressed.

        Raises:
            BadMessage: There is one that is too large, or for which there is no room now.
        """
        self.hold(len(data))
        self.arrived += len(data)
        if self.arrived < self._needed:
            self._keep(data)
            return []
        if self._chunks:
            self._chunks.append(data)
            data = b"".join(self._chunks)
            self._chunks = []
        messages = []
        start, end = 0, len(data)
        self._needed = PREFIX.size
        while end - start >= PREFIX.size:
            compressed, length = PREFIX.unpack_from(data, start)
            self._limit.check(length)
            behind = start + PREFIX.size + length
            if end < behind:
                self._needed = behind - start
                self._check_room(behind - end)
                break
            message = data[start + PREFIX.size : behind]
            messages.append(Compressed(message) if compressed else message)
            start = behind
        self.arrived = end - start
        if self.arrived:
            self._chunks.append(data[start:])
        self.completed += len(messages)
        return messages

    def _keep(self, piece: bytes) -> None:
        last = self._chunks[-1] if self._chunks else None
        if len(piece) >= _SMALL_PIECE:
            self._chunks.append(piece)
        elif isinstance(last, bytearray):
            last += piece
        else:
            self._chunks.append(bytearray(piece))

    def hold(self, size: int) -> None:
        """Count so many bytes more.

        Raises:
            BadMessage: There is no room for them now.
        """
        try:
            self._budget.take(size)
        except NoRoomError as error:
            raise BadMessage(StatusCode.RESOURCE_EXHAUSTED, str(error)) from error
        self._held += size

    def _check_room(self, size: int) -> None:
        try:
            self._budget.check(size)
        except NoRoomError as error:
            raise BadMessage(StatusCode.RESOURCE_EXHAUSTED, str(error)) from error

    def release(self, size: int | None = None) -> None:
        """So many of the bytes that are counted are of no use any more; all if None."""
        released = self._held if size is None else min(size, self._held)
        self._held -= released
        self._budget.release(released)
        if size is None:
            self._chunks = []


async def decompressed(
    decompressor: Decompressor, message: Compressed, encoding: str, limit: MessageLimit, reader: MessageReader
) -> bytes:
    """Return what a client has compressed; ``reader`` counts it.

    Raises:
        BadMessage: It cannot be decompressed, or is too large then, or there is no room for it now.
    """
    window = _WINDOWS.get(encoding)
    if window is None:
        raise BadMessage(StatusCode.UNIMPLEMENTED, f"A message is compressed, and grpc-encoding is {encoding}.")

    def take(size: int, total: int) -> None:
        limit.check(total)
        reader.hold(size)

    try:
        return await decompressor.decompress(message, window, limit.size, take)
    except zlib.error as error:
        raise BadMessage(StatusCode.INTERNAL, f"A message cannot be decompressed: {error}.") from error
