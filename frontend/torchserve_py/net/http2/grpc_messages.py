"""gRPC's messages in the bytes of a stream. A prefix of five bytes has a flag for compression, and the length."""

import struct
import zlib
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from torchserve_py.net.decompression import DEFLATE, GZIP, Decompressor
from torchserve_py.net.http2.grpc_status import StatusCode
from torchserve_py.net.request_budget import NoRoomError, RequestBudget

_ENCODINGS: Final = {"gzip": GZIP, "deflate": DEFLATE}
#: What protobuf can hold in one message (bytes).
LARGEST: Final = 2**31 - 1
PREFIX: Final = struct.Struct(">BI")
#: Smaller pieces of a message are joined on arrival: as objects they would take more memory than their bytes.
_SMALL_PIECE: Final = 1024


class BadGrpcMessage(Exception):
    """A message or a call is refused; the call ends with ``code``."""

    def __init__(self, code: StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class MessageLimit(NamedTuple):
    """The most bytes of a method's messages, and the origin of the limit."""

    size: int
    origin: str

    def check(self, size: int) -> None:
        """Check the size of a message. Raises BadMessage: the message is too large."""
        if size > self.size:
            message = f"Received message larger than max ({size} vs. {self.size}), which {self.origin}"
            raise BadGrpcMessage(StatusCode.RESOURCE_EXHAUSTED, message)


class Compressed(bytes):
    """A compressed message; it is decompressed when the handler takes it, so that few are large at a time."""


class MessageReader:
    """Splits a stream's bytes into messages. Bytes count in the server's budget until they are released."""

    __slots__ = ("_budget", "_chunks", "_held", "_limit", "_needed", "arrived", "completed")

    def __init__(self, limit: MessageLimit, budget: RequestBudget) -> None:
        self._limit = limit
        self._budget = budget
        self._chunks: list[bytes | bytearray] = []
        #: How many bytes of an incomplete message have arrived.
        self.arrived = 0
        #: How many messages were complete so far.
        self.completed = 0
        self._needed = PREFIX.size
        self._held = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Return the messages that ``data`` completes; the caller decompresses `Compressed` ones.

        Raises BadMessage: a message is too large, or the server lacks room for it now.
        """
        self.hold(len(data))
        self.arrived += len(data)
        if self.arrived < self._needed:
            self._keep(data)
            return []
        if self._chunks:
            self._chunks.append(data)
            data = b"".join(self._chunks)
            self._chunks = []
        messages = []
        start, end = 0, len(data)
        self._needed = PREFIX.size
        while end - start >= PREFIX.size:
            compressed, length = PREFIX.unpack_from(data, start)
            self._limit.check(length)
            behind = start + PREFIX.size + length
            if end < behind:
                self._needed = behind - start
                self._check_room(behind - end)
                break
            message = data[start + PREFIX.size : behind]
            messages.append(Compressed(message) if compressed else message)
            start = behind
        self.arrived = end - start
        if self.arrived:
            self._chunks.append(data[start:])
        self.completed += len(messages)
        return messages

    def _keep(self, piece: bytes) -> None:
        last = self._chunks[-1] if self._chunks else None
        if len(piece) >= _SMALL_PIECE:
            self._chunks.append(piece)
        elif isinstance(last, bytearray):
            last += piece
        else:
            self._chunks.append(bytearray(piece))

    def hold(self, size: int) -> None:
        """Count ``size`` more bytes. Raises BadMessage: the server lacks room for them now."""
        try:
            self._budget.take(size)
        except NoRoomError as error:
            raise BadGrpcMessage(StatusCode.RESOURCE_EXHAUSTED, str(error)) from error
        self._held += size

    def _check_room(self, size: int) -> None:
        try:
            self._budget.check(size)
        except NoRoomError as error:
            raise BadGrpcMessage(StatusCode.RESOURCE_EXHAUSTED, str(error)) from error

    def release(self, size: int | None = None) -> None:
        """Stop counting ``size`` bytes; None means all bytes."""
        released = self._held if size is None else min(size, self._held)
        self._held -= released
        self._budget.release(released)
        if size is None:
            self._chunks = []

    def hand_over(self) -> Callable[[], None]:
        """Return what stops counting the bytes that are counted now, which the reader releases no more."""
        size, self._held = self._held, 0
        return partial(self._budget.release, size)


async def decompressed(
    decompressor: Decompressor, message: Compressed, encoding: str, limit: MessageLimit, reader: MessageReader
) -> bytes:
    """Return a message decompressed; ``reader`` counts its bytes.

    Raises BadMessage: the message cannot be decompressed or is too large, or the server lacks room for it now.
    """
    stream = _ENCODINGS.get(encoding)
    if stream is None:
        raise BadGrpcMessage(StatusCode.UNIMPLEMENTED, f"A message is compressed, and grpc-encoding is {encoding}.")

    def take(size: int, total: int) -> None:
        limit.check(total)
        reader.hold(size)

    try:
        return await decompressor.decompress(message, stream, limit.size, take)
    except zlib.error as error:
        raise BadGrpcMessage(StatusCode.INTERNAL, f"A message cannot be decompressed: {error}.") from error
