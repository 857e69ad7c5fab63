"""Cases of RFC 9113, sections 3 to 7: connections, frames, streams (h2spec's generic 1 to 3 and http2 3 to 7)."""

import struct
from typing import Final

from tests.net.http2.conformance import (
    ANSWERED,
    CALL,
    ECHO,
    HALF_CLOSED,
    OPEN,
    PING,
    Alive,
    Answer,
    Case,
    Goaway,
    Received,
    Reset,
    block,
    counting,
    data,
    headers,
)
from tests.net.http2.raw_client import MESSAGE, frame

from torchserve_py.net.http2 import frames
from torchserve_py.net.http2.frames import ErrorCode

PROTOCOL: Final = Goaway(ErrorCode.PROTOCOL_ERROR)
SIZE: Final = Goaway(ErrorCode.FRAME_SIZE_ERROR)
CLOSED: Final = Goaway(ErrorCode.STREAM_CLOSED)
FLOW: Final = Goaway(ErrorCode.FLOW_CONTROL_ERROR)
MORE: Final = block(("more", "x"))
PRIORITY: Final = struct.pack(">IB", 0, 15)
ACK: Final = Received(frames.SETTINGS, frames.ACK, b"", "it is acknowledged")
PONG: Final = Received(frames.PING, frames.ACK, b"12345678", "it is answered")
CANCELLED: Final = frames.rst_stream(1, ErrorCode.CANCEL)
EMPTY: Final = data(flags=0, payload=b"")


def priority(stream_id: int, on: int, weight: int = 15) -> bytes:
    return frame(frames.PRIORITY, 0, stream_id, struct.pack(">IB", on, weight))


def with_priority(on: int) -> bytes:
    flags = frames.END_HEADERS | frames.HAS_PRIORITY
    return headers(struct.pack(">IB", on, 15) + ECHO, flags=flags)


def setting(name: int, value: int) -> bytes:
    return frames.settings({name: value})


def continuation(fields: bytes = MORE, stream_id: int = 1, flags: int = frames.END_HEADERS) -> bytes:
    return frame(frames.CONTINUATION, flags, stream_id, fields)


BEGUN: Final = headers(flags=0)  # headers that go on
NAMED: Final = block(("x", "y"))

THREE: Final = Received(frames.DATA, 0, b"\0\0\0", "DATA of 3 bytes")

CASES: Final = [
    Case("3.4", "A preface and SETTINGS", (frames.PREFACE, frames.settings({})), ACK, has_hello=True),
    Case("3.4", "A preface that is none", (b"INVALID CONNECTION PREFACE\r\n\r\n",), PROTOCOL, has_hello=True),
    Case("3.4", "A first frame that is not SETTINGS", (frames.PREFACE, PING), PROTOCOL, has_hello=True),
    Case("3.4", "A request of HTTP/1.1", (b"GET / HTTP/1.1\r\nHost: h\r\n\r\n",), PROTOCOL, has_hello=True),
    Case("4.1", "A frame of an unknown type", (frame(0x16, 0, 0, b"\0" * 8), PING), PONG),
    Case("4.1", "A frame with undefined flags", (frame(frames.PING, 0x16, 0, b"12345678"),), PONG),
    Case("4.1", "A frame with the reserved bit", (frame(frames.PING, 0, 1 << 31, b"12345678"),), PONG),
    Case("4.2", "DATA of 16,384 bytes", (OPEN, data(payload=b"\0\0\0\x3f\xfb" + bytes(16_379))), Answer()),
    Case("4.2", "DATA larger than the largest frame", (OPEN, data(payload=bytes(65_537))), SIZE),
    Case("4.2", "HEADERS larger than the largest frame", (headers(bytes(65_537)),), SIZE),
    Case("4.3", "Headers that cannot be decoded", (headers(b"\xff" * 4),), Goaway(ErrorCode.COMPRESSION_ERROR)),
    Case("4.3", "PRIORITY within headers", (BEGUN, priority(1, 0), continuation()), PROTOCOL),
    Case("4.3", "HEADERS of another stream within headers", (BEGUN, headers(stream_id=3)), PROTOCOL),
    Case("5.1", "Idle: DATA", (data(),), PROTOCOL),
    Case("5.1", "Idle: RST_STREAM", (CANCELLED,), PROTOCOL),
    Case("5.1", "Idle: WINDOW_UPDATE", (frames.window_update(1, 100),), PROTOCOL),
    Case("5.1", "Idle: CONTINUATION", (continuation(),), PROTOCOL),
    Case("5.1", "Idle: PRIORITY", (priority(1, 0), CALL), Answer()),
    Case("5.1", "Half-closed (remote): DATA", (HALF_CLOSED, data()), Reset(ErrorCode.STREAM_CLOSED)),
    Case("5.1", "Half-closed (remote): HEADERS", (HALF_CLOSED, headers()), Reset(ErrorCode.STREAM_CLOSED)),
    Case("5.1", "Half-closed (remote): trailers", (HALF_CLOSED, headers(MORE, 1, 5)), Reset(ErrorCode.STREAM_CLOSED)),
    Case("5.1", "Half-closed (remote): CONTINUATION", (HALF_CLOSED, continuation()), PROTOCOL),
    Case("5.1", "Half-closed (remote): WINDOW_UPDATE", (HALF_CLOSED, frames.window_update(1, 100)), Alive()),
    Case("5.1", "Half-closed (remote): PRIORITY", (HALF_CLOSED, priority(1, 0)), Alive()),
    Case("5.1", "Half-closed (remote): RST_STREAM", (HALF_CLOSED, CANCELLED), Alive()),
    Case("5.1", "Closed by RST_STREAM: DATA", (OPEN, CANCELLED, data()), Reset(ErrorCode.STREAM_CLOSED)),
    Case("5.1", "Closed by RST_STREAM: HEADERS", (OPEN, CANCELLED, headers()), CLOSED),
    Case("5.1", "Closed by RST_STREAM: CONTINUATION", (OPEN, CANCELLED, continuation()), PROTOCOL),
    Case("5.1", "Closed: DATA", (CALL, ANSWERED, data()), Reset(ErrorCode.STREAM_CLOSED)),
    Case("5.1", "Closed: HEADERS", (CALL, ANSWERED, headers()), CLOSED),
    Case("5.1", "Closed: trailers", (CALL, ANSWERED, headers(MORE, 1, 5)), CLOSED),
    Case("5.1", "Closed: CONTINUATION", (CALL, ANSWERED, continuation()), PROTOCOL),
    Case("5.1", "Closed: PRIORITY", (CALL, ANSWERED, priority(1, 0)), Alive()),
    Case("5.1", "Closed: WINDOW_UPDATE", (CALL, ANSWERED, frames.window_update(1, 100)), Alive()),
    Case("5.1", "Closed: RST_STREAM", (CALL, ANSWERED, CANCELLED), Alive()),
    Case("5.1.1", "A stream of an even number", (headers(stream_id=2),), PROTOCOL),
    Case("5.1.1", "A stream below one that was opened", (headers(stream_id=5), headers(stream_id=3)), PROTOCOL),
    Case("5.1.1", "PRIORITY of a later stream, then a lower one", (priority(9, 0), CALL), Answer()),
    Case(
        "5.1.2",
        "More streams than the limit",
        tuple(headers(stream_id=1 + 2 * number) for number in range(101)),
        Reset(ErrorCode.REFUSED_STREAM, 201),
    ),
    Case("5.3.1", "HEADERS that depend on their own stream", (with_priority(1),), Reset(ErrorCode.PROTOCOL_ERROR)),
    Case("5.3.1", "PRIORITY that depends on its own stream", (priority(1, 1),), Reset(ErrorCode.PROTOCOL_ERROR)),
    Case("5.4.1", "What ends a connection is told by GOAWAY", (frame(frames.PING, 0, 0, b"1"),), SIZE),
    Case("5.5", "A frame of an extension", (frame(0xFF, 0, 0, b"\0" * 8), PING), PONG),
    Case("5.5", "A frame of an extension within headers", (BEGUN, frame(0xFF, 0, 0, b"\0"), continuation()), PROTOCOL),
    Case("6.1", "DATA", (CALL,), Answer()),
    Case("6.1", "Several DATA frames", (OPEN, data(payload=MESSAGE[:2], flags=0), data(payload=MESSAGE[2:])), Answer()),
    Case("6.1", "DATA with padding", (OPEN, data(payload=b"\2" + MESSAGE + b"\0\0", flags=9)), Answer()),
    Case("6.1", "DATA of stream 0", (data(0),), PROTOCOL),
    Case("6.1", "DATA with more padding than payload", (OPEN, data(payload=b"\7" + MESSAGE, flags=9)), PROTOCOL),
    Case("6.1", "DATA with padding whose length is missing", (OPEN, data(payload=b"", flags=9)), SIZE),
    Case("6.1", "Empty DATA", (OPEN, EMPTY, data()), Answer()),
    Case("6.2", "HEADERS with padding", (headers(b"\2" + ECHO + b"\0\0", flags=12), data()), Answer()),
    Case("6.2", "HEADERS with a priority", (with_priority(0), data()), Answer()),
    Case("6.2", "HEADERS of stream 0", (headers(stream_id=0),), PROTOCOL),
    Case("6.2", "HEADERS with more padding than payload", (headers(b"\x7f" + ECHO[:9], flags=12),), PROTOCOL),
    Case("6.2", "HEADERS with padding whose length is missing", (headers(b"", flags=12),), SIZE),
    Case("6.2", "HEADERS without the whole of their priority", (headers(b"\0\0", flags=36),), SIZE),
    Case("6.3", "PRIORITY of the least weight", (priority(1, 0, 0), CALL), Answer()),
    Case("6.3", "PRIORITY of the largest weight", (priority(1, 0, 255), CALL), Answer()),
    Case("6.3", "PRIORITY that depends on another stream", (priority(1, 3), CALL), Answer()),
    Case("6.3", "PRIORITY that depends exclusively", (priority(1, 1 << 31 | 3), CALL), Answer()),
    Case("6.3", "PRIORITY of stream 0", (priority(0, 1),), PROTOCOL),
    Case("6.3", "PRIORITY of another size", (OPEN, frame(2, 0, 1, b"\0\0\0\0")), Reset(ErrorCode.FRAME_SIZE_ERROR)),
    Case("6.4", "RST_STREAM", (OPEN, CANCELLED), Alive()),
    Case("6.4", "RST_STREAM of stream 0", (frames.rst_stream(0, ErrorCode.CANCEL),), PROTOCOL),
    Case("6.4", "RST_STREAM of another size", (OPEN, frame(frames.RST_STREAM, 0, 1, b"\0\0\0")), SIZE),
    Case("6.5", "SETTINGS that acknowledge, with a payload", (frame(frames.SETTINGS, frames.ACK, 0, b"\0"),), SIZE),
    Case("6.5", "SETTINGS of a stream", (frame(frames.SETTINGS, 0, 1),), PROTOCOL),
    Case("6.5", "SETTINGS of another size", (frame(frames.SETTINGS, 0, 0, b"\0" * 5),), SIZE),
    Case("6.5.2", "SETTINGS_ENABLE_PUSH of neither 0 nor 1", (setting(frames.ENABLE_PUSH, 2),), PROTOCOL),
    Case("6.5.2", "SETTINGS_INITIAL_WINDOW_SIZE above 2^31-1", (setting(4, 1 << 31),), FLOW),
    Case("6.5.2", "SETTINGS_MAX_FRAME_SIZE below 2^14", (setting(5, 16_383),), PROTOCOL),
    Case("6.5.2", "SETTINGS_MAX_FRAME_SIZE above 2^24-1", (setting(5, 1 << 24),), PROTOCOL),
    Case("6.5.2", "An unknown setting", (setting(0xFF, 1), PING), PONG),
    Case("6.5.3", "SETTINGS", (frames.settings({}),), ACK),
    Case(
        "6.5.3",
        "Of several values of a setting the last counts",
        (frame(4, 0, 0, struct.pack(">HIHI", 4, 100, 4, 1)), counting(1, 100)),
        Received(frames.DATA, 0, b"\0", "DATA of 1 byte"),
    ),
    Case("6.6", "PUSH_PROMISE", (frame(frames.PUSH_PROMISE, 4, 1, b"\0\0\0\2"),), PROTOCOL),
    Case("6.7", "PING", (PING,), PONG),
    Case("6.7", "PING that acknowledges", (frame(frames.PING, frames.ACK, 0, b"12345678"),), Alive()),
    Case("6.7", "PING of a stream", (frame(frames.PING, 0, 1, b"12345678"),), PROTOCOL),
    Case("6.7", "PING of another size", (frame(frames.PING, 0, 0, b"1234567"),), SIZE),
    Case("6.8", "GOAWAY", (frames.goaway(0, ErrorCode.NO_ERROR), CALL), Answer()),
    Case("6.8", "GOAWAY of a stream", (frame(frames.GOAWAY, 0, 1, b"\0" * 8),), PROTOCOL),
    Case("6.8", "GOAWAY that is too short", (frame(frames.GOAWAY, 0, 0, b"\0" * 7),), SIZE),
    Case("6.9", "WINDOW_UPDATE of the connection", (frames.window_update(0, 1), CALL), Answer()),
    Case("6.9", "WINDOW_UPDATE of a stream", (OPEN, frames.window_update(1, 1), data()), Answer()),
    Case("6.9", "WINDOW_UPDATE of the connection by 0", (frames.window_update(0, 0),), PROTOCOL),
    Case("6.9", "WINDOW_UPDATE of a stream by 0", (OPEN, frames.window_update(1, 0)), Reset(ErrorCode.PROTOCOL_ERROR)),
    Case("6.9", "WINDOW_UPDATE of another size", (frame(frames.WINDOW_UPDATE, 0, 0, b"\0\0\1"),), SIZE),
    Case(
        "6.9.1",
        "A window of 1 byte",
        (setting(4, 1), counting(1, 100)),
        Received(frames.DATA, 0, b"\0", "DATA of 1 byte"),
    ),
    Case("6.9.1", "A window of the connection above 2^31-1", (frames.window_update(0, frames.MAX_WINDOW),), FLOW),
    Case(
        "6.9.1",
        "A window of a stream above 2^31-1",
        (OPEN, frames.window_update(1, frames.MAX_WINDOW)),
        Reset(ErrorCode.FLOW_CONTROL_ERROR),
    ),
    Case(
        "6.9.1",
        "More DATA than the window of a stream",
        (OPEN, b"".join(data(payload=b"\0\0\0\0\0" * 13_107, flags=0) for _ in range(17))),
        Reset(ErrorCode.FLOW_CONTROL_ERROR),
    ),
    Case(
        "6.9.2",
        "SETTINGS that make the windows of open streams larger",
        (setting(4, 0), counting(1, 100), setting(4, 1)),
        Received(frames.DATA, 0, b"\0", "DATA of 1 byte"),
    ),
    Case(
        "6.9.2",
        "A window that is negative",
        (setting(4, 3), counting(1, 100), THREE, setting(4, 2), frames.window_update(1, 2)),
        Received(frames.DATA, 0, b"\0", "DATA of 1 byte when it is positive"),
    ),
    Case(
        "6.9.2",
        "SETTINGS that make the window of an open stream too large",
        (OPEN, frames.window_update(1, frames.MAX_WINDOW - 65_535), setting(4, 65_536)),
        FLOW,
    ),
    Case("6.10", "CONTINUATION", (BEGUN, continuation(), data()), Answer()),
    Case("6.10", "Several CONTINUATION frames", (BEGUN, continuation(flags=0), continuation(), data()), Answer()),
    Case("6.10", "Headers cut anywhere", (headers(ECHO[:9], flags=0), continuation(ECHO[9:]), data()), Answer()),
    Case("6.10", "Another frame within headers", (BEGUN, continuation(flags=0), data()), PROTOCOL),
    Case("6.10", "CONTINUATION of stream 0", (BEGUN, continuation(stream_id=0)), PROTOCOL),
    Case("6.10", "CONTINUATION of another stream", (BEGUN, continuation(stream_id=3)), PROTOCOL),
    Case("6.10", "CONTINUATION behind HEADERS that end", (OPEN, continuation()), PROTOCOL),
    Case("6.10", "CONTINUATION behind one that ends", (BEGUN, continuation(), continuation()), PROTOCOL),
    Case("6.10", "CONTINUATION behind DATA", (OPEN, EMPTY, continuation()), PROTOCOL),
    Case("7", "GOAWAY with an unknown code", (frame(frames.GOAWAY, 0, 0, b"\0" * 7 + b"\xff"), PING), PONG),
    Case("7", "RST_STREAM with an unknown code", (OPEN, frame(frames.RST_STREAM, 0, 1, b"\0\0\0\xff"), PING), PONG),
]
