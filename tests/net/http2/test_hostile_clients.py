"""What clients that break the rules of HTTP/2 get, frame by frame; others must notice nothing."""

import asyncio
import gc
import struct

import pytest
from tests.net.http2.conftest import LIMITS, Running, start
from tests.net.http2.raw_client import HEADERS, MESSAGE, RawClient, frame, headers_for

from torchserve_py.net.admission import Admission, ConnectionBudget
from torchserve_py.net.http2 import frames
from torchserve_py.net.http2.frames import ErrorCode
from torchserve_py.net.http2.rpc import Rpc


async def test_what_is_no_http_2(client: RawClient) -> None:
    client.send(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert await client.goaway() is ErrorCode.PROTOCOL_ERROR


async def test_the_preface_byte_by_byte(client: RawClient) -> None:
    for byte in frames.PREFACE + frames.settings({}):
        client.send(bytes((byte,)))
        await client.writer.drain()
    await client.answers_pings()


async def test_settings_come_first(client: RawClient) -> None:
    client.send(frames.PREFACE, frame(frames.PING, 0, 0, b"12345678"))
    assert await client.goaway() is ErrorCode.PROTOCOL_ERROR


BIG = frames.MAX_WINDOW


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (frames.header(65_537, frames.DATA, 0, 1), ErrorCode.FRAME_SIZE_ERROR),
        (frame(frames.DATA, 0, 0, b"x"), ErrorCode.PROTOCOL_ERROR),
        (frame(frames.DATA, 0, 1, b"x"), ErrorCode.PROTOCOL_ERROR),
        (frame(frames.HEADERS, frames.END_HEADERS, 0, b"\x82"), ErrorCode.PROTOCOL_ERROR),
        (frame(frames.HEADERS, frames.END_HEADERS, 2, b"\x82"), ErrorCode.PROTOCOL_ERROR),
        (frame(frames.HEADERS, frames.END_HEADERS, 1, b"\xff\xff\xff"), ErrorCode.COMPRESSION_ERROR),
        (frame(frames.HEADERS, frames.END_HEADERS | frames.PADDED, 1, b"\x09\x82"), ErrorCode.PROTOCOL_ERROR),
        (frame(frames.HEADERS, frames.END_HEADERS | frames.HAS_PRIORITY, 1, b"\0\0"), ErrorCode.FRAME_SIZE_ERROR),
        (frame(frames.HEADERS, 0, 1, b"\x82") + frame(frames.PING, 0, 0, b"12345678"), ErrorCode.PROTOCOL_ERROR),
        (frame(frames.HEADERS, 0, 1) + frame(frames.CONTINUATION, 0, 3), ErrorCode.PROTOCOL_ERROR),
        (frame(frames.CONTINUATION, frames.END_HEADERS, 1, b"\x82"), ErrorCode.PROTOCOL_ERROR),
        (frame(frames.PUSH_PROMISE, 0, 1, b"\0\0\0\2"), ErrorCode.PROTOCOL_ERROR),
        (frame(frames.RST_STREAM, 0, 1, b"\0\0\0\0"), ErrorCode.PROTOCOL_ERROR),
        (frame(frames.RST_STREAM, 0, 1, b"\0"), ErrorCode.FRAME_SIZE_ERROR),
        (frame(frames.SETTINGS, 0, 1), ErrorCode.PROTOCOL_ERROR),
        (frame(frames.SETTINGS, 0, 0, b"\0"), ErrorCode.FRAME_SIZE_ERROR),
        (frame(frames.SETTINGS, frames.ACK, 0, b"\0" * 6), ErrorCode.FRAME_SIZE_ERROR),
        (frames.settings({frames.ENABLE_PUSH: 2}), ErrorCode.PROTOCOL_ERROR),
        (frames.settings({frames.INITIAL_WINDOW_SIZE: BIG + 1}), ErrorCode.FLOW_CONTROL_ERROR),
        (frames.settings({frames.MAX_FRAME_SIZE: 1}), ErrorCode.PROTOCOL_ERROR),
        (frame(frames.PING, 0, 0, b"1"), ErrorCode.FRAME_SIZE_ERROR),
        (frame(frames.PING, 0, 1, b"12345678"), ErrorCode.PROTOCOL_ERROR),
        (frame(frames.GOAWAY, 0, 1, b"\0" * 8), ErrorCode.PROTOCOL_ERROR),
        (frame(frames.GOAWAY, 0, 0, b"\0"), ErrorCode.FRAME_SIZE_ERROR),
        (frames.window_update(0, 0), ErrorCode.PROTOCOL_ERROR),
        (frames.window_update(0, BIG), ErrorCode.FLOW_CONTROL_ERROR),
        (frames.window_update(1, 1), ErrorCode.PROTOCOL_ERROR),
        (frame(frames.WINDOW_UPDATE, 0, 0, b"\0"), ErrorCode.FRAME_SIZE_ERROR),
        (frame(frames.PRIORITY, 0, 0, b"\0" * 5), ErrorCode.PROTOCOL_ERROR),
    ],
)
async def test_what_ends_the_connection(client: RawClient, sent: bytes, code: ErrorCode) -> None:
    client.begin(sent)
    assert await client.goaway() is code


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ([(":method", "POST"), (":scheme", "http")], ErrorCode.PROTOCOL_ERROR),
        ([*HEADERS, (":path", "/again")], ErrorCode.PROTOCOL_ERROR),
        ([*HEADERS, (":new", "x")], ErrorCode.PROTOCOL_ERROR),
        ([*HEADERS, ("Upper", "x")], ErrorCode.PROTOCOL_ERROR),
        ([*HEADERS, ("transfer-encoding", "chunked")], ErrorCode.PROTOCOL_ERROR),
        ([*HEADERS, ("name", "line\r\nbreak")], ErrorCode.PROTOCOL_ERROR),
        ([*HEADERS, ("grpc-timeout", "soon")], ErrorCode.PROTOCOL_ERROR),
    ],
)
async def test_headers_that_end_the_stream(client: RawClient, headers: list[tuple[str, str]], code: ErrorCode) -> None:
    client.begin(client.request(1, headers=headers))
    assert await client.reset() == (1, code)
    await client.answers_pings()


async def test_what_is_no_grpc_call(client: RawClient) -> None:
    client.begin(client.request(1, frames.END_STREAM, [*HEADERS[:4], ("content-type", "text/plain")]))
    flags, stream_id, block = await client.until(frames.HEADERS)
    assert flags & frames.END_STREAM
    assert (stream_id, b"415" in block) == (1, True)


async def test_more_data_than_the_window_of_a_stream(client: RawClient, running: Running) -> None:
    client.begin(client.request(1), frame(frames.DATA, 0, 1, MESSAGE))
    for _ in range(17):  # messages that a unary method does not take
        client.send(frame(frames.DATA, 0, 1, (b"\0\0\0\0\0" * 13_107)))
    assert await client.reset() == (1, ErrorCode.FLOW_CONTROL_ERROR)
    await client.answers_pings()


async def test_data_after_the_end_of_a_stream(client: RawClient, running: Running) -> None:
    client.begin(client.request(1), frame(frames.DATA, frames.END_STREAM, 1, MESSAGE))
    await running.until(running=1)
    client.send(frame(frames.DATA, 0, 1, MESSAGE))
    assert await client.reset() == (1, ErrorCode.STREAM_CLOSED)
    await running.until(running=0)


async def test_a_stream_id_below_one_that_was_used(client: RawClient) -> None:
    client.begin(client.request(5, frames.END_STREAM), client.request(3, frames.END_STREAM))
    assert await client.goaway() is ErrorCode.PROTOCOL_ERROR


async def test_more_streams_than_the_limit(client: RawClient, running: Running) -> None:
    client.begin(*(client.request(1 + 2 * number) for number in range(LIMITS.streams + 1)))
    assert await client.reset() == (1 + 2 * LIMITS.streams, ErrorCode.REFUSED_STREAM)
    await client.answers_pings()


async def test_headers_that_never_end(client: RawClient) -> None:
    client.begin(frame(frames.HEADERS, 0, 1, b"\x82"))
    for _ in range(5):
        client.send(frame(frames.CONTINUATION, 0, 1, b"\x82" * 16_000))
    assert await client.goaway() is ErrorCode.ENHANCE_YOUR_CALM


async def test_headers_that_unpack_to_very_much(client: RawClient) -> None:
    client.begin(client.request(1, headers=[*HEADERS, ("large", "x" * 4000)]))
    block = b"\xbe" * 1000  # the newest of the table, again and again
    client.send(frame(frames.HEADERS, frames.END_HEADERS, 3, block))
    assert await client.goaway() is ErrorCode.ENHANCE_YOUR_CALM


async def test_opening_and_resetting_again_and_again(client: RawClient, running: Running) -> None:
    client.begin()
    for number in range(1000):
        stream_id = 1 + 2 * number
        client.send(client.request(stream_id), frame(frames.DATA, frames.END_STREAM, stream_id, MESSAGE))
        client.send(frames.rst_stream(stream_id, ErrorCode.CANCEL))
        await client.writer.drain()
    await client.answers_pings()
    await running.until(running=0)


async def test_pings_whose_answers_nobody_reads(client: RawClient) -> None:
    client.begin()
    client.writer.transport.set_write_buffer_limits(1 << 16)  # type: ignore[attr-defined]
    pings = frame(frames.PING, 0, 0, b"12345678") * 10_000
    with pytest.raises(ConnectionError):
        while True:
            client.send(pings)
            await client.writer.drain()
            client.reader._transport.pause_reading()  # type: ignore[attr-defined]


async def test_a_client_that_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchserve_py.net.http2.http2_connection._GREETING_LIMIT", 0.05)
    running = await start()
    reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
    while await reader.read(100):
        pass
    writer.close()
    await running.server.stop(0)


async def test_connections_that_are_not_admitted() -> None:
    budget = ConnectionBudget(100)
    admission = Admission(budget, 10)
    running = await start(admission=admission)
    opened = [await asyncio.open_connection("127.0.0.1", running.port) for _ in range(10)]
    for reader, _ in opened:
        await reader.readexactly(9)
    reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
    try:
        assert await reader.read() == b""
    except ConnectionResetError:
        pass
    for _, each in [*opened, (reader, writer)]:
        each.close()
    await running.server.stop(0)
    async with asyncio.timeout(60):
        while budget.taken:
            await asyncio.sleep(0.001)


async def test_unknown_frames_and_priorities_are_ignored(client: RawClient, running: Running) -> None:
    client.begin(frame(77, 255, 0, b"what"), frame(frames.PRIORITY, 0, 3, b"\0\0\0\1\0"))
    client.send(client.request(5), frame(frames.DATA, frames.END_STREAM | frames.PADDED, 5, b"\2" + MESSAGE + b"\0\0"))
    await running.until(running=1)
    client.send(frames.rst_stream(5, ErrorCode.CANCEL))
    await running.until(running=0, cancelled=1)


async def test_windows_that_shrink_below_what_was_sent(client: RawClient) -> None:
    client.begin(client.request(1, headers=headers_for("Count")))
    client.send(frame(frames.DATA, frames.END_STREAM, 1, struct.pack(">BI", 0, 8) + b"1 100000"))
    received = 0
    while received < frames.DEFAULT_WINDOW:
        received += len((await client.until(frames.DATA))[2])
    client.send(frames.window_update(0, 1 << 20), frames.settings({frames.INITIAL_WINDOW_SIZE: 10}))
    await client.answers_pings()  # with a window of 10 - 65,535 bytes
    client.send(frames.settings({frames.INITIAL_WINDOW_SIZE: 1 << 20}))
    while received < 100_005:
        received += len((await client.until(frames.DATA))[2])
    assert received == 100_005


def _calls_in_memory() -> int:
    gc.collect()
    return sum(isinstance(each, Rpc) for each in gc.get_objects())


async def test_answers_that_nobody_fetches_are_forgotten_with_their_calls(client: RawClient) -> None:
    """The client leaves no room for answers, and its deadlines end the calls."""
    before = _calls_in_memory()
    headers = headers_for("Count", ("grpc-timeout", "10m"))
    message = struct.pack(">BI", 0, 8) + b"2 100000"
    client.begin(frames.settings({frames.INITIAL_WINDOW_SIZE: 0}))
    for number in range(100):
        call = client.request(1 + 2 * number, headers=headers)
        client.send(call, frame(frames.DATA, frames.END_STREAM, 1 + 2 * number, message))
        while not (await client.until(frames.HEADERS))[0] & frames.END_STREAM:
            pass
    await client.answers_pings()
    assert _calls_in_memory() - before < 10


async def test_trailers_of_a_call_that_the_server_has_ended(client: RawClient) -> None:
    client.begin(client.request(1, headers=[*HEADERS, ("grpc-timeout", "1m")]))
    await client.reset()
    client.send(client.request(1, frames.END_STREAM, headers=[("late", "x")]))
    await client.answers_pings()
