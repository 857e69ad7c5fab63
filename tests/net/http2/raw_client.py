"""A client of HTTP/2 that can break its rules: it sends bytes, and takes frames apart."""

import asyncio
import struct

from hpack import Encoder

from torchserve_py.net.http2 import frames
from torchserve_py.net.http2.frames import ErrorCode

HEADERS = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/test.Service/Wait"),
    (":authority", "localhost"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
]
MESSAGE = b"\0\0\0\0\1x"


def headers_for(method: str, *more: tuple[str, str]) -> list[tuple[str, str]]:
    """Those of a call of a method of the test's service."""
    return [*((name, f"/test.Service/{method}" if name == ":path" else value) for name, value in HEADERS), *more]


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    return frames.header(len(payload), kind, flags, stream_id) + payload


class RawClient:
    """Sends bytes, and takes frames apart."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.encoder = Encoder()

    def send(self, *data: bytes) -> None:
        self.writer.write(b"".join(data))

    def begin(self, *data: bytes) -> None:
        """The client's hello, and more."""
        self.send(frames.PREFACE, frames.settings({}), *data)

    def request(self, stream_id: int, flags: int = 0, headers: list[tuple[str, str]] = HEADERS) -> bytes:
        return frame(frames.HEADERS, frames.END_HEADERS | flags, stream_id, self.encoder.encode(headers))

    async def frame(self) -> tuple[int, int, int, bytes]:
        length, kind, flags, stream_id = frames.parse_header(await self.reader.readexactly(9), 0)
        return kind, flags, stream_id, await self.reader.readexactly(length)

    async def until(self, kind: int) -> tuple[int, int, bytes]:
        """The next frame of a kind, without its kind."""
        while True:
            found, *rest = await self.frame()
            if found == kind:
                return rest[0], rest[1], rest[2]  # type: ignore[return-value]

    async def goaway(self) -> ErrorCode:
        """Why the server hangs up; it must do so."""
        _, _, payload = await self.until(frames.GOAWAY)
        while await self.reader.read(4096):
            pass
        return ErrorCode(struct.unpack_from(">I", payload, 4)[0])

    async def reset(self) -> tuple[int, ErrorCode]:
        """The next stream that the server resets, and why."""
        _, stream_id, payload = await self.until(frames.RST_STREAM)
        return stream_id, ErrorCode(struct.unpack(">I", payload)[0])

    async def answers_pings(self) -> None:
        self.send(frame(frames.PING, 0, 0, b"12345678"))
        flags, _, payload = await self.until(frames.PING)
        assert (flags, payload) == (frames.ACK, b"12345678")
