"""Messages above a size: some methods take them, and all together they take no more than so much memory."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator

import grpc
import pytest
from grpc import StatusCode, aio
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.transport.http2.conftest import LIMITS, SERVICE, Running, start

from torchserve_py.transport.http2.large_messages import BadMessage, LargeMessages, MessageLimit
from torchserve_py.transport.http2.messages import PREFIX, Compressed, MessageReader

SMALL = 1000
LARGE = b"x" * 300_000
PATHS = tuple(f"/{SERVICE}/{method}" for method in ("Echo", "Talk", "Wait"))


@pytest.fixture
async def generous() -> AsyncIterator[Running]:
    """A server whose methods `PATHS` take messages of 400,000 bytes, and two of them at a time."""
    each = await start(limits=LIMITS._replace(message_size=SMALL))
    each.server.allow_messages(PATHS, 400_000, "somebody sets")
    each.server._large._room = 800_000
    yield each
    await each.server.stop(0)


async def code_of(call) -> StatusCode:
    with pytest.raises(aio.AioRpcError) as error:
        await asyncio.wait_for(call, 20)
    return error.value.code()


async def all_is_released(running: Running) -> None:
    async with asyncio.timeout(20):
        while running.server._large.held:
            await asyncio.sleep(0.001)


async def test_some_methods_take_large_messages_and_others_do_not(generous: Running) -> None:
    async with generous.channel() as channel:
        echo, total = channel.unary_unary(PATHS[0]), channel.stream_unary(f"/{SERVICE}/Total")
        for _ in range(5):
            assert await echo(LARGE) == LARGE
        with pytest.raises(aio.AioRpcError, match=r"\(400001 vs. 400000\), which somebody sets"):
            await echo(b"x" * 400_001)
        assert await code_of(total(iter([LARGE]))) is StatusCode.RESOURCE_EXHAUSTED
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
        with pytest.raises(aio.AioRpcError, match="no room for 300000 more now") as error:
            await echo(LARGE)
        assert error.value.code() is StatusCode.RESOURCE_EXHAUSTED
        assert await echo(b"small") == b"small"
        calls[0].cancel()
        await generous.until(running=1)
        assert await echo(LARGE) == LARGE
        calls[1].cancel()
        await all_is_released(generous)


@given(
    sizes=st.lists(st.integers(0, 300), max_size=8),
    pieces=st.lists(st.integers(1, 400), min_size=1, max_size=20),
    above=st.integers(0, 150),
)
def test_what_is_held_is_what_large_messages_have(sizes, pieces, above) -> None:
    large = LargeMessages(above, 10_000)
    reader = MessageReader(MessageLimit(300, "", large), "identity")
    sent = b"".join(PREFIX.pack(0, size) + bytes(size) for size in sizes)
    whole, start, turn = [], 0, 0
    while start < len(sent):
        piece = sent[start : start + pieces[turn % len(pieces)]]
        whole += reader.feed(piece)
        start, turn = start + len(piece), turn + 1
        complete = sum(len(message) for message in whole if len(message) > above)
        assert complete <= large.held <= complete + 300 + PREFIX.size
    assert [len(message) for message in whole] == sizes
    for message in whole:
        reader.release(reader.counted(len(message)))
    assert large.held == 0


async def test_a_few_bytes_that_become_very_many() -> None:
    large = LargeMessages(SMALL, 50_000_000)
    reader = MessageReader(MessageLimit(2**31 - 1, "", large), "deflate")
    with pytest.raises(BadMessage, match="no room") as error:
        await reader.decompress(Compressed(zlib.compress(bytes(200_000_000))))
    assert error.value.code is StatusCode.RESOURCE_EXHAUSTED
    assert large.held <= 50_000_000
    reader.release()
    assert large.held == 0
