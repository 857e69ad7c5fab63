"""gRPC's messages in the bytes of a stream: five bytes before each say whether it is compressed, and its length."""

from __future__ import annotations

import struct
import zlib
from typing import Final

from grpc import StatusCode

PREFIX: Final = struct.Struct(">BI")
#: Pieces of a message that are smaller than this are joined as they come: each would take more memory than it holds.
_SMALL_PIECE: Final = 1024
#: What zlib takes for the windows of the encodings that gRPC has.
_WINDOW_BITS: Final = {"gzip": 31, "deflate": 15}


class BadMessage(Exception):
    """A message that cannot be taken; the call ends with ``code``."""

    def __init__(self, code: StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class Compressed(bytes):
    """A message as it arrived; it is decompressed when it is its turn, so that few are large at a time."""


class MessageReader:
    """Cuts what arrives into messages.

    Args:
        limit: How large a message may be (bytes).
        encoding: How compressed ones are compressed.
    """

    __slots__ = ("_chunks", "_encoding", "_limit", "_needed", "arrived")

    def __init__(self, limit: int, encoding: str) -> None:
        self._limit = limit
        self._encoding = encoding
        self._chunks: list[bytes | bytearray] = []
        #: How many bytes are here of a message that is not complete.
        self.arrived = 0
        self._needed = PREFIX.size

    @property
    def is_between_messages(self) -> bool:
        """Whether no message has begun that has not ended."""
        return not self.arrived

    def feed(self, data: bytes) -> list[bytes]:
        """The messages that are complete with ``data``; those that are `Compressed` are to be decompressed.

        Raises:
            BadMessage: There is one that is too large.
        """
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
            if length > self._limit:
                raise _too_large(length, self._limit)
            if end - start < PREFIX.size + length:
                self._needed = PREFIX.size + length
                break
            start += PREFIX.size
            message = data[start : start + length]
            messages.append(Compressed(message) if compressed else message)
            start += length
        self.arrived = end - start
        if self.arrived:
            self._chunks.append(data[start:])
        return messages

    def _keep(self, piece: bytes) -> None:
        last = self._chunks[-1] if self._chunks else None
        if len(piece) >= _SMALL_PIECE:
            self._chunks.append(piece)
        elif isinstance(last, bytearray):
            last += piece
        else:
            self._chunks.append(bytearray(piece))

    def decompress(self, message: Compressed) -> bytes:
        """What the client has compressed.

        Raises:
            BadMessage: It cannot be decompressed, or is too large then.
        """
        bits = _WINDOW_BITS.get(self._encoding)
        if bits is None:
            raise BadMessage(
                StatusCode.UNIMPLEMENTED, f"A message is compressed, and grpc-encoding is {self._encoding}."
            )
        decompressor = zlib.decompressobj(bits)
        try:
            plain = decompressor.decompress(message, self._limit + 1)
        except zlib.error as error:
            raise BadMessage(StatusCode.INTERNAL, f"A message cannot be decompressed: {error}") from error
        if len(plain) > self._limit:
            raise _too_large(len(plain), self._limit)
        if not decompressor.eof:
            raise BadMessage(StatusCode.INTERNAL, "A message cannot be decompressed: it is cut short.")
        return plain


def _too_large(size: int, limit: int) -> BadMessage:
    message = f"Received message larger than max ({size} vs. {limit}), which max_request_size sets"
    return BadMessage(StatusCode.RESOURCE_EXHAUSTED, message)
