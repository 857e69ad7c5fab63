"""Decompressing bodies and messages: off the event loop but for small ones, few at a time, piece by piece.

A few bytes may become very many. So a piece is counted before the next one is decompressed, and what is too large, or
has no room, is found before it is there.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

#: What zlib takes for the windows of the encodings.
GZIP_WINDOW: Final = 31
ZLIB_WINDOW: Final = 15
BARE_WINDOW: Final = -15
#: Data whose both forms are no larger than this is decompressed on the event loop (bytes).
_SMALL: Final = 16_384
#: How much is decompressed at once in a thread (bytes).
_PIECE: Final = 1 << 18
#: What has more bytes is put together in a thread, too.
_LARGE: Final = 1 << 20
#: How many are decompressed at a time, in threads of their own: what a thread has freed stays with it for the next, so
#: that few threads take less memory than the many that the event loop has.
_THREADS: Final = 2


class Decompressor:
    """Decompresses what clients send to a server."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, "decompression")
        self._free_threads = asyncio.Semaphore(_THREADS)

    def close(self) -> None:
        """Leave the threads to themselves; they end when they have nothing to do."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def decompress(self, data: bytes, window: int, largest: int, take: Callable[[int, int], None]) -> bytes:
        """Return what a client has compressed.

        Args:
            data: All of it, as it was sent.
            window: One of the windows above.
            largest: How many bytes may come out.
            take: Called before each piece is kept, with its size and that of all so far; what it raises ends the work.

        Raises:
            zlib.error: The data cannot be decompressed, is cut short, or something follows behind its end.
        """
        stream = zlib.decompressobj(window)
        pieces, size, position = list[bytes](), 0, 0
        fed: bytes | memoryview = b""
        if len(data) <= _SMALL:
            pieces.append(stream.decompress(data, min(_SMALL, largest + 1)))
            size, position, fed = len(pieces[0]), len(data), stream.unconsumed_tail
            take(size, size)
        has_more = not stream.eof
        if has_more:
            run = asyncio.get_running_loop().run_in_executor
            async with self._free_threads:
                while not stream.eof:
                    if not fed:
                        fed = memoryview(data)[position : position + _PIECE]
                        position += len(fed)
                    is_last = not fed
                    piece = await run(self._threads, stream.decompress, fed, min(_PIECE, largest + 1 - size))
                    if is_last and not piece and not stream.eof:
                        raise zlib.error("it is cut short")
                    size += len(piece)
                    take(len(piece), size)
                    pieces.append(piece)
                    fed = stream.unconsumed_tail
                if size > _LARGE:
                    pieces = [await run(self._threads, b"".join, pieces)]
        if stream.unused_data or position < len(data):
            raise zlib.error("something follows behind its end")
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)
