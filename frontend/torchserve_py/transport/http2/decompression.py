"""Decompressing messages: off the event loop but for small ones, few at a time, piece by piece within the limits.

A few bytes may become very many. So a piece is counted before the next one is decompressed, and what is too large, or
has no room, is found before it is there.
"""

from __future__ import annotations

import asyncio
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Protocol

from grpc import StatusCode

from torchserve_py.transport.http2.budget import BadMessage, MessageLimit
from torchserve_py.transport.http2.messages import Compressed, MessageReader

#: What zlib takes for the windows of the encodings that gRPC has.
_WINDOW_BITS: Final = {"gzip": 31, "deflate": 15}
#: A message whose both forms are no larger than this is decompressed on the event loop (bytes).
_SMALL: Final = 16_384
#: How much is decompressed at once in a thread (bytes).
_PIECE: Final = 1 << 18
#: A message of more bytes is put together in a thread, too.
_LARGE: Final = 16 << 20
#: How many messages are decompressed at a time, in threads of their own: what a thread has freed stays with it for the
#: next message, so that few threads take less memory than the many that the event loop has.
_THREADS: Final = 2


class _Stream(Protocol):
    """What `zlib.decompressobj` returns; its type has no public name."""

    @property
    def eof(self) -> bool: ...

    @property
    def unconsumed_tail(self) -> bytes: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes | memoryview, max_length: int = 0, /) -> bytes: ...


class Decompressor:
    """Decompresses the messages of a server."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, "grpc-decompression")
        self._turns = asyncio.Semaphore(_THREADS)

    def close(self) -> None:
        """Leave the threads to themselves; they end when they have nothing to do."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def decompress(self, message: Compressed, encoding: str, limit: MessageLimit, reader: MessageReader) -> bytes:
        """What a client has compressed, counted by ``reader``.

        Raises:
            BadMessage: It cannot be decompressed, or is too large then, or there is no room for it now.
        """
        bits = _WINDOW_BITS.get(encoding)
        if bits is None:
            raise BadMessage(StatusCode.UNIMPLEMENTED, f"A message is compressed, and grpc-encoding is {encoding}.")
        stream = zlib.decompressobj(bits)
        first, rest = b"", memoryview(message)
        try:
            if len(message) <= _SMALL:
                first = stream.decompress(message, min(_SMALL, limit.size + 1))
                limit.check(len(first))
                reader.hold(len(first))
                if stream.eof:
                    return first
                rest = memoryview(stream.unconsumed_tail)
            async with self._turns:
                return await self._rest(stream, first, rest, limit, reader)
        except zlib.error as error:
            raise BadMessage(StatusCode.INTERNAL, f"A message cannot be decompressed: {error}") from error

    async def _rest(
        self, stream: _Stream, first: bytes, rest: memoryview, limit: MessageLimit, reader: MessageReader
    ) -> bytes:
        run = asyncio.get_running_loop().run_in_executor
        pieces, size, position = [first], len(first), 0
        fed: bytes | memoryview = b""
        while not stream.eof:
            if not fed:
                fed = rest[position : position + _PIECE]
                position += len(fed)
            is_last = not fed
            piece = await run(self._threads, stream.decompress, fed, min(_PIECE, limit.size + 1 - size))
            if is_last and not piece and not stream.eof:
                raise BadMessage(StatusCode.INTERNAL, "A message cannot be decompressed: it is cut short.")
            size += len(piece)
            limit.check(size)
            reader.hold(len(piece))
            pieces.append(piece)
            fed = stream.unconsumed_tail
        return b"".join(pieces) if size < _LARGE else await run(self._threads, b"".join, pieces)
