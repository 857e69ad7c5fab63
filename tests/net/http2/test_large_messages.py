"""How large messages may be, and how much of them a server holds."""

import asyncio
import gzip
import random
import zlib
from collections.abc import AsyncIterator

import grpc
import pytest
from grpc import StatusCode, aio
from hypothesis import given
from hypothesis import strategies as st
from tests.net.http2.conftest import SERVICE, Running, limit_of, start

from torchserve_py.net.decompression import Decompressor
from torchserve_py.net.http2 import grpc_status
from torchserve_py.net.http2.grpc_messages import PREFIX, BadGrpcMessage, Compressed, MessageReader, decompressed
from torchserve_py.net.http2.rpc import CALL_COST, RpcMethod
from torchserve_py.net.request_budget import RequestBudget

SMALL = 1000
LARGE = b"x" * 300_000
PATHS = tuple(f"/{SERVICE}/{method}" for method in ("Echo", "Talk", "Wait", "Small"))


@pytest.fixture
async def generous() -> AsyncIterator[Running]:
    """A server whose methods take messages of 400,000 bytes, and two of them at a time; but for the last of `PATHS`."""
    each = await start(message_size=400_000, Small=RpcMethod(lambda request, call: request, limit_of(SMALL)))
    each.server.budget.room = 800_000
    yield each
    await each.server.stop(0)


async def code_of(call) -> StatusCode:
    with pytest.raises(aio.AioRpcError) as error:
        await asyncio.wait_for(call, 20)
    return error.value.code()


async def all_is_released(running: Running) -> None:
    async with asyncio.timeout(60):
        while running.server.budget.held:
            await asyncio.sleep(0.001)


async def test_some_methods_take_large_messages_and_others_do_not(generous: Running) -> None:
    async with generous.channel() as channel:
        echo, small = channel.unary_unary(PATHS[0]), channel.unary_unary(PATHS[3])
        for _ in range(5):
            assert await echo(LARGE) == LARGE
        with pytest.raises(aio.AioRpcError, match=r"\(400001 vs. 400000\), which a test sets"):
            await echo(b"x" * 400_001)
        assert await code_of(small(LARGE)) is StatusCode.RESOURCE_EXHAUSTED
        await all_is_released(generous)


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
async def test_compressed_ones_too(generous: Running, compression: grpc.Compression) -> None:
    async with generous.channel() as channel:
        echo = channel.unary_unary(PATHS[0])
        for _ in range(5):
            assert await echo(LARGE, compression=compression) == LARGE
        assert await code_of(echo(b"x" * 400_001, compression=compression)) is StatusCode.RESOURCE_EXHAUSTED
        await all_is_released(generous)


async def test_a_stream_of_large_messages_is_never_too_much(generous: Running) -> None:
    async with generous.channel() as channel:
        call = channel.stream_stream(PATHS[1])()
        for _ in range(10):
            await call.write(LARGE)
            assert await call.read() == LARGE
        await call.done_writing()
        assert await call.read() is aio.EOF
        await all_is_released(generous)


async def test_what_all_hold_together_has_a_bound(generous: Running) -> None:
    async with generous.channel() as channel:
        wait, echo = channel.unary_unary(PATHS[2]), channel.unary_unary(PATHS[0])
        calls = [wait(LARGE), wait(LARGE)]
        await generous.until(running=2)
        with pytest.raises(aio.AioRpcError, match=r"no room for \d+ more now") as error:
            await echo(LARGE)
        assert error.value.code() is StatusCode.RESOURCE_EXHAUSTED
        assert await echo(b"small") == b"small"
        calls[0].cancel()
        await generous.until(running=1)
        assert await echo(LARGE) == LARGE
        calls[1].cancel()
        await all_is_released(generous)


async def test_calls_without_a_message_count_too(generous: Running) -> None:
    generous.server.budget.room = 5 * CALL_COST
    async with generous.channel() as channel:
        calls = [channel.stream_stream(PATHS[1])() for _ in range(4)]
        for call in calls:
            await call.write(b"x")
            assert await call.read() == b"x"
        with pytest.raises(aio.AioRpcError, match="Try again later") as error:
            await channel.unary_unary(PATHS[0])(b"x" * CALL_COST)
        assert error.value.code() is StatusCode.RESOURCE_EXHAUSTED
        for call in calls:
            call.cancel()
        await all_is_released(generous)


@given(
    sizes=st.lists(st.integers(0, 300), max_size=8),
    pieces=st.lists(st.integers(1, 400), min_size=1, max_size=20),
)
def test_what_arrives_is_held_until_it_is_released(sizes: list[int], pieces: list[int]) -> None:
    budget = RequestBudget(10_000)
    reader = MessageReader(limit_of(300), budget)
    sent = b"".join(PREFIX.pack(0, size) + bytes(size) for size in sizes)
    whole, start, turn = [], 0, 0
    while start < len(sent):
        piece = sent[start : start + pieces[turn % len(pieces)]]
        whole += reader.feed(piece)
        start, turn = start + len(piece), turn + 1
        assert budget.held == start
    assert [len(message) for message in whole] == sizes
    for message in whole:
        reader.release(len(message))
    assert budget.held == PREFIX.size * len(sizes)
    reader.release()
    assert budget.held == 0


async def test_a_few_bytes_that_become_very_many() -> None:
    budget, limit = RequestBudget(50_000_000), limit_of(2**31 - 1)
    reader = MessageReader(limit, budget)
    with pytest.raises(BadGrpcMessage, match="no room") as error:
        await decompressed(Decompressor(), Compressed(zlib.compress(bytes(200_000_000))), "deflate", limit, reader)
    assert error.value.code is grpc_status.StatusCode.RESOURCE_EXHAUSTED
    assert budget.held <= 50_000_000
    reader.release()
    assert budget.held == 0


@pytest.mark.parametrize("size", [0, 1, 16_384, 16_385, 1 << 20, (1 << 20) + 1, 3_000_000])
async def test_messages_of_any_size_are_decompressed_and_cut_short_ones_refused(size: int) -> None:
    plain = random.Random(size).randbytes(size)
    limit = limit_of(size)
    reader = MessageReader(limit, RequestBudget())
    for content in (plain, bytes(size)):
        packed = zlib.compress(content)
        assert await decompressed(Decompressor(), Compressed(packed), "deflate", limit, reader) == content
        with pytest.raises(BadGrpcMessage, match="cut short"):
            await decompressed(Decompressor(), Compressed(packed[:-1]), "deflate", limit, reader)
    with pytest.raises(BadGrpcMessage, match="larger than max"):
        await decompressed(Decompressor(), Compressed(zlib.compress(plain + b"x")), "deflate", limit, reader)


async def test_a_body_has_no_more_members_than_are_quickly_decompressed() -> None:
    limit = limit_of(100_000)
    reader = MessageReader(limit, RequestBudget())
    member = gzip.compress(b"")
    assert await decompressed(Decompressor(), Compressed(member * 10_000), "gzip", limit, reader) == b""
    with pytest.raises(BadGrpcMessage, match="more than 10000 members"):
        await decompressed(Decompressor(), Compressed(member * 10_001), "gzip", limit, reader)


@pytest.mark.parametrize("size", [1, 8191, 16_384, 262_144, 300_000])
async def test_a_gzip_body_may_have_many_members(size: int) -> None:
    plain = random.Random(size).randbytes(1_000_000)
    starts = range(0, len(plain), size)[:9_999]
    members = [gzip.compress(plain[start : start + size], 1) for start in starts]
    content = plain[: size * len(members)]
    limit = limit_of(len(content))
    reader = MessageReader(limit, RequestBudget())
    packed = Compressed(b"".join(members))
    assert await decompressed(Decompressor(), packed, "gzip", limit, reader) == content
    with pytest.raises(BadGrpcMessage, match="cut short"):
        await decompressed(Decompressor(), Compressed(packed[:-1]), "gzip", limit, reader)
    with pytest.raises(BadGrpcMessage, match="larger than max"):
        await decompressed(Decompressor(), Compressed(packed + gzip.compress(b"x")), "gzip", limit, reader)


async def test_others_go_on_while_a_message_is_decompressed() -> None:
    limit, turns = limit_of(1 << 26), 0

    async def others() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    going_on = asyncio.create_task(others())
    packed = Compressed(zlib.compress(bytes(1 << 24)))
    await decompressed(Decompressor(), packed, "deflate", limit, MessageReader(limit, RequestBudget()))
    going_on.cancel()
    assert turns >= 64  # as many as there are pieces
