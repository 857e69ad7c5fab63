"""Reads the fields of a header block: the head of a call, or trailers (RFC 9113, 8.1 to 8.3)."""

import base64
import binascii
import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

Metadata = tuple[tuple[str, str | bytes], ...]

#: The size of a field besides its text (RFC 9113, 6.5.2).
FIELD_SIZE: Final = 32
_CONTENT_TYPE: Final = "application/grpc"
_CONNECTION_SPECIFIC: Final = frozenset(
    {"connection", "proxy-connection", "keep-alive", "transfer-encoding", "upgrade"}
)
_PSEUDO: Final = frozenset({":method", ":scheme", ":path", ":authority"})
_NOT_METADATA: Final = frozenset({"content-type", "te", "grpc-timeout", "grpc-encoding", "grpc-accept-encoding"})
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]+")
#: A control character that could end the field in another protocol, or a blank at either end.
_BAD_VALUE: Final = re.compile(r"[\0\r\n]|\A[ \t]|[ \t]\Z")
_PATH: Final = re.compile(r"/[\x21-\x7e]*")
_NUMBER: Final = re.compile(r"[0-9]{1,18}")
_TIMEOUT: Final = re.compile(r"([0-9]{1,8})([HMSmun])")
_SECONDS: Final = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}

Field = tuple[str, str]


class RequestHead(NamedTuple):
    """The head of a call."""

    http_status: int  # 200; another status, which is the whole answer, if the request is no gRPC call
    path: str  # ``/package.Service/Method``
    timeout: float | None  # seconds that the client waits; None for no limit
    encoding: str  # the compression of compressed messages
    content_length: int | None  # the bytes of data that the client has announced, or None
    metadata: Metadata
    size: int  # of all headers, as RFC 9113 (6.5.2) counts


class Trailers:
    """A block without pseudo-headers, which may only end a request."""

    __slots__ = ()


TRAILERS: Final = Trailers()


def read_head(fields: Sequence[Field]) -> RequestHead | Trailers | None:
    """Return the head or the trailers in the fields of a block; None if the fields are malformed."""
    pseudo: dict[str, str] = {}
    regular: dict[str, str] = {}
    metadata: list[tuple[str, str | bytes]] = []
    size = 0
    for field in fields:
        name, value = field
        size += len(name) + len(value) + FIELD_SIZE
        if name.startswith(":"):
            if regular or name in pseudo or name not in _PSEUDO or _BAD_VALUE.search(value):
                return None
            pseudo[name] = value
            continue
        if not _NAME.fullmatch(name) or _BAD_VALUE.search(value) or name in _CONNECTION_SPECIFIC:
            return None
        if name in ("content-length", "te") and name in regular and regular[name] != value:
            return None
        regular[name] = value
        if name not in _NOT_METADATA:
            metadata += _entries(field)
    if regular.get("te", "trailers").lower() != "trailers":
        return None
    return _head(pseudo, regular, tuple(metadata), size) if pseudo else TRAILERS


def _head(pseudo: dict[str, str], regular: dict[str, str], metadata: Metadata, size: int) -> RequestHead | None:
    path = pseudo.get(":path")
    if path is None or not _PATH.fullmatch(path) or not pseudo.get(":method") or not pseudo.get(":scheme"):
        return None
    content_type = regular.get("content-type", "")
    is_grpc = content_type == _CONTENT_TYPE or content_type.startswith((f"{_CONTENT_TYPE}+", f"{_CONTENT_TYPE};"))
    status = 200
    if pseudo[":method"] != "POST":
        status = 405
    elif not is_grpc:
        status = 415
    timeout = content_length = None
    if "grpc-timeout" in regular:
        found = _TIMEOUT.fullmatch(regular["grpc-timeout"])
        if found is None:
            return None
        timeout = int(found[1]) * _SECONDS[found[2]]
    if "content-length" in regular:
        if not _NUMBER.fullmatch(regular["content-length"]):
            return None
        content_length = int(regular["content-length"])
    encoding = regular.get("grpc-encoding", "identity")
    return RequestHead(status, path, timeout, encoding, content_length, metadata, size)


def _entries(field: Field) -> Iterable[tuple[str, str | bytes]]:
    """Return the metadata of a field; for text the field object itself, which other requests may share."""
    name, value = field
    if not name.endswith("-bin"):
        return (field,)
    try:
        return tuple((name, _from_base64(each)) for each in value.split(","))
    except (binascii.Error, ValueError):
        return ()  # a malformed binary value is ignored


def _from_base64(text: str) -> bytes:
    text = text.strip()
    return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
