"""Header blocks of responses. They use no compression table, so that each block is independent of others."""

import base64
import re
from functools import lru_cache
from typing import Final

from torchserve_py.net.http2.request_head import Metadata

#: The bytes of a status's description that are sent percent-encoded.
_SPECIAL: Final = re.compile(rb"[^\x20-\x24\x26-\x7e]")
#: The most bytes of a status's description on the wire: clients take 8 KiB of trailers.
_MAX_MESSAGE: Final = 4096


def _literal(name: str, value: bytes) -> bytes:
    """Return a header that neither refers to a table nor enters one."""
    return _name(name) + _length(len(value)) + value


@lru_cache(maxsize=256)
def _name(name: str) -> bytes:
    """Return what a header has before the length of its value; the name may be in any case."""
    encoded = name.lower().encode("latin-1")
    return b"\0" + _length(len(encoded)) + encoded


@lru_cache(maxsize=256)
def _length(number: int) -> bytes:
    """Return a length: an integer with a prefix of seven bits, and no Huffman code (RFC 7541, 5.1)."""
    if number < 0x7F:
        return bytes((number,))
    number -= 0x7F
    encoded = bytearray((0x7F,))
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


_STATUS_200: Final = b"\x88"  # of the static table
#: The headers of every response.
RESPONSE: Final = (
    _STATUS_200
    + _literal("content-type", b"application/grpc")
    + _literal("grpc-accept-encoding", b"identity,deflate,gzip")
)


def http_error(status: int) -> bytes:
    """Return the headers of the answer to a request that is no gRPC call."""
    return _literal(":status", str(status).encode())


def trailers(code: int, message: str, metadata: Metadata) -> bytes:
    block = _literal("grpc-status", str(code).encode())
    if message:
        block += _literal("grpc-message", _percent_encoded(message))
    return block + _metadata(metadata)


def _metadata(metadata: Metadata) -> bytes:
    pieces: list[bytes] = []
    for name, value in metadata:
        data = value if isinstance(value, bytes) else value.encode()
        if name.endswith("-bin"):
            data = base64.b64encode(data).rstrip(b"=")
        pieces += (_name(name), _length(len(data)), data)
    return b"".join(pieces)


def _percent_encoded(text: str) -> bytes:
    """Return a description for the wire, cut if it is very long."""
    encoded = text[:_MAX_MESSAGE].encode("utf-8", "replace")
    sent = _SPECIAL.sub(lambda found: b"%%%02X" % found[0][0], encoded)
    if len(sent) <= _MAX_MESSAGE and len(text) <= _MAX_MESSAGE:
        return sent
    cut = sent[: _MAX_MESSAGE - 3]
    return cut[: cut.rindex(b"%")] + b"..." if b"%" in cut[-2:] else cut + b"..."


#: What ends a response that is right.
OK_TRAILERS: Final = trailers(0, "", ())
