"""Cases of RFC 9113, section 8 (requests), and of RFC 7541 (their headers)."""

from typing import Final

from tests.net.http2.conformance import (
    CALL,
    ECHO,
    OPEN,
    Answer,
    Case,
    Goaway,
    Reset,
    block,
    data,
    head_without,
    headers,
    literal,
)
from tests.net.http2.raw_client import MESSAGE, frame

from torchserve_py.net.http2 import frames
from torchserve_py.net.http2.frames import ErrorCode

MALFORMED: Final = Reset(ErrorCode.PROTOCOL_ERROR)
COMPRESSION: Final = Goaway(ErrorCode.COMPRESSION_ERROR)
TRAILERS: Final = frames.END_HEADERS | frames.END_STREAM


def request(*more: tuple[str, str], without: tuple[str, ...] = ()) -> bytes:
    return headers(block(*head_without(*without), *more))


def first(*pseudo: tuple[str, str], without: tuple[str, ...] = ()) -> bytes:
    return headers(block(*pseudo, *head_without(*without)))


def trailers(*fields: tuple[str, str]) -> bytes:
    return headers(block(*fields), flags=TRAILERS)


def body(payload: bytes = MESSAGE) -> bytes:
    return data(payload=payload, flags=0)


def method(name: str) -> bytes:
    return headers(block((":method", name), *head_without(":method")), flags=TRAILERS)


def indexed_path(prefix: int, mask: int) -> bytes:
    """A literal whose name is that of entry 4 of the static table, ``:path``."""
    return bytes((prefix | (4 & mask),)) + b"\x12/test.Service/Echo"


REQUESTS: Final = [
    Case("8.1", "POST", (CALL,), Answer()),
    Case("8.1", "POST with trailers", (OPEN, body(), trailers(("x-end", "1"))), Answer()),
    Case("8.1", "GET, which gRPC does not have", (method("GET"),), Answer(b":status\x03405", says="HTTP status 405")),
    Case("8.1", "HEAD, which gRPC does not have", (method("HEAD"),), Answer(b":status\x03405", says="HTTP status 405")),
    Case(
        "8.1",
        "A body that is not gRPC",
        (request(("content-type", "a/b"), without=("content-type",)),),
        Answer(b":status\x03415", says="HTTP status 415"),
    ),
    Case("8.1", "Second HEADERS that do not end the stream", (OPEN, headers(block(("x", "y")))), MALFORMED),
    Case("8.1", "A second head", (OPEN, body(), headers(flags=TRAILERS)), MALFORMED),
    Case("8.1.1", "A content-length that is right", (request(("content-length", "6")), data()), Answer()),
    Case("8.1.1", "A content-length above that of one DATA", (request(("content-length", "7")), data()), MALFORMED),
    Case("8.1.1", "A content-length below that of one DATA", (request(("content-length", "1")), data()), MALFORMED),
    Case(
        "8.1.1",
        "A content-length that several DATA do not have",
        (request(("content-length", "7")), body(MESSAGE[:3]), data(payload=MESSAGE[3:])),
        MALFORMED,
    ),
    Case(
        "8.1.1",
        "A content-length that is not reached before trailers",
        (request(("content-length", "7")), body(), trailers(("x", "y"))),
        MALFORMED,
    ),
    Case(
        "8.1.1",
        "A content-length without DATA",
        (headers(ECHO + literal("content-length", "1"), 1, TRAILERS),),
        MALFORMED,
    ),
    Case("8.1.1", "A content-length that is no number", (request(("content-length", "+6")),), MALFORMED),
    Case("8.1.1", "Two content-lengths", (request(("content-length", "6"), ("content-length", "7")),), MALFORMED),
    Case("8.2", "A name in upper case", (request(("X-TEST", "ok")),), MALFORMED),
    Case("8.2", "A name in upper case in trailers", (OPEN, body(), trailers(("X-TEST", "ok"))), MALFORMED),
    Case("8.2.1", "A name with a blank", (request(("x test", "ok")),), MALFORMED),
    Case("8.2.1", "A name that is empty", (request(("", "ok")),), MALFORMED),
    Case("8.2.1", "A name with a colon", (request(("x:test", "ok")),), MALFORMED),
    Case("8.2.1", "A value with a blank in front", (request(("x", " y")),), MALFORMED),
    Case("8.2.1", "A value with a blank behind", (request(("x", "y\t")),), MALFORMED),
    Case("8.2.1", "A value with a line break", (request(("x", "y\r\nz")),), MALFORMED),
    Case("8.2.1", "A value with NUL", (request(("x", "y\0z")),), MALFORMED),
    Case("8.2.1", "A value with NUL in trailers", (OPEN, body(), trailers(("x", "\0"))), MALFORMED),
    Case("8.2.2", "connection", (request(("connection", "keep-alive")),), MALFORMED),
    Case("8.2.2", "transfer-encoding", (request(("transfer-encoding", "chunked")),), MALFORMED),
    Case("8.2.2", "te: trailers, deflate", (request(("te", "trailers, deflate"), without=("te",)),), MALFORMED),
    Case("8.3", "An unknown pseudo-header", (first((":test", "ok")),), MALFORMED),
    Case("8.3", "A pseudo-header of responses", (first((":status", "200")),), MALFORMED),
    Case("8.3", "A pseudo-header in trailers", (OPEN, body(), trailers((":method", "GET"))), MALFORMED),
    Case(
        "8.3",
        "A pseudo-header behind another header",
        (request((":authority", "h"), without=(":authority",)),),
        MALFORMED,
    ),
    Case("8.3.1", "An empty :path", (first((":path", ""), without=(":path",)),), MALFORMED),
    Case("8.3.1", "A :path without / in front", (first((":path", "a/b"), without=(":path",)),), MALFORMED),
    Case("8.3.1", "A :path with NUL", (first((":path", "/a\0b"), without=(":path",)),), MALFORMED),
    Case("8.3.1", "A :path with a blank", (first((":path", "/a b"), without=(":path",)),), MALFORMED),
    Case("8.3.1", "No :method", (request(without=(":method",)),), MALFORMED),
    Case("8.3.1", "No :scheme", (request(without=(":scheme",)),), MALFORMED),
    Case("8.3.1", "No :path", (request(without=(":path",)),), MALFORMED),
    Case("8.3.1", "Two :method", (first((":method", "POST")),), MALFORMED),
    Case("8.3.1", "Two :scheme", (first((":scheme", "http")),), MALFORMED),
    Case("8.3.1", "Two :path", (first((":path", "/test.Service/Echo")),), MALFORMED),
    Case(
        "8.4", "PUSH_PROMISE of a client", (OPEN, frame(5, 4, 1, b"\0\0\0\2" + ECHO)), Goaway(ErrorCode.PROTOCOL_ERROR)
    ),
]

_REST: Final = block(*head_without(":path", ":method", ":scheme"))
_POST_HTTP: Final = b"\x83\x86"  # entries 3 and 6 of the static table


def call_with(path: bytes) -> tuple[bytes, bytes]:
    return headers(_POST_HTTP + path + _REST), data()


_HUFFMAN_WWW: Final = bytes.fromhex("8cf1e3c2e5f23a6ba0ab90f4ff")  # www.example.com
HEADERS: Final = [
    Case("2.3.3", "An index beyond the table", (headers(_POST_HTTP + b"\xc6" + _REST),), COMPRESSION),
    Case("2.3.3", "The index of a name beyond the table", (headers(b"\x7e\x01x" + ECHO),), COMPRESSION),
    Case("4.2", "A change of the table behind a header", (headers(ECHO + b"\x3f\x01"),), COMPRESSION),
    Case("5.1", "An integer that does not end", (headers(b"\xff" + b"\x80" * 9),), COMPRESSION),
    Case("5.1", "An integer of 60,000 bytes", (headers(b"\xff" + b"\xff" * 60_000),), COMPRESSION),
    Case("5.2", "Huffman padding of more than 7 bits", (headers(b"\0\x81x\x82\xff\xff"),), COMPRESSION),
    Case("5.2", "Huffman padding of zeros", (headers(b"\0\x01x\x81\x00"),), COMPRESSION),
    Case("5.2", "The Huffman code EOS", (headers(b"\0\x01x\x84\xff\xff\xff\xff"),), COMPRESSION),
    Case("5.2", "A string that is cut short", (headers(b"\0\x01x\x7ey"),), COMPRESSION),
    Case(
        "6.1",
        "Indexed",
        (*call_with(indexed_path(0x40, 0x3F)), headers(_POST_HTTP + b"\xbe" + _REST, 3), data(3)),
        Answer(stream_id=3),
    ),
    Case("6.1", "Index 0", (headers(b"\x80" + ECHO),), COMPRESSION),
    Case("6.2.1", "Literal that enters the table, name of the table", call_with(indexed_path(0x40, 0x3F)), Answer()),
    Case("6.2.1", "Literal that enters the table, new name", (headers(ECHO + b"\x40\x01x\x01y"), data()), Answer()),
    Case("6.2.2", "Literal, name of the table", call_with(indexed_path(0x00, 0x0F)), Answer()),
    Case("6.2.2", "Literal, new name", (CALL,), Answer()),
    Case("6.2.3", "Literal that is never indexed, name of the table", call_with(indexed_path(0x10, 0x0F)), Answer()),
    Case("6.2.3", "Literal that is never indexed, new name", (headers(ECHO + b"\x10\x01x\x01y"), data()), Answer()),
    Case("6.2.3", "A value in Huffman code", (headers(ECHO + b"\0\x01x" + _HUFFMAN_WWW), data()), Answer()),
    Case("6.3", "A change of the table", (headers(b"\x3f\x01" + ECHO), data()), Answer()),
    Case("6.3", "Two changes of the table", (headers(b"\x20\x3f\x01" + ECHO), data()), Answer()),
    Case("6.3", "A table larger than the setting", (headers(b"\x3f\xe2\x1f" + ECHO),), COMPRESSION),
]
