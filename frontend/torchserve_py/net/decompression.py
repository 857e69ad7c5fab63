"""Decompresses bodies and messages piece by piece; large ones in threads, few at a time.

A few bytes may become very many. Each piece is counted before the next one is decompressed, so that data that is too
large is refused before it exists.
"""

import asyncio
import sys
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, Protocol

if sys.version_info >= (3, 14):
    from compression.zstd import DecompressionParameter, ZstdDecompressor, ZstdError
else:
    from backports.zstd import DecompressionParameter, ZstdDecompressor, ZstdError

#: The largest window of zstd that the content coding may use is 8 MiB, 2 to this power (RFC 8878, 7.2; RFC 9659).
_LARGEST_ZSTD_WINDOW: Final = 23
#: Data that is no larger, compressed and decompressed, is decompressed on the event loop (bytes).
_SMALL: Final = 16_384
#: The size of a piece that a thread decompresses (bytes).
_PIECE: Final = 1 << 18
#: What a member gets at a time (bytes), since it copies what follows behind its end.
_SLICE: Final = 1 << 14
#: How many members a body may have, and how many begin in one call: one costs as much as some thousand bytes.
_MOST_MEMBERS: Final = 10_000
_MEMBERS_AT_ONCE: Final = 100
#: Pieces of more bytes in total are joined in a thread, too.
_LARGE: Final = 1 << 20
#: How many threads decompress. A thread keeps the memory that it has freed, so a few threads of their own take less
#: memory than the many of the event loop.
_THREADS: Final = 2


class InflatingStream(Protocol):
    """What decompresses one body, as the objects of `zlib` do."""

    @property
    def eof(self) -> bool: ...
    @property
    def unconsumed_tail(self) -> bytes: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes | memoryview, max_length: int, /) -> bytes: ...


class _ZstdStream:
    """One frame of zstd; it keeps input for which there was no room in the output, so none is left unconsumed."""

    unconsumed_tail = b""

    def __init__(self) -> None:
        self._frame = ZstdDecompressor(options={DecompressionParameter.window_log_max: _LARGEST_ZSTD_WINDOW})

    @property
    def eof(self) -> bool:
        return self._frame.eof

    @property
    def unused_data(self) -> bytes:
        return self._frame.unused_data

    def decompress(self, data: bytes | memoryview, max_length: int, /) -> bytes:
        try:
            return self._frame.decompress(data, max_length)
        except ZstdError as error:
            raise zlib.error(str(error)) from None


class _Members:
    """Members, one behind the other: those of gzip (RFC 1952, 2.2), or frames of zstd (RFC 8878, 3)."""

    unused_data = b""

    def __init__(self, begin: Callable[[], InflatingStream]) -> None:
        self._begin = begin
        self._member = begin()
        self._begun = 1
        self.unconsumed_tail = b""

    @property
    def eof(self) -> bool:
        return self._member.eof

    def decompress(self, data: bytes | memoryview, max_length: int, /) -> bytes:
        pieces, position, rest = list[bytes](), 0, b""
        last = self._begun + _MEMBERS_AT_ONCE
        while True:
            if self._member.eof and (rest or position < len(data)):
                self._member = self._begin()
                self._begun += 1
                if self._begun > _MOST_MEMBERS:
                    raise zlib.error(f"it has more than {_MOST_MEMBERS} members")
            part = rest or data[position : position + _SLICE]
            position += 0 if rest else len(part)
            pieces.append(self._member.decompress(part, max_length))
            max_length -= len(pieces[-1])
            rest = self._member.unused_data or self._member.unconsumed_tail
            if not max_length or self._begun == last or not (rest or position < len(data)):
                self.unconsumed_tail = rest + bytes(data[position:])
                return pieces[0] if len(pieces) == 1 else b"".join(pieces)


#: Begins to decompress a body.
Encoding = Callable[[], InflatingStream]
GZIP: Final[Encoding] = partial(_Members, partial(zlib.decompressobj, 31))
#: In the container of zlib (RFC 1950).
DEFLATE: Final[Encoding] = partial(zlib.decompressobj, 15)
BARE_DEFLATE: Final[Encoding] = partial(zlib.decompressobj, -15)
ZSTD: Final[Encoding] = partial(_Members, _ZstdStream)


class Decompressor:
    """Decompresses what clients send to a server."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, "decompression")
        self._free_threads = asyncio.Semaphore(_THREADS)

    def close(self) -> None:
        """Let the threads end when they have nothing to do."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def decompress(
        self, data: bytes, encoding: Encoding, largest: int, take: Callable[[int, int], None]
    ) -> bytes:
        """Return up to ``largest`` bytes of decompressed data.

        ``take`` is called before each piece is kept, with its size and the total so far; an exception ends the work.
        Raises zlib.error: the data cannot be decompressed, is cut short, or something follows behind its end.
        """
        stream = encoding()
        pieces, size, position = list[bytes](), 0, 0
        fed: bytes | memoryview = b""
        if len(data) <= _SMALL:
            pieces.append(stream.decompress(data, min(_SMALL, largest + 1)))
            size, position, fed = len(pieces[0]), len(data), stream.unconsumed_tail
            take(size, size)

        def has_more() -> bool:
            return not stream.eof or (not stream.unused_data and bool(fed or position < len(data)))

        if has_more():
            run = asyncio.get_running_loop().run_in_executor
            async with self._free_threads:
                while has_more():
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
