"""What a gRPC client (the real one) gets: messages, metadata, statuses, deadlines, cancellation, and a clean end."""

import asyncio
import logging

import grpc
import pytest
from grpc import StatusCode, aio
from tests.net.http2.conftest import LIMITS, MESSAGE_SIZE, Running, start


async def failure(call: aio.Call) -> aio.AioRpcError:
    with pytest.raises(aio.AioRpcError) as caught:
        await call
    return caught.value


async def test_a_unary_call(running: Running) -> None:
    async with running.channel() as channel:
        assert await channel.unary_unary("/test.Service/Echo")(b"hello") == b"hello"
        assert await channel.unary_unary("/test.Service/Echo")(b"") == b""


async def test_many_calls_at_a_time_over_one_connection(running: Running) -> None:
    async with running.channel() as channel:
        echo = channel.unary_unary("/test.Service/Echo")
        answers = await asyncio.gather(*(echo(b"%d" % number) for number in range(500)))
    assert answers == [b"%d" % number for number in range(500)]


async def test_messages_larger_than_every_window(running: Running) -> None:
    message = bytes(range(256)) * 16_000
    async with running.channel(**{"grpc.max_receive_message_length": -1}) as channel:
        echo = channel.unary_unary("/test.Service/Echo")
        assert await asyncio.gather(echo(message), echo(message)) == [message, message]


async def test_a_stream_of_responses(running: Running) -> None:
    async with running.channel() as channel:
        call = channel.unary_stream("/test.Service/Count")(b"1000 7")
        assert [message async for message in call] == [b"x" * 7] * 1000
        call = channel.unary_stream("/test.Service/Generate")(b"abc")
        assert [message async for message in call] == [b"a", b"b", b"c"]


async def test_streams_both_ways(running: Running) -> None:
    async with running.channel() as channel:
        call = channel.stream_stream("/test.Service/Talk")()
        for text in (b"a", b"b" * 100_000, b""):
            await call.write(text)
            assert await call.read() == text
        await call.done_writing()
        assert await call.read() is aio.EOF


async def test_a_stream_of_requests(running: Running) -> None:
    async def requests():  # type: ignore[no-untyped-def]
        for _ in range(60):
            yield b"x" * 100_000

    async with running.channel() as channel:
        assert await channel.stream_unary("/test.Service/Total")(requests()) == b"6000000"


async def test_metadata_and_the_address_of_the_client(running: Running) -> None:
    async with running.channel() as channel:
        call = channel.unary_unary("/test.Service/Tell")(
            b"", metadata=(("key", "value"), ("data-bin", b"\1\2\xff")), timeout=180
        )
        metadata, peer = eval(await call)
        assert {("key", "value"), ("data-bin", b"\1\2\xff")} <= set(metadata)
        assert not any(name.startswith((":", "grpc-")) for name, _ in metadata)
        assert peer.startswith("ipv4:127.0.0.1:")
        assert {("last", "2"), ("raw-bin", b"\0\xff")} <= set(await call.trailing_metadata())


async def test_a_status_with_a_description_of_any_characters(running: Running) -> None:
    async with running.channel() as channel:
        error = await failure(channel.unary_unary("/test.Service/Refuse")("50 % of größer\n✓".encode()))
    assert error.code() is StatusCode.NOT_FOUND
    assert error.details() == "50 % of größer\n✓"
    assert ("cause", "test") in tuple(error.trailing_metadata())


async def test_a_handler_with_a_bug(running: Running, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        async with running.channel() as channel:
            error = await failure(channel.unary_unary("/test.Service/Raise")(b""))
    assert error.code() is StatusCode.UNKNOWN
    assert "a bug" in str(error.details())
    assert "ValueError: a bug" in caplog.text


async def test_an_unknown_method(running: Running) -> None:
    async with running.channel() as channel:
        error = await failure(channel.unary_unary("/test.Service/Nothing")(b""))
        assert error.code() is StatusCode.UNIMPLEMENTED
        assert await channel.unary_unary("/test.Service/Echo")(b"x") == b"x"


async def test_a_message_that_is_too_large(running: Running) -> None:
    async with running.channel() as channel:
        error = await failure(channel.unary_unary("/test.Service/Echo")(b"x" * (MESSAGE_SIZE + 1)))
        assert error.code() is StatusCode.RESOURCE_EXHAUSTED
        assert f"({MESSAGE_SIZE + 1} vs. {MESSAGE_SIZE})" in str(error.details())
        assert await channel.unary_unary("/test.Service/Echo")(b"x") == b"x"


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
async def test_compressed_requests(running: Running, compression: grpc.Compression) -> None:
    async with running.channel() as channel:
        echo = channel.unary_unary("/test.Service/Echo")
        assert await echo(b"x" * 100_000, compression=compression) == b"x" * 100_000
        error = await failure(echo(b"x" * (MESSAGE_SIZE + 1), compression=compression))
        assert error.code() is StatusCode.RESOURCE_EXHAUSTED  # small on the wire


async def test_a_deadline_ends_the_handler(running: Running) -> None:
    async with running.channel() as channel:
        error = await failure(channel.unary_unary("/test.Service/Wait")(b"", timeout=0.2))
    assert error.code() is StatusCode.DEADLINE_EXCEEDED
    await running.until(running=0)


async def test_cancelling_ends_the_handler(running: Running) -> None:
    async with running.channel() as channel:
        call = channel.unary_unary("/test.Service/Wait")(b"")
        await running.until(running=1)
        call.cancel()
        await running.until(running=0, cancelled=1)


async def test_a_client_that_goes_away_ends_its_handlers(running: Running) -> None:
    channel = running.channel()
    calls = [asyncio.ensure_future(channel.unary_unary("/test.Service/Wait")(b"")) for _ in range(3)]
    await running.until(running=3)
    await channel.close()
    await running.until(running=0, cancelled=3)
    await asyncio.gather(*calls, return_exceptions=True)


async def test_a_client_that_does_not_read_holds_its_handler_up(running: Running) -> None:
    async with running.channel(**{"grpc.http2.bdp_probe": 0}) as channel:
        call = channel.unary_stream("/test.Service/Count")(b"10000 10000")
        assert await call.read() == b"x" * 10_000
        await running.until(is_held_up=True)
        assert running.methods.written < 10_000
        for _ in range(9_999):
            assert await call.read() == b"x" * 10_000
        assert await call.read() is aio.EOF


async def test_stopping_lets_calls_finish() -> None:
    running = await start()
    async with running.channel() as channel:
        talk = channel.stream_stream("/test.Service/Talk")()
        await talk.write(b"a")
        assert await talk.read() == b"a"
        stopping = asyncio.ensure_future(running.server.stop(20))
        await asyncio.sleep(0)
        await talk.write(b"b")
        assert await talk.read() == b"b"
        assert not stopping.done()
        await talk.done_writing()
        assert await talk.read() is aio.EOF
        await stopping
        error = await failure(channel.unary_unary("/test.Service/Echo")(b"x"))
        assert error.code() is StatusCode.UNAVAILABLE


async def test_stopping_ends_calls_that_do_not_finish() -> None:
    running = await start()
    async with running.channel() as channel:
        call = asyncio.ensure_future(channel.unary_unary("/test.Service/Wait")(b""))
        await running.until(running=1)
        await running.server.stop(0.05)
        assert (running.methods.running, running.methods.cancelled) == (0, 1)
        assert isinstance((await asyncio.gather(call, return_exceptions=True))[0], aio.AioRpcError)


async def test_connections_that_are_too_old_are_replaced() -> None:
    running = await start(limits=LIMITS._replace(age=0.05))
    async with running.channel() as channel:
        echo = channel.unary_unary("/test.Service/Tell")
        peers = set()
        while len(peers) < 3:
            peers.add(eval(await echo(b"", wait_for_ready=True))[1])
            await asyncio.sleep(0.01)
    await running.server.stop(0)


#: Padding makes the client compress a request.
@pytest.mark.parametrize("padding", [b"", b" " * 1000])
@pytest.mark.parametrize("when", [b"at once", b"soon"])
async def test_a_handler_without_a_task(running: Running, when: bytes, padding: bytes) -> None:
    async with running.channel() as channel:
        later = channel.unary_unary("/test.Service/Later")

        def ask(word: bytes) -> aio.UnaryUnaryCall:
            return later(b"%s %s%s" % (word, when, padding), compression=grpc.Compression.Gzip)

        for word in (b"now", b"message", b"coroutine"):
            assert (await ask(word)).split()[0] == word
        error = await failure(ask(b"error"))
        assert (error.code(), error.details()) == (StatusCode.NOT_FOUND, "none")
        assert ("cause", "test") in tuple(error.trailing_metadata())
        for word in (b"bug", b"exception"):
            error = await failure(ask(word))
            assert (error.code(), error.details()) == (StatusCode.UNKNOWN, "Unexpected <class 'ValueError'>: a bug")
        await running.until(running=0, cancelled=3)


@pytest.mark.parametrize("padding", [b"", b" " * 1000])
async def test_a_handler_without_a_task_learns_that_its_call_is_over(running: Running, padding: bytes) -> None:
    def ask(channel: aio.Channel, **options: float) -> aio.UnaryUnaryCall:
        method = channel.unary_unary("/test.Service/Later")
        return method(b"never" + padding, compression=grpc.Compression.Gzip, **options)

    async with running.channel() as channel:
        assert (await failure(ask(channel, timeout=0.1))).code() is StatusCode.DEADLINE_EXCEEDED
        await running.until(running=0, cancelled=1)
        call = ask(channel)
        await running.until(running=1)
        call.cancel()
        await running.until(running=0, cancelled=2)
    async with running.channel() as channel:
        call = ask(channel)
        await running.until(running=1)
    await running.until(running=0, cancelled=3)


async def test_an_answer_that_comes_too_late_is_dropped(running: Running) -> None:
    methods = running.methods
    async with running.channel() as channel:
        later = channel.unary_unary("/test.Service/Later")
        for answer in (
            lambda context: context.follow(b"late"),
            lambda context: context.follow(methods.echo(b"late", context)),
            lambda context: context.end(StatusCode.NOT_FOUND),
        ):
            assert (await failure(later(b"never", timeout=0.1))).code() is StatusCode.DEADLINE_EXCEEDED
            await running.until(running=0)
            answer(methods.context)
        assert await later(b"now") == b"now"
