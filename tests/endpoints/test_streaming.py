"""Responses in parts."""

import asyncio

import aiohttp
import pytest
from tests.endpoints.fake_serving import Submitted

from torchserve_py.base.causes import Cause

REQUEST = b"GET /predictions/noop HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


def stream(call: Submitted) -> None:
    call.part(b"one", more=True, status=201, headers=[("content-type", "text/event-stream")])
    call.part(b"", more=True)
    call.part(b"three", more=True)
    call.part(b"last")


async def test_one_chunk_for_each_part(serving):
    serving.registry.model.behave = stream
    connection = await serving.raw(REQUEST)
    head = await connection.head()
    assert head.startswith("http/1.1 201 created\r\n")
    assert "transfer-encoding: chunked" in head
    assert "content-length" not in head
    assert "ts_stream_next: true" in head
    assert "content-type: text/event-stream" in head
    assert "x-accel-buffering: no" in head  # so that proxies do not collect it
    assert "x-request-id: job-0" in head
    assert await connection.rest() == b"3\r\none\r\n5\r\nthree\r\n4\r\nlast\r\n0\r\n\r\n"
    assert serving.metrics.counts == (1, 0, 0)


async def test_a_model_may_have_its_stream_collected(serving):
    def behave(call: Submitted) -> None:
        call.part(b"one", more=True, headers=[("X-Accel-Buffering", "yes")])
        call.part(b"")

    serving.registry.model.behave = behave
    head = await (await serving.raw(REQUEST)).head()
    assert head.count("x-accel-buffering") == 1
    assert "x-accel-buffering: yes" in head


async def test_an_empty_last_part_ends_the_stream(serving):
    def behave(call: Submitted) -> None:
        call.part(b"", more=True)
        call.part(b"")

    serving.registry.model.behave = behave
    connection = await serving.raw(REQUEST)
    await connection.head()
    assert await connection.rest() == b"0\r\n\r\n"


async def test_parts_are_sent_as_they_come(serving):
    serving.registry.model.behave = lambda call: call.part(b"first", more=True)
    connection = await serving.raw(REQUEST)
    await connection.head()
    assert await connection.reader.readexactly(10) == b"5\r\nfirst\r\n"
    call = serving.registry.model.calls[0]
    call.part(b"second", more=True)
    assert await connection.reader.readexactly(11) == b"6\r\nsecond\r\n"
    call.part(b"end")
    assert await connection.rest() == b"3\r\nend\r\n0\r\n\r\n"


async def test_the_connection_serves_again_after_a_stream(serving):
    serving.registry.model.behave = stream
    connection = await serving.raw(REQUEST.replace(b"Connection: close\r\n", b"") + REQUEST)
    text = (await connection.rest()).decode()
    assert text.count("0\r\n\r\n") == 2
    assert text.index("connection: keep-alive") < text.index("connection: close")


@pytest.mark.parametrize(
    "fail",
    [
        lambda call: call.fail(Cause.worker_died),
        lambda call: call.part(status=503, error="Prediction failed"),
    ],
)
async def test_an_error_inside_a_stream_leaves_it_incomplete(serving, fail):
    serving.registry.model.behave = lambda call: call.part(b"first", more=True)
    connection = await serving.raw(REQUEST)
    await connection.head()
    assert await connection.reader.readexactly(10) == b"5\r\nfirst\r\n"
    fail(serving.registry.model.calls[0])
    assert await connection.rest() == b""
    with pytest.raises(aiohttp.ClientPayloadError):
        async with serving.client.get(f"{serving.address()}/predictions/noop") as response:
            fail(serving.registry.model.calls[1])
            await response.read()


async def test_http_1_0_gets_the_stream_without_chunks(serving):
    serving.registry.model.behave = stream
    connection = await serving.raw(b"GET /predictions/noop HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
    head = await connection.head()
    assert "transfer-encoding" not in head
    assert "connection: close" in head
    assert await connection.rest() == b"onethreelast"


async def test_http_1_0_does_not_take_a_broken_stream_for_a_whole_one(serving):
    serving.registry.model.behave = lambda call: call.part(b"first", more=True)
    connection = await serving.raw(b"GET /predictions/noop HTTP/1.0\r\n\r\n")
    await connection.head()
    assert await connection.reader.readexactly(5) == b"first"
    serving.registry.model.calls[0].fail(Cause.worker_died)
    with pytest.raises(ConnectionError):
        await connection.rest()


async def test_head_of_a_stream_cancels_the_rest(serving):
    serving.registry.model.behave = lambda call: call.part(b"first", more=True)
    connection = await serving.raw(b"HEAD" + REQUEST[3:])
    assert "transfer-encoding: chunked" in await connection.head()
    assert await connection.rest() == b""
    assert serving.registry.model.cancelled.is_set()


async def test_a_stream_whose_reader_stalls_is_cancelled(start, caplog):
    serving = await start(default_response_timeout=0.2)
    serving.registry.model.behave = lambda call: call.part(b"x" * 50_000_000, more=True)
    connection = await serving.raw(REQUEST)
    async with asyncio.timeout(60):
        await serving.registry.model.cancelled.wait()
    assert "the client has read nothing for 0.2 seconds" in caplog.text
    with pytest.raises(ConnectionError):
        await connection.rest()


async def test_a_mistake_of_the_server_within_a_stream_leaves_it_incomplete(serving, caplog):
    serving.registry.model.behave = lambda call: call.part(b"first", more=True)
    connection = await serving.raw(REQUEST)
    await connection.head()
    assert await connection.reader.readexactly(10) == b"5\r\nfirst\r\n"
    serving.registry.model.calls[0].part(5)
    assert await connection.rest() == b""
    assert "Request job-0 failed within its answer." in caplog.text
