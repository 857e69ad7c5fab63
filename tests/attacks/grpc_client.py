"""A client of gRPC that is a bare socket: it sends frames as it is told, and reads what comes back."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

from hpack import Decoder
from tests.e2e.running_server import DEADLINE, RunningServer

from torchserve_py.net.http2 import frames

INFERENCE = "/org.pytorch.serve.grpc.inference.InferenceAPIsService/"


def address_of(server: RunningServer, endpoint: str = "grpc_inference_port") -> tuple[str, int]:
    """Where an endpoint of gRPC listens; its port is one of those that are free."""
    line = next(line for line in server.log().splitlines() if f"{endpoint}: listening at" in line)
    host, port = line.rpartition("//")[2].split(":")
    return host, int(port)


def block(*fields: tuple[str, str]) -> bytes:
    """Headers that refer to no table and enter none."""
    return b"".join(b"\0" + _text(name) + _text(value) for name, value in fields)


def _text(text: str) -> bytes:
    data = text.encode("latin-1")
    return integer(len(data), 0x7F) + data


def integer(number: int, mask: int) -> bytes:
    """An integer as RFC 7541 (5.1) has it, behind no other bits."""
    if number < mask:
        return bytes((number,))
    encoded, number = bytearray((mask,)), number - mask
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*encoded, number))


def head(path: str, *more: tuple[str, str]) -> bytes:
    """The headers of a call."""
    pseudo = ((":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "localhost"))
    return block(*pseudo, ("content-type", "application/grpc"), ("te", "trailers"), *more)


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """A frame."""
    return frames.header(len(payload), kind, flags, stream_id) + payload


def headers(stream_id: int, fields: bytes, flags: int = frames.END_HEADERS) -> bytes:
    """A frame of headers."""
    return frame(frames.HEADERS, flags, stream_id, fields)


def message(data: bytes, *, compressed: bool = False) -> bytes:
    """A message with its prefix."""
    return struct.pack(">BI", compressed, len(data)) + data


def body(stream_id: int, data: bytes) -> bytes:
    """The frames of the last data of a call."""
    pieces = [data[start : start + 16_384] for start in range(0, len(data), 16_384)]
    sent = [frame(frames.DATA, 0, stream_id, piece) for piece in pieces[:-1]]
    return b"".join((*sent, frame(frames.DATA, frames.END_STREAM, stream_id, pieces[-1])))


class GrpcClient:
    """One connection."""

    def __init__(self, address: tuple[str, int], settings: bytes | None = None) -> None:
        self.socket = socket.create_connection(address, timeout=DEADLINE)
        self._buffer = b""
        self._decoder = Decoder()
        self.send(frames.PREFACE + (frames.settings({}) if settings is None else settings))

    def __enter__(self) -> GrpcClient:
        return self

    def __exit__(self, *exc: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        """Send; that the server has hung up is found when its frames are read."""
        try:
            self.socket.sendall(data)
        except OSError:
            pass

    def frames(self) -> Iterator[tuple[int, int, int, bytes]]:
        """Kind, flags, stream and payload of each frame, until the server hangs up."""
        while True:
            while len(self._buffer) >= 9:
                length, kind, flags, stream_id = frames.parse_header(self._buffer, 0)
                if len(self._buffer) < 9 + length:
                    break
                payload = self._buffer[9 : 9 + length]
                self._buffer = self._buffer[9 + length :]
                yield kind, flags, stream_id, payload
            try:
                data = self.socket.recv(65_536)
            except ConnectionResetError:
                return
            if not data:
                return
            self._buffer += data

    def statuses(self, count: int) -> list[int]:
        """The statuses of so many calls, in the order in which they end."""
        found = []
        for kind, flags, _, payload in self.frames():
            if kind == frames.HEADERS:
                fields = dict(self._decoder.decode(payload))
                if flags & frames.END_STREAM:
                    found.append(int(fields["grpc-status"]))
                    if len(found) == count:
                        break
        return found

    def data_of(self, stream_id: int, size: int) -> bool:
        """Whether a stream gets so many bytes of data before the server hangs up."""
        for kind, _, found, payload in self.frames():
            size -= len(payload) if (kind, found) == (frames.DATA, stream_id) else 0
            if size <= 0:
                return True
        return False

    def goaway(self) -> frames.ErrorCode | None:
        """Why the server hangs up, if it says so."""
        code = None
        for kind, _, _, payload in self.frames():
            if kind == frames.GOAWAY:
                code = frames.ErrorCode(struct.unpack_from(">I", payload, 4)[0])
        return code

    def ended_within_timeout(self, stream_id: int) -> bool:
        """Whether the server resets the stream, or hangs up, before the socket's timeout."""
        try:
            for kind, _, found, _ in self.frames():
                if kind == frames.GOAWAY or (kind == frames.RST_STREAM and found == stream_id):
                    return True
        except TimeoutError:
            return False
        return True

    def answers_pings(self) -> bool:
        """Whether the connection goes on, and everything before was taken."""
        self.send(frame(frames.PING, 0, 0, b"are you?"))
        return any((kind, payload) == (frames.PING, b"are you?") for kind, _, _, payload in self.frames())
