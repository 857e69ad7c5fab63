"""Header blocks: what a request's says, and those of responses.

Clients send the same headers with every call. Once they are in the table of the compression (RFC 7541), the block that
refers to them is the same few bytes each time, so what it was decoded to is kept, as long as the table stays as it is.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from hpack import Decoder
from hpack.exceptions import HPACKError, OversizedHeaderListError

from torchserve_py.transport.http2.frames import ConnectionFailed, ErrorCode

#: How large the headers of a request may be, counted as RFC 9113 (6.5.2) does.
MAX_HEADER_LIST_SIZE: Final = 65_536
#: How many bytes of blocks that were decoded, and of what they say, are kept for a connection.
_MAX_KEPT: Final = 65_536
#: What an entry takes besides its text.
_ENTRY_SIZE: Final = 32

Metadata = tuple[tuple[str, str | bytes], ...]

_CONTENT_TYPE: Final = "application/grpc"
_CONNECTION_SPECIFIC: Final = frozenset(
    {"connection", "proxy-connection", "keep-alive", "transfer-encoding", "upgrade"}
)
_PSEUDO: Final = frozenset({":method", ":scheme", ":path", ":authority"})
_NOT_METADATA: Final = frozenset({"content-type", "te", "grpc-timeout", "grpc-encoding", "grpc-accept-encoding"})
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]+")
_BAD_VALUE: Final = re.compile(r"[\0\r\n]")
_TIMEOUT: Final = re.compile(r"([0-9]{1,8})([HMSmun])")
_SECONDS: Final = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}


class RequestHead(NamedTuple):
    """What the headers of a call say. ``http_status`` is not 200 where it is no gRPC call; only that is answered."""

    http_status: int
    path: str
    timeout: float | None
    encoding: str
    metadata: Metadata


class HeaderDecoder:
    """Decodes the header blocks of one connection, in their order."""

    def __init__(self) -> None:
        self._decoder = Decoder(MAX_HEADER_LIST_SIZE)
        self._kept: dict[bytes, RequestHead | None] = {}
        self._room = _MAX_KEPT

    def decode(self, block: bytes) -> RequestHead | None:
        """What a block says; None if that is no request.

        Raises:
            ConnectionFailed: It cannot be decoded.
        """
        if block in self._kept:
            return self._kept[block]
        table = self._decoder.header_table
        entries = table.dynamic_entries
        before = (entries[0] if entries else None, len(entries), table.maxsize)
        try:
            headers = self._decoder.decode(block, raw=True)
        except OversizedHeaderListError as error:
            raise ConnectionFailed(ErrorCode.ENHANCE_YOUR_CALM, "headers larger than 64 KiB") from error
        except HPACKError as error:
            raise ConnectionFailed(ErrorCode.COMPRESSION_ERROR, str(error)) from error
        head = _request_head([(name.decode("latin-1"), value.decode("latin-1")) for name, value, *_ in headers])
        newest, count, limit = before
        if (entries[0] if entries else None) is not newest or len(entries) != count or table.maxsize != limit:
            self._kept.clear()
            self._room = _MAX_KEPT
            return head
        size = len(block) + sum(len(name) + len(value) + _ENTRY_SIZE for name, value, *_ in headers)
        if size <= self._room:
            self._room -= size
            self._kept[block] = head
        return head


def _request_head(headers: Sequence[tuple[str, str]]) -> RequestHead | None:
    pseudo: dict[str, str] = {}
    regular: dict[str, str] = {}
    metadata: list[tuple[str, str | bytes]] = []
    for name, value in headers:
        if name.startswith(":"):
            if regular or name in pseudo or name not in _PSEUDO:
                return None
            pseudo[name] = value
            continue
        if not _NAME.fullmatch(name) or _BAD_VALUE.search(value) or name in _CONNECTION_SPECIFIC:
            return None
        regular[name] = value
        if name not in _NOT_METADATA:
            metadata += _entries(name, value)
    if not pseudo.get(":path") or ":method" not in pseudo or ":scheme" not in pseudo:
        return None
    return _head(pseudo, regular, tuple(metadata))


def _head(pseudo: dict[str, str], regular: dict[str, str], metadata: Metadata) -> RequestHead | None:
    content_type = regular.get("content-type", "")
    is_grpc = content_type == _CONTENT_TYPE or content_type.startswith((f"{_CONTENT_TYPE}+", f"{_CONTENT_TYPE};"))
    status = 200
    if pseudo[":method"] != "POST":
        status = 405
    elif not is_grpc:
        status = 415
    timeout = None
    if "grpc-timeout" in regular:
        found = _TIMEOUT.fullmatch(regular["grpc-timeout"])
        if found is None:
            return None
        timeout = int(found[1]) * _SECONDS[found[2]]
    return RequestHead(status, pseudo[":path"], timeout, regular.get("grpc-encoding", "identity"), metadata)


def _entries(name: str, value: str) -> Iterable[tuple[str, str | bytes]]:
    if not name.endswith("-bin"):
        return ((name, value),)
    try:
        return tuple((name, _from_base64(each)) for each in value.split(","))
    except (binascii.Error, ValueError):
        return ()  # a value that is not what its name says is nobody's


def _from_base64(text: str) -> bytes:
    text = text.strip()
    return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)


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
    return b"".join(
        bytes((byte,)) if 0x20 <= byte <= 0x7E and byte != 0x25 else b"%%%02X" % byte for byte in text.encode()
    )


#: What ends a response that is right.
OK_TRAILERS: Final = trailers(0, "", ())
