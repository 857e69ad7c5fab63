"""Requests and their jobs, from a socket to a model: what may happen to them and to their connection."""

import asyncio
import json
import socket

import pytest
from tests.endpoints.conftest import OpenEndpoints, Start
from tests.endpoints.fakes import RawConnection
from tests.endpoints.raw_requests import (
    CHUNKED,
    CLOSING,
    answer,
    body_of,
    hold,
    opened,
    predict,
    served,
    taken,
    until,
)

from torchserve_py.endpoints import http_listeners


async def test_a_connection_answers_one_request_after_the_other(serving: OpenEndpoints) -> None:
    connection = await opened(serving)
    for number in range(50):
        connection.writer.write(predict(b"%d" % number))
        assert await body_of(connection) == b"%d" % number
    connection.writer.write(predict(b"last", CLOSING))
    head, body = await answer(connection)
    assert "connection: close\r\n" in head
    assert body == b"last"
    assert await connection.rest() == b""
    assert serving.metrics.counts == (51, 0, 0)


async def test_a_request_behind_a_late_body_is_answered(serving: OpenEndpoints) -> None:
    data = predict(b"one")
    connection = await opened(serving)
    connection.writer.write(data[:-1])
    await taken(serving, connection)
    connection.writer.write(data[-1:] + predict(b"two") + predict(b"three")[:30])
    assert await body_of(connection) == b"one"
    assert await body_of(connection) == b"two"
    connection.writer.write(predict(b"three")[30:])
    assert await body_of(connection) == b"three"
    await connection.close()


async def test_a_body_may_come_in_many_reads(serving: OpenEndpoints) -> None:
    connection = await opened(serving)
    large = bytes(range(256)) * 8000
    for _ in range(2):
        connection.writer.write(predict(large))
        assert await body_of(connection) == large
    for sent in range(1, 5):
        connection.writer.write(predict(b"abcd")[:-4] + b"a" if sent == 1 else b"abcd"[sent - 1 : sent])
        await taken(serving, connection)
    assert await body_of(connection) == b"abcd"
    await connection.close()


async def test_a_body_that_is_too_large_is_refused_at_its_head(start: Start) -> None:
    serving = await start(max_request_size=10)
    connection = await serving.raw(predict(bytes(11))[:-11])
    head, _ = await answer(connection)
    assert head.startswith("http/1.1 413 ")
    await connection.close()


async def test_a_client_that_leaves_before_its_body_has_sent_no_request(serving: OpenEndpoints) -> None:
    connection = await opened(serving)
    end = served(serving, connection)
    connection.writer.write(predict(b"one")[:-1])
    await taken(serving, connection)
    await connection.close()
    await until(lambda: not end.is_connected)
    assert not serving.registry.model.calls


async def test_chunks_between_whole_requests(serving: OpenEndpoints) -> None:
    connection = await opened(serving)
    for data, body in ((predict(b"x"), b"x"), (CHUNKED, b"a"), (predict(b"y"), b"y")):
        connection.writer.write(data)
        assert await body_of(connection) == body
    await connection.close()


async def test_a_client_is_told_to_continue_only_if_it_waits(serving: OpenEndpoints) -> None:
    data = predict(b"body", b"Expect: 100-continue")
    connection = await opened(serving)
    connection.writer.write(data)
    assert await body_of(connection) == b"body"
    connection.writer.write(data[:-4])
    assert (await connection.head()).startswith("http/1.1 100 continue")
    connection.writer.write(b"body")
    assert await body_of(connection) == b"body"
    await connection.close()


@pytest.mark.parametrize("count", [1, 2, 50])
async def test_requests_sent_behind_one_that_waits_are_answered_after_it(serving: OpenEndpoints, count: int) -> None:
    model = serving.registry.model
    hold(model)
    connection = await serving.raw(predict(b"first"))
    async with asyncio.timeout(60):
        await model.submitted.wait()
    partial = predict(b"partial")
    sent = b"".join(predict(b"%d" % number) for number in range(count)) + partial[:30]
    connection.writer.write(sent)
    await taken(serving, connection)
    assert len(model.calls) == 1
    model.calls[0].part(b"first")
    assert await body_of(connection) == b"first"
    for number in range(count):
        assert await body_of(connection) == b"%d" % number
    connection.writer.write(partial[30:])
    assert await body_of(connection) == b"partial"
    assert [call.body for call in model.calls[1:]] == [*(b"%d" % number for number in range(count)), b"partial"]
    await connection.close()


async def test_requests_behind_a_large_one_are_all_answered(serving: OpenEndpoints) -> None:
    """More than aiohttp parses at once, behind a body for which it stops reading."""
    large = bytes(2_000_000)
    connection = await serving.raw(predict(large) + predict(b"x") * 100)
    assert await body_of(connection) == large
    for _ in range(100):
        assert await body_of(connection) == b"x"
    await connection.close()


async def test_what_follows_the_last_request_is_not_answered(serving: OpenEndpoints) -> None:
    model = serving.registry.model
    hold(model)
    connection = await serving.raw(predict(b"", CLOSING))
    await until(lambda: model.calls)
    connection.writer.write(predict(b"late"))
    await taken(serving, connection)
    model.calls[0].part(b"last")
    assert (await connection.rest()).endswith(b"\r\n\r\nlast")
    assert len(model.calls) == 1


async def test_no_more_than_a_little_is_kept_behind_a_request_that_waits(serving: OpenEndpoints) -> None:
    model = serving.registry.model
    hold(model)
    connection = await serving.raw(predict(b"first"))
    await until(lambda: model.calls)
    end = served(serving, connection)
    transport = end._transport
    assert transport is not None
    body = bytes(range(250)) * 4000
    connection.writer.write(predict(body) + predict(b"last"))
    await until(lambda: not transport.is_reading())
    kept = len(end._held)
    assert kept < 64 * 1024 + 256 * 1024  # the limit, and one read
    model.calls[0].part(b"first")
    assert await body_of(connection) == b"first"
    assert await body_of(connection) == body
    assert await body_of(connection) == b"last"
    assert transport.is_reading()
    await connection.close()


@pytest.mark.parametrize("behind", [b"", predict(b"x")], ids=["alone", "with-another-behind"])
@pytest.mark.parametrize("streams", [False, True], ids=["waits", "streams"])
async def test_a_client_that_leaves_cancels_its_job(serving: OpenEndpoints, behind: bytes, streams: bool) -> None:
    model = serving.registry.model
    model.behave = lambda call: call.part(b"one", more=True) if streams else None
    connection = await serving.raw(predict())
    await until(lambda: model.calls)
    if streams:
        await connection.head()
    connection.writer.write(behind)
    await taken(serving, connection)
    assert not model.cancelled.is_set()
    await connection.close()
    async with asyncio.timeout(60):
        await model.cancelled.wait()
    model.calls[0].part(b"too late")  # as a worker may send it before it hears of the cancelling
    assert len(model.calls) == 1


async def test_a_stream_is_sent_as_it_comes_and_the_next_request_waits_for_its_end(serving: OpenEndpoints) -> None:
    model = serving.registry.model
    model.behave = lambda call: call.part(b"first", more=True) if len(model.calls) == 1 else call.part(b"next")
    connection = await serving.raw(predict())
    head = await connection.head()
    assert "transfer-encoding: chunked" in head
    async with asyncio.timeout(60):
        assert await connection.reader.readexactly(10) == b"5\r\nfirst\r\n"
        connection.writer.write(predict())
        await taken(serving, connection)
        assert len(model.calls) == 1
        model.calls[0].part(b"second", more=True)
        assert await connection.reader.readexactly(11) == b"6\r\nsecond\r\n"
        model.calls[0].part(b"")
        assert await connection.reader.readexactly(5) == b"0\r\n\r\n"
    assert await body_of(connection) == b"next"
    await connection.close()


async def test_the_next_request_waits_for_a_slow_reader(serving: OpenEndpoints) -> None:
    model = serving.registry.model
    large = bytes(range(256)) * 40_000
    model.behave = lambda call: call.part(call.body or large)
    address = serving.address()
    end_of_client = socket.socket()
    end_of_client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    end_of_client.setblocking(False)
    await asyncio.get_running_loop().sock_connect(end_of_client, (address.host, address.port))
    reader, writer = await asyncio.open_connection(sock=end_of_client, limit=4096)
    connection = RawConnection(reader, writer)
    writer.write(predict())
    await until(lambda: model.calls)
    end = served(serving, connection)
    await until(lambda: end.pace.is_reader_slow)
    writer.write(predict(b"next"))
    await taken(serving, connection)
    assert len(model.calls) == 1
    assert await body_of(connection) == large
    assert await body_of(connection) == b"next"
    await connection.close()


async def test_closing_waits_for_an_answer_and_takes_nothing_more(serving: OpenEndpoints) -> None:
    model = serving.registry.model
    hold(model)
    connection = await serving.raw(predict())
    await until(lambda: model.calls)
    end = served(serving, connection)
    connection.writer.write(predict(b"behind"))
    await taken(serving, connection)
    async with asyncio.timeout(60):
        closing = asyncio.ensure_future(serving.endpoints.close())
        await until(lambda: end.is_closing)
        assert not closing.done()
        model.calls[0].part(b"done")
        await closing
    assert (await connection.rest()).endswith(b"\r\n\r\ndone")
    assert len(model.calls) == 1


@pytest.mark.parametrize("streams", [False, True], ids=["waits", "streams"])
async def test_closing_does_not_wait_for_the_answer_to_a_client_that_left(
    serving: OpenEndpoints, monkeypatch: pytest.MonkeyPatch, streams: bool
) -> None:
    monkeypatch.setattr(http_listeners, "_CLOSE_SECONDS", 1000.0)
    model = serving.registry.model
    model.behave = lambda call: call.part(b"one", more=True) if streams else None
    connection = await serving.raw(predict())
    await until(lambda: model.calls)
    end = served(serving, connection)
    async with asyncio.timeout(60):
        closing = asyncio.ensure_future(serving.endpoints.close())
        await until(lambda: end.is_closing)
        await connection.close()
        await closing
    assert model.cancelled.is_set()


async def test_closing_cancels_a_job_that_takes_too_long(
    serving: OpenEndpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_listeners, "_CLOSE_SECONDS", 0.01)
    model = serving.registry.model
    model.behave = lambda call: None
    connection = await serving.raw(predict())
    await until(lambda: model.calls)
    async with asyncio.timeout(60):
        await serving.endpoints.close()
        await model.cancelled.wait()
    assert await connection.rest() == b""


@pytest.mark.parametrize("more", [False, True], ids=["whole", "streams"])
async def test_a_defect_in_an_answer_is_told_and_concerns_no_other_connection(
    serving: OpenEndpoints, caplog: pytest.LogCaptureFixture, more: bool
) -> None:
    model = serving.registry.model
    hold(model, 2)
    opened_ = [await serving.raw(predict()), await serving.raw(predict())]
    await until(lambda: len(model.calls) == 2)
    broken, well = model.calls
    broken.part(b"x", more=more, headers=[("a",)])  # no pair: more than a handler can do
    well.part(b"well")
    answers = sorted([await answer(connection) for connection in opened_])
    assert answers[0][0].startswith("http/1.1 200 ")
    assert answers[0][1] == b"well"
    assert answers[1][0].startswith("http/1.1 500 ")
    assert json.loads(answers[1][1])["type"] == "ValueError"
    assert "POST '/predictions/noop' failed." in caplog.text
    await until(lambda: model.cancelled.is_set() == more)
    for connection in opened_:
        connection.writer.write(predict(b"next"))
        assert await body_of(connection) == b"next"
        await connection.close()
