"""Floods of cheap frames: what they cost is bounded, and honest clients are far from the bounds."""

import asyncio
import struct
import tracemalloc

import pytest
from grpc import StatusCode, aio
from tests.net.http2.conftest import LIMITS, Running, limit_of
from tests.net.http2.raw_client import MESSAGE, RawClient, frame, headers_for

from torchserve_py.net.http2 import abuse_allowance, frames
from torchserve_py.net.http2.frames import ErrorCode
from torchserve_py.net.http2.grpc_messages import MessageReader
from torchserve_py.net.request_budget import RequestBudget

PING = frame(frames.PING, 0, 0, b"12345678")
BIG = frames.MAX_WINDOW


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a flood need not be long."""
    monkeypatch.setattr(abuse_allowance, "BURST", 100)
    monkeypatch.setattr(abuse_allowance, "PER_SECOND", 0)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    "flood",
    [
        PING,
        frame(frames.PING, frames.ACK, 0, b"12345678"),
        frames.settings({}),
        frame(frames.SETTINGS, frames.ACK, 0),
        frame(frames.PRIORITY, 0, 3, b"\0\0\0\1\0"),
        frame(frames.GOAWAY, 0, 0, b"\0" * 8),
        frame(frames.DATA, 0, 1),
        frame(77, 255, 0, b"what"),
    ],
    ids=["pings", "pongs", "settings", "acks", "priorities", "goaways", "empty data", "unknown"],
)
async def test_frames_that_ask_for_nothing(client: RawClient, flood: bytes) -> None:
    client.begin(client.request(1), flood * 50)
    await client.answers_pings()
    client.send(flood * 100)
    assert await client.goaway() is ErrorCode.ENHANCE_YOUR_CALM


@pytest.mark.usefixtures("impatient")
async def test_continuations_of_nothing(client: RawClient) -> None:
    client.begin(frame(frames.HEADERS, 0, 1, b"\x82"))
    client.send(frame(frames.CONTINUATION, frames.END_STREAM, 1) * 200)  # the flag means nothing here
    assert await client.goaway() is ErrorCode.ENHANCE_YOUR_CALM


@pytest.mark.usefixtures("impatient")
async def test_calls_that_are_taken_back_at_once(client: RawClient, running: Running) -> None:
    """CVE-2023-44487: each is reset in the same packet, so that no limit of calls under way would ever be met."""
    client.begin()
    calls = []
    for number in range(200):
        stream_id = 1 + 2 * number
        calls += [client.request(stream_id), frame(frames.DATA, frames.END_STREAM, stream_id, MESSAGE)]
        calls.append(frames.rst_stream(stream_id, ErrorCode.CANCEL))
    client.send(*calls)
    assert await client.goaway() is ErrorCode.ENHANCE_YOUR_CALM
    assert running.methods.running == 0


@pytest.mark.usefixtures("impatient")
async def test_calls_that_the_server_is_made_to_take_back(client: RawClient, running: Running) -> None:
    """CVE-2025-8671: each is broken after it has begun, so that the server resets it and the client counts none."""
    client.begin()
    for number in range(101):
        stream_id = 1 + 2 * number
        call = client.request(stream_id) + frame(frames.DATA, frames.END_STREAM, stream_id, MESSAGE)
        client.send(call, frames.window_update(stream_id, 0))
    assert await client.goaway() is ErrorCode.ENHANCE_YOUR_CALM
    assert running.methods.running == 0


@pytest.mark.usefixtures("impatient")
async def test_calls_beyond_the_limit(client: RawClient) -> None:
    client.begin(*(client.request(1 + 2 * number) for number in range(LIMITS.streams + 200)))
    assert await client.goaway() is ErrorCode.ENHANCE_YOUR_CALM


@pytest.mark.usefixtures("impatient")
async def test_cancelling_calls_that_are_being_served_is_no_flood(running: Running) -> None:
    async with running.channel() as channel:
        wait = channel.unary_unary("/test.Service/Wait")
        for number in range(200):
            call = wait(b"")
            await running.until(running=1)
            call.cancel()
            await running.until(running=0, cancelled=number + 1)
        assert await channel.unary_unary("/test.Service/Echo")(b"x") == b"x"


async def test_an_allowance_comes_back(client: RawClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(abuse_allowance, "BURST", 10)
    monkeypatch.setattr(abuse_allowance, "PER_SECOND", 1e9)
    client.begin()
    for _ in range(50):
        await client.answers_pings()


async def test_a_client_that_keeps_its_connection_alive(running: Running) -> None:
    """As often as grpcio does it."""
    options = {
        "grpc.keepalive_time_ms": 1_000,
        "grpc.keepalive_timeout_ms": 20_000,
        "grpc.keepalive_permit_without_calls": 1,
        "grpc.http2.max_pings_without_data": 0,
    }
    async with running.channel(**options) as channel:
        tell = channel.unary_unary("/test.Service/Tell")
        peer = eval(await tell(b""))[1]
        await asyncio.sleep(3.5)
        assert eval(await tell(b""))[1] == peer  # was not told that it sends too many


async def test_settings_with_very_many_windows(client: RawClient, running: Running) -> None:
    """Only the last counts, or each would be worked through for every open call."""
    waiting = [client.request(1 + 2 * number) for number in range(LIMITS.streams)]
    setting = struct.pack(">HI", frames.INITIAL_WINDOW_SIZE, 0) + struct.pack(">HI", frames.INITIAL_WINDOW_SIZE, 7)
    client.begin(*waiting, frame(frames.SETTINGS, 0, 0, setting * 5_000))
    count = client.request(1001, headers=headers_for("Count"))
    client.send(frames.rst_stream(1, ErrorCode.CANCEL), count)
    client.send(frame(frames.DATA, frames.END_STREAM, 1001, struct.pack(">BI", 0, 5) + b"1 100"))
    assert len((await client.until(frames.DATA))[2]) == 7


@pytest.mark.parametrize(
    ("increment", "code"), [(BIG, ErrorCode.FLOW_CONTROL_ERROR), (0, ErrorCode.PROTOCOL_ERROR)], ids=["large", "none"]
)
async def test_a_window_of_a_stream_that_grows_too_large(client: RawClient, increment: int, code: ErrorCode) -> None:
    client.begin(client.request(1), frames.window_update(1, increment))
    assert await client.reset() == (1, code)
    await client.answers_pings()


async def test_settings_that_make_a_window_too_large(client: RawClient) -> None:
    client.begin(client.request(1), frames.window_update(1, BIG - frames.DEFAULT_WINDOW))
    client.send(frames.settings({frames.INITIAL_WINDOW_SIZE: frames.DEFAULT_WINDOW + 1}))
    assert await client.goaway() is ErrorCode.FLOW_CONTROL_ERROR


async def test_more_data_than_the_window_of_the_connection(
    client: RawClient, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was looked at makes room at once, so that only one piece can be too large."""
    monkeypatch.setattr("torchserve_py.net.http2.http2_connection._WINDOW", 65_535)
    other = RawClient(*await asyncio.open_connection("127.0.0.1", running.port))
    client.begin()
    other.begin(other.request(1), frame(frames.DATA, 0, 1, bytes(65_536)))
    assert await other.goaway() is ErrorCode.FLOW_CONTROL_ERROR
    other.writer.close()


def test_a_message_in_tiny_pieces_takes_no_more_memory_than_it_holds() -> None:
    size = 100_000
    message = struct.pack(">BI", 0, size) + bytes(size)
    tracemalloc.start()
    try:
        reader = MessageReader(limit_of(size), RequestBudget())
        for start in range(0, len(message) - 2, 2):
            reader.feed(message[start : start + 2])
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 2 * size
    rest = len(message) - (len(message) - 2 - 1) // 2 * 2 - 2
    assert reader.feed(message[-rest:]) == [bytes(size)]


async def test_a_header_list_that_is_too_large_for_a_real_client(running: Running) -> None:
    """Its connection ends, as the table of the compression is lost; it hears why, and the next call has another."""
    async with running.channel() as channel:
        echo = channel.unary_unary("/test.Service/Echo")
        assert await echo(b"x", metadata=(("large", "x" * 30_000),)) == b"x"
        with pytest.raises(aio.AioRpcError) as caught:
            await echo(b"x", metadata=(("large", "x" * 100_000),))
        assert caught.value.code() is StatusCode.UNAVAILABLE
        assert "headers larger than 64 KiB" in str(caught.value.details()) + str(caught.value.debug_error_string())
        assert await echo(b"x") == b"x"
