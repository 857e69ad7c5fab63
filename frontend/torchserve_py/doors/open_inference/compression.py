"""Compressed bodies: requests that come as gzip or deflate, answers for clients that accept those."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from torchserve_py.doors.errors import BodyTooLargeError, bad_request

if TYPE_CHECKING:
    from torchserve_py.doors.responses import Headers
    from torchserve_py.transport.http1.request import Request

GZIP: Final = "gzip"
DEFLATE: Final = "deflate"
_IDENTITY: Final = ("", "identity")
_GZIP_WINDOW: Final = 31
_ZLIB_WINDOW: Final = 15
_BARE_WINDOW: Final = -15  # deflate as some clients understand it, without zlib's container
_LEVEL: Final = 1
#: Bodies above this size are (de)compressed in a thread, so that other requests do not wait for them.
_LARGE: Final = 64 * 1024


async def decompressed(body: bytes, encoding: str, max_size: int) -> bytes:
    """Undo a request's ``Content-Encoding``.

    Raises:
        BodyTooLargeError: What comes out is larger than ``max_size`` bytes.
        DoorError: It is not what it is said to be, or the encoding is none of those.
    """
    encoding = encoding.strip().lower()
    if encoding in _IDENTITY:
        return body
    if encoding not in (GZIP, "x-gzip", DEFLATE):
        raise bad_request(f"Header Content-Encoding: {encoding!a} is not supported; send gzip, deflate or identity.")
    if len(body) > _LARGE:
        return await asyncio.to_thread(_decompress, body, encoding, max_size)
    return _decompress(body, encoding, max_size)


def _decompress(body: bytes, encoding: str, max_size: int) -> bytes:
    windows = (_ZLIB_WINDOW, _BARE_WINDOW) if encoding == DEFLATE else (_GZIP_WINDOW,)
    for window in windows:
        decompressor = zlib.decompressobj(window)
        try:
            content = decompressor.decompress(body, max_size + 1)
        except zlib.error as error:
            problem = str(error)
            continue
        if len(content) > max_size:
            raise BodyTooLargeError(max_size)
        if decompressor.eof and not decompressor.unused_data:
            return content
        problem = "it is incomplete" if not decompressor.eof else "something follows behind its end"
    raise bad_request(f"The request body is not what its Content-Encoding says ({encoding}): {problem}.")


@lru_cache(maxsize=64)
def accepted_encoding(header: str) -> str | None:
    """The encoding that a client likes best, as its ``Accept-Encoding`` says; None for none."""
    weights: dict[str, float] = {}
    for item in header.lower().split(","):
        name, *parameters = (part.strip() for part in item.split(";"))
        weight = next((each[2:] for each in parameters if each.startswith("q=")), "1")
        try:
            weights[name] = float(weight)
        except ValueError:
            weights[name] = 0.0
    rest = weights.get("*", 0.0)
    best = max((GZIP, DEFLATE), key=lambda name: weights.get(name, rest))
    weight_of_best = weights.get(best, rest)
    return best if weight_of_best > 0 and weight_of_best >= weights.get("identity", 0.0) else None


def encoding_for(request: Request, body: bytes, min_size: int) -> str | None:
    """The encoding that a client wants a body in; None if it is to go as it is, as those under ``min_size`` do."""
    accepted = request.headers.get("Accept-Encoding") if len(body) >= min_size else None
    return None if accepted is None else accepted_encoding(accepted)


async def compressed_for(request: Request, body: bytes, min_size: int) -> tuple[bytes, Headers]:
    """A body as a client wants it, and the headers that say so."""
    encoding = encoding_for(request, body, min_size)
    if encoding is None:
        return body, ()
    return await compressed(body, encoding), (("content-encoding", encoding), ("vary", "accept-encoding"))


async def compressed(body: bytes, encoding: str) -> bytes:
    """A body in one of the encodings."""
    if len(body) > _LARGE:
        return await asyncio.to_thread(_compress, body, encoding)
    return _compress(body, encoding)


def _compress(body: bytes, encoding: str) -> bytes:
    return gzip.compress(body, _LEVEL, mtime=0) if encoding == GZIP else zlib.compress(body, _LEVEL)
