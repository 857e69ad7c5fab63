"""Header blocks of responses. They use no table of the compression, so that each stands for itself."""

from __future__ import annotations

import base64
import re
from typing import Final

from torchserve_py.transport.http2.request_head import Metadata

#: The bytes of a status's description that are sent percent-encoded.
_SPECIAL: Final = re.compile(rb"[^\x20-\x24\x26-\x7e]")
#: How long a status's description may be as it is sent (bytes): clients take 8 KiB of trailers.
_MAX_MESSAGE: Final = 4096


def _literal(name: str, value: bytes) -> bytes:
    """A header that refers to no table and enters none."""
    encoded = name.encode("latin-1")
    return b"\0" + _length(len(encoded)) + encoded + _length(len(value)) + value


def _length(number: int) -> bytes:
    """An integer with a prefix of seven bits, and no Huffman code (RFC 7541, 5.1)."""
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
    """The only headers of an answer to what is no gRPC call."""
    return _literal(":status", str(status).encode())


def initial(metadata: Metadata) -> bytes:
    """The headers of a response with metadata of its own."""
    return RESPONSE + _metadata(metadata)


def trailers(code: int, message: str, metadata: Metadata) -> bytes:
    """What ends a response."""
    block = _literal("grpc-status", str(code).encode())
    if message:
        block += _literal("grpc-message", _percent_encoded(message))
    return block + _metadata(metadata)


def _metadata(metadata: Metadata) -> bytes:
    block = b""
    for name, value in metadata:
        data = value if isinstance(value, bytes) else value.encode()
        block += _literal(name.lower(), base64.b64encode(data).rstrip(b"=") if name.endswith("-bin") else data)
    return block


def _percent_encoded(text: str) -> bytes:
    """The text as a description is sent; the rest of a very long one is left out."""
    encoded = text[:_MAX_MESSAGE].encode("utf-8", "replace")
    sent = _SPECIAL.sub(lambda found: b"%%%02X" % found[0][0], encoded)
    if len(sent) <= _MAX_MESSAGE and len(text) <= _MAX_MESSAGE:
        return sent
    cut = sent[: _MAX_MESSAGE - 3]
    return cut[: cut.rindex(b"%")] + b"..." if b"%" in cut[-2:] else cut + b"..."


#: What ends a response that is right.
OK_TRAILERS: Final = trailers(0, "", ())
