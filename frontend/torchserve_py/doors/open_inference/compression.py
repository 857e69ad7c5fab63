"""Compressed bodies: requests that come as gzip or deflate, answers for clients that accept those."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from torchserve_py.doors.errors import bad_request
from torchserve_py.doors.requests import body_refusal
from torchserve_py.transport.decompression import BARE_WINDOW, GZIP_WINDOW, ZLIB_WINDOW
from torchserve_py.transport.http1.errors import BodyError

if TYPE_CHECKING:
    from torchserve_py.doors.responses import Headers
    from torchserve_py.transport.http1.request import Request

GZIP: Final = "gzip"
DEFLATE: Final = "deflate"
_IDENTITY: Final = ("", "identity")
#: The method of compression in the first byte of zlib's container (RFC 1950, 2.2).
_DEFLATED: Final = 8
_LEVEL: Final = 1
#: Bodies above this size are compressed in a thread, so that other requests do not wait for them.
_LARGE: Final = 64 * 1024


async def decompressed(request: Request, body: bytes, max_size: int) -> bytes:
    """Undo a request's ``Content-Encoding``.

    Raises:
        BodyTooLargeError: What comes out is larger than ``max_size`` bytes.
        DoorError: It is not what it is said to be, the encoding is none of those, or the server has no room for it now.
    """
    encoding = request.headers.get("Content-Encoding", "").strip().lower()
    if encoding in _IDENTITY:
        return body
    if encoding not in (GZIP, "x-gzip", DEFLATE):
        raise bad_request(f"Header Content-Encoding: {encoding!a} is not supported; send gzip, deflate or identity.")
    window = GZIP_WINDOW
    if encoding == DEFLATE:
        has_container = body[:1] and body[0] & 0x0F == _DEFLATED and int.from_bytes(body[:2], "big") % 31 == 0
        window = ZLIB_WINDOW if has_container else BARE_WINDOW  # some clients leave the container of zlib out
    try:
        return await request.decompress(body, window, max_size)
    except BodyError as error:
        raise body_refusal(error) from error
    except zlib.error as error:
        raise bad_request(f"The request body is not what its Content-Encoding says ({encoding}): {error}.") from error


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
