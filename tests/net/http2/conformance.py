"""What a case of the conformance tests is: bytes that a client sends, and what it must see then."""

import asyncio
import struct
from typing import Final, NamedTuple

from tests.net.http2.raw_client import MESSAGE, RawClient, frame, headers_for

from torchserve_py.net.http2 import frames
from torchserve_py.net.http2.frames import ErrorCode


class Goaway(NamedTuple):
    """The connection ends, for this reason."""

    code: ErrorCode

    def __str__(self) -> str:
        return f"the connection ends: {self.code.name}"


class Reset(NamedTuple):
    """The stream ends, for this reason; the connection goes on."""

    code: ErrorCode
    stream_id: int = 1

    def __str__(self) -> str:
        return f"the stream ends: {self.code.name}"


class Answer(NamedTuple):
    """The stream is answered to its end, with this in its last headers; the connection goes on."""

    within: bytes = b"grpc-status\x010"
    stream_id: int = 1
    says: str = "it is answered"

    def __str__(self) -> str:
        return self.says


class Received(NamedTuple):
    """A frame with this kind, these flags and this payload comes back; the connection goes on."""

    kind: int
    flags: int
    payload: bytes
    says: str

    def __str__(self) -> str:
        return self.says


class Alive(NamedTuple):
    """Nothing happens, and the connection goes on."""

    def __str__(self) -> str:
        return "nothing happens"


#: In place of bytes: wait for the end of an answer before the next are sent. (`Received` waits for a frame.)
ANSWERED: Final = object()

Outcome = Goaway | Reset | Answer | Received | Alive


class Case(NamedTuple):
    """``sent`` follows the client's preface and SETTINGS, or is all there is if it begins with bytes of a preface."""

    section: str
    title: str
    sent: tuple[object, ...]
    outcome: Outcome
    has_hello: bool = False


def literal(name: str, value: str | bytes) -> bytes:
    """A header that refers to no table and enters none (RFC 7541, 6.2.2)."""
    data = value if isinstance(value, bytes) else value.encode("latin-1")
    assert max(len(name), len(data)) < 127
    return b"\0" + bytes((len(name),)) + name.encode() + bytes((len(data),)) + data


def block(*fields: tuple[str, str]) -> bytes:
    return b"".join(literal(*field) for field in fields)


def head_without(*names: str) -> list[tuple[str, str]]:
    return [field for field in headers_for("Echo") if field[0] not in names]


ECHO: Final = block(*headers_for("Echo"))
WAIT: Final = block(*headers_for("Wait"))
COUNT: Final = block(*headers_for("Count"))


def headers(fields: bytes = ECHO, stream_id: int = 1, flags: int = frames.END_HEADERS) -> bytes:
    return frame(frames.HEADERS, flags, stream_id, fields)


def data(stream_id: int = 1, payload: bytes = MESSAGE, flags: int = frames.END_STREAM) -> bytes:
    return frame(frames.DATA, flags, stream_id, payload)


def counting(count: int, size: int) -> bytes:
    """A call of Count: that many messages of that size."""
    text = b"%d %d" % (count, size)
    return headers(COUNT) + data(payload=struct.pack(">BI", 0, len(text)) + text)


#: A call that is answered; one whose client has sent everything and whose handler works; one that is not complete.
CALL: Final = headers() + data()
HALF_CLOSED: Final = headers(WAIT) + data()
OPEN: Final = headers()
PING: Final = frame(frames.PING, 0, 0, b"12345678")


async def _until_answered(client: RawClient, stream_id: int = 1) -> bytes:
    while True:
        flags, found, fields = await client.until(frames.HEADERS)
        if found == stream_id and flags & frames.END_STREAM:
            return fields


async def _until_received(client: RawClient, frame: Received) -> None:
    while True:
        kind, flags, _, payload = await client.frame()
        if (kind, flags, payload) == (frame.kind, frame.flags, frame.payload):
            return


async def check(case: Case, client: RawClient) -> None:
    """Send what the case says, and look at what comes back.

    Raises:
        AssertionError: It is something else.
    """
    async with asyncio.timeout(60):
        if not case.has_hello:
            client.begin()
        for each in case.sent:
            if isinstance(each, bytes):
                client.send(each)
            elif isinstance(each, Received):
                await _until_received(client, each)
            else:
                await _until_answered(client)
        outcome = case.outcome
        if isinstance(outcome, Goaway):
            assert await client.goaway() is outcome.code
            return
        if isinstance(outcome, Reset):
            assert await client.reset() == (outcome.stream_id, outcome.code)
        elif isinstance(outcome, Answer):
            assert outcome.within in await _until_answered(client, outcome.stream_id)
        elif isinstance(outcome, Received):
            await _until_received(client, outcome)
        client.send(frame(frames.PING, 0, 0, b"the end!"))
        while True:
            kind, _, _, payload = await client.frame()
            assert kind != frames.GOAWAY
            assert not isinstance(outcome, Alive) or kind != frames.RST_STREAM
            if kind == frames.PING and payload == b"the end!":
                return
