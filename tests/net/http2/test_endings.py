"""How connections and calls end: no call is lost when a connection is replaced, and nothing waits for ever."""

import asyncio
import logging
import os
import socket
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from grpc import StatusCode
from tests.net.http2.conftest import LIMITS, Running, limit_of, start
from tests.net.http2.raw_client import MESSAGE, RawClient, frame, headers_for

from torchserve_py.net.http2 import frames, http2_connection
from torchserve_py.net.http2.frames import ErrorCode
from torchserve_py.net.http2.rpc import RpcMethod

LARGE = struct.pack(">BI", 0, 65_536) + bytes(65_536)


async def farewell(client: RawClient) -> tuple[int, bytes]:
    """What the next GOAWAY says is the last stream, and the ping that comes with the first of them."""
    _, _, payload = await client.until(frames.GOAWAY)
    last, code = struct.unpack_from(">II", payload)
    assert code == ErrorCode.NO_ERROR
    return last, (await client.until(frames.PING))[2] if last == frames.MAX_STREAM_ID else b""


async def raw_client_of(running: Running) -> RawClient:
    client = RawClient(*await asyncio.open_connection("127.0.0.1", running.port))
    client.begin()
    await client.answers_pings()
    return client


async def until_trailers(client: RawClient, stream_id: int) -> bytes:
    while True:
        flags, found, block = await client.until(frames.HEADERS)
        if flags & frames.END_STREAM and found == stream_id:
            return block


async def test_a_call_that_crosses_the_farewell_is_served() -> None:
    running = await start()
    client = await raw_client_of(running)
    stopping = asyncio.ensure_future(running.server.stop(20))
    last, ping = await farewell(client)
    assert last == frames.MAX_STREAM_ID
    echo = client.request(1, headers=headers_for("Echo"))
    client.send(echo, frame(frames.DATA, frames.END_STREAM, 1, MESSAGE))  # sent before it knew
    client.send(frame(frames.PING, frames.ACK, 0, ping))
    assert await farewell(client) == (1, b"")
    await until_trailers(client, 1)
    assert await client.reader.read() == b""
    await stopping


async def test_calls_behind_the_farewell_are_not_served_and_the_last_one_is_named() -> None:
    running = await start()
    client = await raw_client_of(running)
    client.send(client.request(1), frame(frames.DATA, frames.END_STREAM, 1, MESSAGE))
    await running.until(running=1)
    stopping = asyncio.ensure_future(running.server.stop(20))
    _, ping = await farewell(client)
    client.send(frame(frames.PING, frames.ACK, 0, b"another!"), frame(frames.PING, frames.ACK, 0, ping))
    assert await farewell(client) == (1, b"")
    client.send(client.request(3), frame(frames.DATA, frames.END_STREAM, 3, MESSAGE))
    await client.answers_pings()
    assert running.methods.running == 1
    client.send(frames.rst_stream(1, ErrorCode.CANCEL))
    assert await client.reader.read() == b""
    await stopping


async def test_a_client_that_does_not_answer_the_ping(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchserve_py.net.http2.http2_connection._PONG_LIMIT", 0.05)
    running = await start()
    client = await raw_client_of(running)
    await running.server.stop(20)
    assert (await farewell(client))[0] == frames.MAX_STREAM_ID
    assert await farewell(client) == (0, b"")
    assert await client.reader.read() == b""


async def test_a_client_that_has_not_said_hello_is_closed_at_once() -> None:
    running = await start()
    reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
    await reader.readexactly(9)
    await running.server.stop(20)
    await reader.read()
    writer.close()


async def test_no_call_fails_when_connections_are_replaced_all_the_time() -> None:
    """grpcio's asyncio client; it sends again only what it knows that no server has seen."""
    running = await start(limits=LIMITS._replace(age=0.03))
    async with running.channel() as channel:
        tell = channel.unary_unary("/test.Service/Tell")

        async def call_often() -> set[str]:
            return {eval(await tell(b""))[1] for _ in range(150)}

        peers = set().union(*await asyncio.gather(*(call_often() for _ in range(10))))
    assert len(peers) > 1
    await running.server.stop(0)


async def test_no_call_of_threads_fails_when_connections_are_replaced_all_the_time() -> None:
    """grpcio's client for threads."""
    running = await start(limits=LIMITS._replace(age=0.03))

    def call_often(channel: grpc.Channel) -> set[str]:
        tell = channel.unary_unary("/test.Service/Tell")
        return {eval(tell(b""))[1] for _ in range(100)}

    def call_from_threads() -> set[str]:
        address = f"127.0.0.1:{running.port}"
        with grpc.insecure_channel(address) as channel, ThreadPoolExecutor(4) as threads:
            return set().union(*threads.map(call_often, [channel] * 4))

    assert len(await asyncio.to_thread(call_from_threads)) > 1
    await running.server.stop(0)


async def test_streams_go_on_beyond_the_age_of_their_connection() -> None:
    running = await start(limits=LIMITS._replace(age=0.03))
    async with running.channel() as channel:
        talk = channel.stream_stream("/test.Service/Talk")()
        tell = channel.unary_unary("/test.Service/Tell")
        peers = set()
        while len(peers) < 3:
            await talk.write(b"a")
            assert await talk.read() == b"a"
            peers.add(eval(await tell(b""))[1])
        await talk.done_writing()
        assert await talk.read() is grpc.aio.EOF
    await running.server.stop(0)


async def test_the_deadline_ends_an_answer_that_the_client_does_not_fetch(client: RawClient) -> None:
    """The handler has returned: all that is left waits for room."""
    client.begin(frames.settings({frames.INITIAL_WINDOW_SIZE: 0}))
    message = struct.pack(">BI", 0, 5) + b"large"
    client.send(client.request(1, headers=headers_for("Echo", ("grpc-timeout", "100m"))))
    client.send(frame(frames.DATA, frames.END_STREAM, 1, message))
    block = await until_trailers(client, 1)
    assert b"grpc-status\x014" in block  # DEADLINE_EXCEEDED
    await client.answers_pings()


async def test_an_answer_that_the_client_does_not_fetch_is_given_up() -> None:
    """No deadline, and a client that is alive: the answer is larger than the window that it has given."""
    running = await start(limits=LIMITS._replace(stall=0.1))
    client = await raw_client_of(running)
    client.send(client.request(1, headers=headers_for("Echo")), frame(frames.DATA, 0, 1, LARGE[:5]))
    client.send(frame(frames.DATA, frames.END_STREAM, 1, LARGE[5:]))
    assert await client.reset() == (1, ErrorCode.CANCEL)
    await client.answers_pings()
    await running.server.stop(0)


async def test_a_request_that_does_not_go_on_is_given_up() -> None:
    running = await start(limits=LIMITS._replace(stall=0.1))
    client = await raw_client_of(running)
    client.send(client.request(1), frame(frames.DATA, 0, 1, MESSAGE[:3]))
    assert await client.reset() == (1, ErrorCode.CANCEL)
    await client.answers_pings()
    await running.server.stop(0)


async def test_a_request_may_go_on_after_the_server_was_frozen() -> None:
    running = await start(limits=LIMITS._replace(stall=0.4))
    client = await raw_client_of(running)
    client.send(client.request(1, headers=headers_for("Echo")), frame(frames.DATA, 0, 1, MESSAGE[:3]))
    await asyncio.sleep(0.5)  # it has been seen to wait for the rest
    time.sleep(1.0)
    await client.answers_pings()
    client.send(frame(frames.DATA, frames.END_STREAM, 1, MESSAGE[3:]))
    assert (await client.until(frames.DATA))[2] == MESSAGE
    await running.server.stop(0)


async def test_streams_that_are_silent_and_calls_that_take_long_are_not_given_up() -> None:
    running = await start(limits=LIMITS._replace(stall=0.05))
    async with running.channel() as channel:
        talk = channel.stream_stream("/test.Service/Talk")()
        waiting = channel.unary_unary("/test.Service/Wait")(b"")
        await running.until(running=1)
        await asyncio.sleep(0.3)
        await talk.write(b"a")
        assert await talk.read() == b"a"
        assert not waiting.done()
    await running.server.stop(0)


async def client_that_reads_nothing(running: Running) -> RawClient:
    """Fetch a gigabyte with wide windows, and leave it in the socket."""
    client = await raw_client_of(running)
    client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
    client.reader._transport.pause_reading()  # type: ignore[attr-defined]
    windows = frames.settings({frames.INITIAL_WINDOW_SIZE: frames.MAX_WINDOW}), frames.window_update(0, 2**31 - 65_536)
    client.send(*windows, client.request(1, headers=headers_for("Count")))
    client.send(frame(frames.DATA, frames.END_STREAM, 1, struct.pack(">BI", 0, 12) + b"100 10000000"))
    return client


async def test_a_client_that_reads_nothing_any_more_is_given_up() -> None:
    """Its windows are wide, but its socket is full."""
    running = await start(limits=LIMITS._replace(stall=0.1))
    client = await client_that_reads_nothing(running)
    async with asyncio.timeout(60):
        while running.server._connections:
            await asyncio.sleep(0.01)
    client.writer.close()
    await running.server.stop(0)


async def test_a_client_that_reads_slowly_is_not_given_up() -> None:
    running = await start(limits=LIMITS._replace(stall=0.3))
    client = await client_that_reads_nothing(running)
    descriptor = client.writer.get_extra_info("socket").fileno()
    for _ in range(50):
        await asyncio.sleep(0.03)
        assert os.read(descriptor, 20_000)
    assert running.server._connections
    client.writer.close()
    await running.server.stop(0)


async def test_a_client_that_is_gone_while_a_handler_without_a_task_answers_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    running = await start()
    client = await raw_client_of(running)
    client.send(client.request(1, headers=headers_for("Later")))
    client.send(frame(frames.DATA, frames.END_STREAM, 1, struct.pack(">BI", 0, 5) + b"never"))
    await running.until(running=1)
    client.writer.transport.abort()
    await running.until(running=0, cancelled=1)
    await running.server.stop(0)
    assert not running.server._connections
    assert not caplog.records


async def test_stopping_leaves_handlers_behind_that_do_not_let_themselves_be_cancelled(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("torchserve_py.net.http2.grpc_server._CANCEL_LIMIT", 0.05)
    release, entered = asyncio.Event(), threading.Event()

    async def stubborn(request: bytes, context: object) -> bytes:
        entered.set()
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                pass
        return b""

    running = await start(Stubborn=RpcMethod(stubborn, limit_of(100)))
    async with running.channel() as channel:
        call = asyncio.ensure_future(channel.unary_unary("/test.Service/Stubborn")(b""))
        await asyncio.to_thread(entered.wait, 20)
        with caplog.at_level(logging.WARNING):
            await running.server.stop(0)
        assert "do not end although cancelled" in caplog.text
        error = (await asyncio.gather(call, return_exceptions=True))[0]
        assert isinstance(error, grpc.aio.AioRpcError)
        assert error.code() is StatusCode.UNAVAILABLE
        release.set()


async def test_a_silent_client_that_answers_pings_keeps_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http2_connection, "SILENCE", 0.01)
    monkeypatch.setattr(http2_connection, "ANSWER", 2.0)
    running = await start()
    client = await raw_client_of(running)
    async with asyncio.timeout(60):
        for _ in range(3):
            flags, stream_id, payload = await client.until(frames.PING)
            assert (flags, stream_id) == (0, 0)
            client.send(frame(frames.PING, frames.ACK, 0, payload))
    client.writer.close()
    await running.server.stop(0)


async def test_a_client_that_has_vanished_loses_its_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http2_connection, "SILENCE", 0.01)
    monkeypatch.setattr(http2_connection, "ANSWER", 0.01)
    running = await start()
    client = RawClient(*await asyncio.open_connection("127.0.0.1", running.port))
    client.begin(client.request(1), frame(frames.DATA, frames.END_STREAM, 1, MESSAGE))
    async with asyncio.timeout(60):
        while await client.reader.read(4096):
            pass
    await running.until(running=0)
    client.writer.close()
    await running.server.stop(0)
