"""HTTP/2 frames: their layout and their checks (RFC 9113, sections 4, 6 and 7)."""

import struct
from enum import IntEnum
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADER_SIZE: Final = 9
#: The frame size that every peer must accept, and the limit until a peer announces a larger one.
DEFAULT_MAX_FRAME_SIZE: Final = 16_384
DEFAULT_WINDOW: Final = 65_535
MAX_WINDOW: Final = 2**31 - 1
#: Size of a priority (bytes).
PRIORITY_SIZE: Final = 5
MAX_STREAM_ID: Final = 2**31 - 1

DATA: Final = 0
HEADERS: Final = 1
PRIORITY: Final = 2
RST_STREAM: Final = 3
SETTINGS: Final = 4
PUSH_PROMISE: Final = 5
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9

END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
HAS_PRIORITY: Final = 0x20
#: Not a flag on the wire: `FrameReader` sets it on HEADERS whose priority names their own stream.
DEPENDS_ON_ITSELF: Final = 0x100

ENABLE_PUSH: Final = 2
MAX_CONCURRENT_STREAMS: Final = 3
INITIAL_WINDOW_SIZE: Final = 4
MAX_FRAME_SIZE: Final = 5
MAX_HEADER_LIST_SIZE: Final = 6

_HEADER: Final = struct.Struct(">HBBBI")
_SETTING: Final = struct.Struct(">HI")
SETTING_SIZE: Final = _SETTING.size
NUMBER: Final = struct.Struct(">I")


class ErrorCode(IntEnum):
    """The reason why a stream or a connection ends."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    FLOW_CONTROL_ERROR = 3
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    ENHANCE_YOUR_CALM = 11


class ConnectionFailed(Exception):
    """The peer has violated the protocol so that the connection must end."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class StreamFailed(Exception):
    """The peer has violated the protocol in one stream."""

    def __init__(self, stream_id: int, code: ErrorCode) -> None:
        super().__init__(f"stream {stream_id}: {code.name}")
        self.stream_id = stream_id
        self.code = code


def header(length: int, kind: int, flags: int, stream_id: int) -> bytes:
    """Return the nine bytes before a frame's payload."""
    return _HEADER.pack(length >> 8, length & 0xFF, kind, flags, stream_id)


def parse_header(data: bytes, offset: int) -> tuple[int, int, int, int]:
    """Return length, kind, flags and stream of the frame whose header is at ``offset``."""
    high, low, kind, flags, stream_id = _HEADER.unpack_from(data, offset)
    return high << 8 | low, kind, flags, stream_id & MAX_STREAM_ID


def settings(values: dict[int, int]) -> bytes:
    payload = b"".join(_SETTING.pack(*setting) for setting in values.items())
    return header(len(payload), SETTINGS, 0, 0) + payload


def parse_settings(payload: bytes) -> list[tuple[int, int]]:
    """Return the identifiers and values of SETTINGS. Raises ConnectionFailed: a value, or the size, is not allowed."""
    if len(payload) % _SETTING.size:
        raise ConnectionFailed(ErrorCode.FRAME_SIZE_ERROR, f"SETTINGS with {len(payload)} bytes")
    found = list(_SETTING.iter_unpack(payload))
    for name, value in found:
        if name == ENABLE_PUSH and value > 1:
            raise ConnectionFailed(ErrorCode.PROTOCOL_ERROR, f"SETTINGS_ENABLE_PUSH is {value}")
        if name == INITIAL_WINDOW_SIZE and value > MAX_WINDOW:
            raise ConnectionFailed(ErrorCode.FLOW_CONTROL_ERROR, f"SETTINGS_INITIAL_WINDOW_SIZE is {value}")
        if name == MAX_FRAME_SIZE and not DEFAULT_MAX_FRAME_SIZE <= value < 1 << 24:
            raise ConnectionFailed(ErrorCode.PROTOCOL_ERROR, f"SETTINGS_MAX_FRAME_SIZE is {value}")
    return found


def rst_stream(stream_id: int, code: ErrorCode) -> bytes:
    return header(4, RST_STREAM, 0, stream_id) + NUMBER.pack(code)


def goaway(last_stream_id: int, code: ErrorCode, message: str = "") -> bytes:
    payload = NUMBER.pack(last_stream_id) + NUMBER.pack(code) + message.encode()
    return header(len(payload), GOAWAY, 0, 0) + payload


def window_update(stream_id: int, increment: int) -> bytes:
    return header(4, WINDOW_UPDATE, 0, stream_id) + NUMBER.pack(increment)


def unpadded(payload: bytes, flags: int) -> bytes:
    """Return the payload of DATA or HEADERS without padding. Raises ConnectionFailed: the padding is malformed."""
    if not flags & PADDED:
        return payload
    if not payload:
        raise ConnectionFailed(ErrorCode.FRAME_SIZE_ERROR, "a padded frame without the length of its padding")
    if payload[0] >= len(payload):
        raise ConnectionFailed(ErrorCode.PROTOCOL_ERROR, "more padding than payload")
    return payload[1 : len(payload) - payload[0]]


def check_size(payload: bytes, size: int, name: str) -> None:
    """Check the payload of a frame of a fixed size. Raises ConnectionFailed: the payload has another size."""
    if len(payload) != size:
        raise ConnectionFailed(ErrorCode.FRAME_SIZE_ERROR, f"{name} with {len(payload)} bytes")


def check_priority(flags: int, stream_id: int, payload: bytes) -> None:
    """Check a PRIORITY frame, which has no effect (RFC 9113, 6.3; RFC 7540, 5.3.1).

    Raises ConnectionFailed: the frame belongs to no stream; StreamFailed: the size is wrong, or the stream depends on
    itself.
    """
    if not stream_id:
        raise ConnectionFailed(ErrorCode.PROTOCOL_ERROR, "a priority of no stream")
    if len(payload) != PRIORITY_SIZE:
        raise StreamFailed(stream_id, ErrorCode.FRAME_SIZE_ERROR)
    if depends_on(payload) == stream_id:
        raise StreamFailed(stream_id, ErrorCode.PROTOCOL_ERROR)


def depends_on(priority: bytes) -> int:
    """Return the stream that a priority names; ``priority`` has at least its first four bytes."""
    number: int = NUMBER.unpack_from(priority)[0]
    return number & MAX_STREAM_ID
