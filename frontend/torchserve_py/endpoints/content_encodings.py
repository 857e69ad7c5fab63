"""`Content-Encoding`: which encodings the bodies of requests may have, what undoes them, and what refuses others."""

import zlib
from typing import Final

from torchserve_py.endpoints.failures import EndpointError, Failure, bad_request
from torchserve_py.net import decompression
from torchserve_py.net.http1.parser import Headers
from torchserve_py.net.http1.request import Request

#: The header with the encoding of the body, as the parser has it.
CONTENT_ENCODING: Final = b"content-encoding"
#: The headers of an encoded body that are wrong once its encoding is undone.
_OF_ENCODED: Final = frozenset((CONTENT_ENCODING, b"content-length"))
GZIP: Final = "gzip"
DEFLATE: Final = "deflate"
IDENTITY: Final = "identity"
_ENCODINGS: Final = {GZIP: decompression.GZIP, DEFLATE: decompression.DEFLATE, "zstd": decompression.ZSTD}
#: What some clients call an encoding, too.
_OTHER_NAMES: Final = {"x-gzip": GZIP, "": IDENTITY}
#: The method of compression in the first byte of zlib's container (RFC 1950, 2.2).
_DEFLATED: Final = 8


def encoding_of(request: Request) -> str:
    """Return the name of the encoding of a request's body."""
    name = request.headers.get("Content-Encoding", "").strip().lower()
    return _OTHER_NAMES.get(name, name)


async def decompressed(request: Request, body: bytes, max_size: int) -> bytes:
    """Return a body without its ``Content-Encoding``.

    Raises EndpointError: the encoding is unknown or wrong; BodyError: the decompressed body is larger than ``max_size``
    bytes; NoRoomError: the server lacks memory now.
    """
    name = encoding_of(request)
    if name == IDENTITY:
        return body
    encoding = _ENCODINGS.get(name)
    if encoding is None:
        raise _unsupported(name)
    if name == DEFLATE:
        has_container = body[:1] and body[0] & 0x0F == _DEFLATED and int.from_bytes(body[:2], "big") % 31 == 0
        if not has_container:  # some clients leave the container of zlib out
            encoding = decompression.BARE_DEFLATE
    try:
        return await request.decompress(body, encoding, max_size)
    except zlib.error as error:
        raise bad_request(f"The request body is not what its Content-Encoding says ({name}): {error}.") from error


async def undo_encoding(request: Request, body: bytes, max_size: int) -> bytes:
    """Return a body without its encoding, as `decompressed` does; the request names no encoding from then on."""
    body = await decompressed(request, body, max_size)
    request.headers = Headers({name: value for name, value in request.headers.raw.items() if name not in _OF_ENCODED})
    request.raw_headers = tuple(pair for pair in request.raw_headers if pair[0].lower() not in _OF_ENCODED)
    return body


def _unsupported(name: str) -> EndpointError:
    """Return the error for a body in an encoding that the server cannot undo (RFC 9110, 15.5.16)."""
    known = ", ".join(_ENCODINGS)
    message = f"Header Content-Encoding: {name!a} is not supported; send {known} or {IDENTITY}."
    return EndpointError(
        Failure(415, "UnsupportedMediaTypeException", message, more_headers=(("Accept-Encoding", known),))
    )
