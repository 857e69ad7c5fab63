"""Decompresses bodies and messages piece by piece; large ones in threads, few at a time.

A few bytes may become very many. Each piece is counted before the next one is decompressed, so that data that is too
large is refused before it exists.
"""

import asyncio
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

#: zlib's window parameters for the encodings.
GZIP_WINDOW: Final = 31
ZLIB_WINDOW: Final = 15
BARE_WINDOW: Final = -15
#: Data that is no larger, compressed and decompressed, is decompressed on the event loop (bytes).
_SMALL: Final = 16_384
#: The size of a piece that a thread decompresses (bytes).
_PIECE: Final = 1 << 18
#: Pieces of more bytes in total are joined in a thread, too.
_LARGE: Final = 1 << 20
#: How many threads decompress. A thread keeps the memory that it has freed, so a few threads of their own take less
#: memory than the many of the event loop.
_THREADS: Final = 2


class Decompressor:
    """Decompresses what clients send to a server."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, "decompression")
        self._free_threads = asyncio.Semaphore(_THREADS)

    def close(self) -> None:
        """Let the threads end when they have nothing to do."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def decompress(self, data: bytes, window: int, largest: int, take: Callable[[int, int], None]) -> bytes:
        """Return up to ``largest`` bytes of decompressed data; ``window`` is one of the windows above.

        ``take`` is called before each piece is kept, with its size and the total so far; an exception ends the work.
        Raises zlib.error: the data cannot be decompressed, is cut short, or something follows behind its end.
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
