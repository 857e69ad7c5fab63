"""gRPC's messages in the bytes of a stream: five bytes before each say whether it is compressed, and its length."""

from __future__ import annotations

import asyncio
import struct
import zlib
from typing import Final

from grpc import StatusCode

from torchserve_py.transport.http2.large_messages import BadMessage, MessageLimit

PREFIX: Final = struct.Struct(">BI")
#: Pieces of a message that are smaller than this are joined as they come: each would take more memory than it holds.
_SMALL_PIECE: Final = 1024
#: What zlib takes for the windows of the encodings that gRPC has.
_WINDOW_BITS: Final = {"gzip": 31, "deflate": 15}
#: How much of a large message is decompressed at once, in a thread (bytes).
_PLAIN_PIECE: Final = 16 << 20


class Compressed(bytes):
    """A message as it arrived; it is decompressed when it is its turn, so that few are large at a time."""


class MessageReader:
    """Cuts what arrives into messages.

    Args:
        limit: How large a message may be.
        encoding: How compressed ones are compressed.
    """

    __slots__ = ("_arriving", "_chunks", "_encoding", "_held", "_limit", "_needed", "arrived")

    def __init__(self, limit: MessageLimit, encoding: str) -> None:
        self._limit = limit
        self._encoding = encoding
        self._chunks: list[bytes | bytearray] = []
        #: How many bytes are here of a message that is not complete.
        self.arrived = 0
        self._needed = PREFIX.size
        #: What is counted of large messages, and how much of that is of one which is not complete (bytes).
        self._held = 0
        self._arriving = 0

    @property
    def is_between_messages(self) -> bool:
        """Whether no message has begun that has not ended."""
        return not self.arrived

    def feed(self, data: bytes) -> list[bytes]:
        """The messages that are complete with ``data``; those that are `Compressed` are to be decompressed.

        Raises:
            BadMessage: There is one that is too large, or for which there is no room now.
        """
        self.arrived += len(data)
        if self.arrived < self._needed:
            self._keep(data)
            if self._arriving:
                self._hold(len(data))
                self._arriving += len(data)
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
            if end - start < PREFIX.size + length:
                self._needed = PREFIX.size + length
                if self.counted(length):
                    self._limit.large.check(length)
                    self._arriving = end - start
                    self._hold(self._arriving)
                break
            if self.counted(length):
                self._hold(length - self._arriving)
                self._arriving = 0
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

    def counted(self, size: int) -> int:
        """How many bytes of a message of that size are counted: all, or none if it is not large."""
        return size if size > self._limit.large.above else 0

    def release(self, size: int | None = None) -> None:
        """So many of the bytes that are counted are of no use any more; all if None."""
        released = self._held if size is None else min(size, self._held)
        self._held -= released
        self._limit.large.release(released)

    def _hold(self, size: int) -> None:
        self._limit.large.take(size)
        self._held += size

    async def decompress(self, message: Compressed) -> bytes:
        """What the client has compressed; it is counted if it is large.

        Raises:
            BadMessage: It cannot be decompressed, or is too large then, or there is no room for it now.
        """
        bits = _WINDOW_BITS.get(self._encoding)
        if bits is None:
            raise BadMessage(
                StatusCode.UNIMPLEMENTED, f"A message is compressed, and grpc-encoding is {self._encoding}."
            )
        decompressor = zlib.decompressobj(bits)
        small = min(self._limit.size, self._limit.large.above)
        try:
            plain = decompressor.decompress(message, small + 1)
            self._limit.check(len(plain))
            if len(plain) > small:
                plain = await self._rest(plain, decompressor)
        except zlib.error as error:
            raise BadMessage(StatusCode.INTERNAL, f"A message cannot be decompressed: {error}") from error
        if not decompressor.eof:
            raise BadMessage(StatusCode.INTERNAL, "A message cannot be decompressed: it is cut short.")
        return plain

    async def _rest(self, first: bytes, decompressor: zlib._Decompress) -> bytes:
        """A large message piece by piece: few bytes may become very many."""
        pieces, size = [first], len(first)
        self._hold(size)
        while not decompressor.eof and decompressor.unconsumed_tail:
            tail = decompressor.unconsumed_tail
            piece = await asyncio.to_thread(decompressor.decompress, tail, _PLAIN_PIECE)
            size += len(piece)
            self._limit.check(size)
            self._hold(len(piece))
            pieces.append(piece)
        return b"".join(pieces)
