"""Requests that arrive whole are answered in callbacks, and as they would be in the connection's task."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import Callable
from enum import Enum

import pytest
from tests.unit.api.conftest import Serving, Start
from tests.unit.api.fakes import Call, FakeModel, FakeRegistry, RawConnection

from torchserve_py.api import connections, fast_path, listener
from torchserve_py.api.connections import Connection
from torchserve_py.scheduling.effects import Cause

PING = b"GET /ping HTTP/1.1\r\nHost: h\r\n\r\n"
CLOSING = b"Connection: close"


def predict(body: bytes = b"", *headers: bytes, line: bytes = b"POST /predictions/noop HTTP/1.1") -> bytes:
    return b"\r\n".join((line, b"Host: h", b"Content-Length: %d" % len(body), *headers, b"", body))


def served(serving: Serving, connection: RawConnection) -> Connection:
    """The server's end of a connection."""
    address = connection.writer.get_extra_info("sockname")
    ends = [
        end
        for bound in serving.doors._bound
        for each in bound.listeners
        for end in each.connections
        if end.transport is not None and end.transport.get_extra_info("peername") == address
    ]
    assert len(ends) == 1
    assert isinstance(ends[0], Connection)
    return ends[0]


def parsed_by_aiohttp(serving: Serving, connection: RawConnection) -> int:
    """How many of its requests went through aiohttp's parser, and so through the connection's task."""
    return served(serving, connection)._request_count


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # what is waited for has no event
            await asyncio.sleep(0.001)


async def answer(connection: RawConnection) -> tuple[str, bytes]:
    """The next response that has a length: its head, lower-cased, and its body."""
    head = await connection.head()
    found = re.search(r"content-length: (\d+)\r\n", head)
    async with asyncio.timeout(20):
        return head, await connection.reader.readexactly(int(found[1])) if found else b""


async def body_of(connection: RawConnection, status: int = 200) -> bytes:
    head, body = await answer(connection)
    assert head.startswith(f"http/1.1 {status} ")
    return body


async def opened(serving: Serving) -> RawConnection:
    """A connection that the server has accepted."""
    connection = await serving.raw(b"")
    address = connection.writer.get_extra_info("sockname")
    ends = [each.connections for bound in serving.doors._bound for each in bound.listeners]
    await until(
        lambda: any(
            end.transport is not None and end.transport.get_extra_info("peername") == address
            for each in ends
            for end in each
        )
    )
    return connection


def hold(model: FakeModel, held: int = 1) -> None:
    """Let the first requests wait; the others are answered with what they brought."""

    def behave(call: Call) -> None:
        if len(model.calls) > held:
            call.part(call.body)

    model.behave = behave


def show(call: Call) -> None:
    """Answer with what the model was given, or as the body says."""
    said = call.body.decode("latin-1")
    actions: dict[str, Callable[[], None]] = {
        "fail": lambda: call.parts.fail(Cause.queue_full),
        "die": lambda: call.parts.fail(Cause.worker_died),
        "error": lambda: call.part(status=507, error="Too large for me"),
        "header": lambda: call.part(b"x", headers=[("X-Evil", "a\r\nb: c")]),
        "status": lambda: call.part(b"x", status=99),
        "empty": lambda: call.part(b"x", status=204),
        "reason": lambda: call.part(b"x", status=299, reason="All Right", headers=[("X-One", "é"), ("date", "now")]),
        "large": lambda: call.part(b"x" * 300_000),
    }
    if said == "stream":
        for part in (b"one", b"", b"two"):
            call.part(part, more=True, headers=[("content-type", "a/b")])
        call.part(b"three")
    elif said == "broken stream":
        call.part(b"one", more=True)
        call.parts.fail(Cause.worker_died)
    elif said == "bad stream":
        call.part(b"one", more=True, headers=[("X Y", "a")])
    elif said == "raise":
        raise LookupError("surprise")
    elif said in actions:
        actions[said]()
    else:
        given = [[_text(name), _text(value)] for name, value in call.headers]
        call.part(json.dumps([given, said, call.content_type, call.by_default, call.priority]).encode())


def _text(value: str | bytes) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value


REQUESTS = {
    "plain": predict(b"a"),
    "get": b"GET /predictions/noop?a=%20b HTTP/1.1\r\nHost: h\r\n\r\n",
    "put": predict(b"{}", b"content-TYPE: application/json; charset=utf-8", line=b"PUT /predictions/noop/1.0 HTTP/1.1"),
    "headers": predict(b"", b"X-Mixed:\t gr\xc3\xbc\xc3\x9fe \t", b"x-raw: \xff", b"X-Empty:", b"Explain: maybe"),
    "twice": predict(b"", b"X-A: 1", b"x-a: 2", b"Cookie: a=b", b"Cookie: c=d"),
    "closing": predict(b"a", CLOSING),
    "keeping": predict(b"a", b"Connection: Keep-Alive"),
    "priority": predict(b"a", b"ts_request_priority: 7"),
    "bad priority": predict(b"a", b"ts_request_priority: high"),
    "bad content type": predict(b"a", b"Content-Type: caf\xc3\xa9"),
    "path behind the version": predict(line=b"POST /predictions/noop/1.0/caf%C3%A9//x HTTP/1.1"),
    "explanation": predict(b"a", line=b"POST /explanations/noop HTTP/1.1"),
    "no model": predict(line=b"POST /predictions/ HTTP/1.1"),
    "unknown model": predict(b"a", line=b"POST /predictions/foo HTTP/1.1"),
    "unknown version": predict(b"a", line=b"POST /predictions/noop/9 HTTP/1.1"),
    "unknown path": predict(b"a", line=b"POST /nothing HTTP/1.1"),
    "other door": predict(b'{"x": 1}', line=b"POST /invocations HTTP/1.1"),
    "ping": PING,
    "too large": predict(bytes(2000)),
    "options": predict(line=b"OPTIONS /predictions/noop HTTP/1.1"),
    "delete": predict(b"a", line=b"DELETE /predictions/noop HTTP/1.1"),
    "chunked": predict()[:-2].replace(b"Content-Length: 0", b"Transfer-Encoding: chunked") + b"\r\n1\r\na\r\n0\r\n\r\n",
    "refused": predict(b"fail"),
    "lost": predict(b"die"),
    "error of the handler": predict(b"error"),
    "illegal header": predict(b"header"),
    "illegal status": predict(b"status"),
    "no content": predict(b"empty"),
    "reason": predict(b"reason"),
    "large answer": predict(b"large"),
    "stream": predict(b"stream"),
    "broken stream": predict(b"broken stream"),
    "illegal header of a stream": predict(b"bad stream"),
    "defect": predict(b"raise"),
    "two lengths": predict(b"a", b"Content-Length: 2"),
    "no host": predict(b"a").replace(b"Host", b"X"),
    "two hosts": predict(b"a", b"Host: i"),
    "two content types": predict(b"a", b"Content-Type: a/b", b"Content-Type: c/d"),
    "two values of Connection": predict(b"a", b"Connection: keep-alive", CLOSING),
    "malformed": predict(b"a", b"X Y: 1"),
}


class Arrival(Enum):
    """How a request may come to the server."""

    WHOLE = "in one read"
    HEAD_IN_PIECES = "its head in two"
    BODY_BEHIND = "the last byte, be it of the body, in a read of its own"
    BODY_LATE = "so late that it is not waited for"


async def exchange(serving: Serving, data: bytes, arrival: Arrival) -> bytes:
    """Everything that is answered to one request and the closing one behind it."""
    connection = await opened(serving)
    end = served(serving, connection)
    pieces = {Arrival.WHOLE: len(data), Arrival.HEAD_IN_PIECES: 20}.get(arrival, len(data) - 1)
    connection.writer.write(data[:pieces])
    if data[pieces:]:
        await until(lambda: end._is_aiohttps or (end._begun and arrival is not Arrival.BODY_LATE))
        connection.writer.write(data[pieces:])
    answers = await _answered(connection)
    if not connection.reader.at_eof():
        connection.writer.write(predict(b"last", CLOSING))
        answers += await connection.rest()
    await connection.close()
    return re.sub(rb"(?m)^(x-request-id|date): .*\r\n", b"", answers)


async def _answered(connection: RawConnection) -> bytes:
    async with asyncio.timeout(20):
        head = await connection.reader.readuntil(b"\r\n\r\n")
        if b"transfer-encoding: chunked" in head:
            while not (head.endswith(b"\r\n0\r\n\r\n") or connection.reader.at_eof()):
                head += await connection.reader.read(1)
        elif found := re.search(rb"content-length: (\d+)\r\n", head):
            head += await connection.reader.readexactly(int(found[1]))
        if b"connection: close" in head:
            head += await connection.reader.read()
    return head


@pytest.mark.parametrize("name", REQUESTS)
async def test_the_same_is_answered_however_a_request_arrives(
    start: Start, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    serving = await start(max_request_size=1000)
    serving.registry.model.behave = show
    data = REQUESTS[name]
    whole = await exchange(serving, data, Arrival.WHOLE)
    assert whole.startswith(b"HTTP/1.1 ")
    assert await exchange(serving, data, Arrival.HEAD_IN_PIECES) == whole
    assert await exchange(serving, data, Arrival.BODY_BEHIND) == whole
    monkeypatch.setattr(fast_path, "_PATIENCE", 0)
    assert await exchange(serving, data, Arrival.BODY_LATE) == whole


@pytest.mark.parametrize("right", [None, False, True])
async def test_tokens_are_checked_however_a_request_arrives(start: Start, right: bool | None) -> None:
    serving = await start(disable_token_authorization=False)
    key = json.loads(serving.key_file.read_text())["inference"]["key"] if right else "wrong"
    data = predict(b"a") if right is None else predict(b"a", b"Authorization: Bearer " + key.encode())
    whole = await exchange(serving, data, Arrival.WHOLE)
    assert whole.startswith(b"HTTP/1.1 200 " if right else b"HTTP/1.1 400 ")
    assert await exchange(serving, data, Arrival.HEAD_IN_PIECES) == whole
    assert len(serving.registry.model.calls) == (2 if right else 0)


ANSWERED_IN_CALLBACKS = (
    "plain",
    "get",
    "put",
    "headers",
    "keeping",
    "priority",
    "explanation",
    "refused",
    "lost",
    "error of the handler",
    "illegal header",
    "no content",
    "large answer",
    "stream",
    "unknown model",
    "defect",
)


@pytest.mark.parametrize("name", ANSWERED_IN_CALLBACKS)
async def test_no_task_is_needed(start: Start, name: str) -> None:
    serving = await start(max_request_size=1000)
    serving.registry.model.behave = show
    connection = await opened(serving)
    end = served(serving, connection)
    for _ in range(2):
        connection.writer.write(REQUESTS[name])
        await _answered(connection)
    assert end._request_count == 0
    await connection.close()


async def test_a_connection_answers_one_request_after_the_other(serving: Serving) -> None:
    connection = await opened(serving)
    for number in range(50):
        connection.writer.write(predict(b"%d" % number))
        assert await body_of(connection) == b"%d" % number
    assert parsed_by_aiohttp(serving, connection) == 0
    connection.writer.write(predict(b"last", CLOSING))
    head, body = await answer(connection)
    assert "connection: close\r\n" in head
    assert body == b"last"
    assert await connection.rest() == b""
    assert serving.metrics.counts == (51, 0, 0)


async def test_other_doors_are_asked_in_between(serving: Serving) -> None:
    connection = await opened(serving)
    for number in range(3):
        connection.writer.write(PING)
        await body_of(connection)
        connection.writer.write(predict(b"x"))
        assert await body_of(connection) == b"x"
        assert parsed_by_aiohttp(serving, connection) == number + 1  # the pings
    await connection.close()


@pytest.mark.parametrize("cut", [0, 1, 5])
async def test_a_body_just_behind_its_head_needs_no_task(
    serving: Serving, monkeypatch: pytest.MonkeyPatch, cut: int
) -> None:
    monkeypatch.setattr(fast_path, "_PATIENCE", 1000)
    connection = await opened(serving)
    end = served(serving, connection)
    for _ in range(2):
        data = predict(b"pieces")
        first = len(data) - 6 + cut
        connection.writer.write(data[:first])
        await until(lambda first=first: len(end._begun) == first)
        connection.writer.write(data[first:])
        assert await body_of(connection) == b"pieces"
    assert end._request_count == 0
    await connection.close()


async def test_a_head_in_pieces_between_whole_requests(serving: Serving) -> None:
    connection = await opened(serving)
    end = served(serving, connection)
    for number in range(2):
        connection.writer.write(predict(b"whole"))
        assert await body_of(connection) == b"whole"
        connection.writer.write(predict(b"pieces")[:20])
        await until(lambda: end._is_aiohttps)
        connection.writer.write(predict(b"pieces")[20:])
        assert await body_of(connection) == b"pieces"
        assert end._request_count == 2 * number + 1  # a connection that aiohttp has got it keeps
    await connection.close()


async def test_a_request_behind_a_late_body_is_answered(serving: Serving) -> None:
    data = predict(b"one")
    connection = await opened(serving)
    end = served(serving, connection)
    connection.writer.write(data[:-1])
    await until(lambda: end._begun)
    connection.writer.write(data[-1:] + predict(b"two") + predict(b"three")[:30])
    assert await body_of(connection) == b"one"
    assert await body_of(connection) == b"two"
    connection.writer.write(predict(b"three")[30:])
    assert await body_of(connection) == b"three"
    await connection.close()


async def test_a_body_that_trickles_is_left_to_aiohttp(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_path, "_PATIENCE", 1000)
    connection = await opened(serving)
    end = served(serving, connection)
    data = predict(b"x" * 5000)
    connection.writer.write(data[:-5000])
    await until(lambda: end._begun)
    connection.writer.write(b"x" * 2000)
    await until(lambda: len(end._begun) == len(data) - 3000)
    connection.writer.write(b"x")
    await until(lambda: parsed_by_aiohttp(serving, connection))
    connection.writer.write(b"x" * 2999)
    assert await body_of(connection) == b"x" * 5000
    await connection.close()


async def test_a_client_that_leaves_before_its_body_has_sent_no_request(serving: Serving) -> None:
    connection = await opened(serving)
    end = served(serving, connection)
    connection.writer.write(predict(b"one")[:-1])
    await until(lambda: end._begun)
    await connection.close()
    await until(lambda: end.transport is None)
    assert (end._begun, end._patience) == (b"", None)
    assert not serving.registry.model.calls


async def test_chunks_between_whole_requests(serving: Serving) -> None:
    connection = await opened(serving)
    for data, body in ((predict(b"x"), b"x"), (REQUESTS["chunked"], b"a"), (predict(b"y"), b"y")):
        connection.writer.write(data)
        assert await body_of(connection) == body
    await connection.close()


async def test_a_client_is_told_to_continue_only_if_it_waits(serving: Serving) -> None:
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
async def test_requests_sent_behind_one_that_waits_are_answered_after_it(serving: Serving, count: int) -> None:
    model = serving.registry.model
    hold(model)
    connection = await serving.raw(predict(b"first"))
    async with asyncio.timeout(20):
        await model.submitted.wait()
    end = served(serving, connection)
    partial = predict(b"partial")
    sent = b"".join(predict(b"%d" % number) for number in range(count)) + partial[:30]
    connection.writer.write(sent)
    await until(lambda: len(end._held) == len(sent))
    assert len(model.calls) == 1
    model.calls[0].part(b"first")
    assert await body_of(connection) == b"first"
    for number in range(count):
        assert await body_of(connection) == b"%d" % number
    connection.writer.write(partial[30:])
    assert await body_of(connection) == b"partial"
    assert [call.body for call in model.calls[1:]] == [*(b"%d" % number for number in range(count)), b"partial"]
    await connection.close()


async def test_requests_behind_a_large_one_are_all_answered(serving: Serving) -> None:
    """More than aiohttp parses at once, behind a body for which it stops reading."""
    large = bytes(2_000_000)
    connection = await serving.raw(predict(large) + predict(b"x") * 100)
    assert await body_of(connection) == large
    for _ in range(100):
        assert await body_of(connection) == b"x"
    await connection.close()


async def test_a_whole_request_behind_one_that_waits_needs_no_task_either(serving: Serving) -> None:
    model = serving.registry.model
    hold(model, 2)
    connection = await serving.raw(predict(b"1"))
    await until(lambda: len(model.calls) == 1)
    end = served(serving, connection)
    connection.writer.write(predict(b"2"))
    await until(lambda: end._held)
    model.calls[0].part(b"1")
    assert await body_of(connection) == b"1"
    await until(lambda: len(model.calls) == 2)
    model.calls[1].part(b"2")
    assert await body_of(connection) == b"2"
    assert end._request_count == 0
    await connection.close()


async def test_what_follows_the_last_request_is_not_answered(serving: Serving) -> None:
    model = serving.registry.model
    hold(model)
    connection = await serving.raw(predict(b"", CLOSING))
    await until(lambda: model.calls)
    end = served(serving, connection)
    connection.writer.write(predict(b"late"))
    await until(lambda: end._held)
    model.calls[0].part(b"last")
    assert (await connection.rest()).endswith(b"\r\n\r\nlast")
    assert len(model.calls) == 1


async def test_no_more_than_a_little_is_kept_behind_a_request_that_waits(serving: Serving) -> None:
    model = serving.registry.model
    hold(model)
    connection = await serving.raw(predict(b"first"))
    await until(lambda: model.calls)
    end = served(serving, connection)
    transport = end.transport
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
async def test_a_client_that_leaves_cancels_its_job(serving: Serving, behind: bytes, streams: bool) -> None:
    model = serving.registry.model
    model.behave = lambda call: call.part(b"one", more=True) if streams else None
    connection = await serving.raw(predict())
    await until(lambda: model.calls)
    end = served(serving, connection)
    if streams:
        await connection.head()
    connection.writer.write(behind)
    await until(lambda: len(end._held) == len(behind))
    assert not model.cancelled.is_set()
    await connection.close()
    async with asyncio.timeout(20):
        await model.cancelled.wait()
    model.calls[0].part(b"too late")  # as a worker may send it before it hears of the cancelling
    assert len(model.calls) == 1
    assert end._request_count == 0


async def test_a_stream_is_sent_as_it_comes_and_the_next_request_waits_for_its_end(serving: Serving) -> None:
    model = serving.registry.model
    model.behave = lambda call: call.part(b"first", more=True) if len(model.calls) == 1 else call.part(b"next")
    connection = await serving.raw(predict())
    head = await connection.head()
    assert "transfer-encoding: chunked" in head
    async with asyncio.timeout(20):
        assert await connection.reader.readexactly(10) == b"5\r\nfirst\r\n"
        end = served(serving, connection)
        connection.writer.write(predict())
        await until(lambda: end._held)
        assert len(model.calls) == 1
        model.calls[0].part(b"second", more=True)
        assert await connection.reader.readexactly(11) == b"6\r\nsecond\r\n"
        model.calls[0].part(b"")
        assert await connection.reader.readexactly(5) == b"0\r\n\r\n"
    assert await body_of(connection) == b"next"
    assert end._request_count == 0
    await connection.close()


async def test_the_next_request_waits_for_a_slow_reader(serving: Serving) -> None:
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
    await until(lambda: end.writing_paused)
    writer.write(predict(b"next"))
    await until(lambda: end._held)
    assert len(model.calls) == 1
    assert await body_of(connection) == large
    assert await body_of(connection) == b"next"
    assert end._request_count == 0
    await connection.close()


async def test_the_access_log_has_the_same_record(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    registry = FakeRegistry([FakeModel(stateful=True)])
    registry.model.behave = show
    serving = await start(registry, access_log=True)
    sequence = b"ts_request_sequence_id: seq_0"
    for data in (
        predict(b"a", sequence),
        predict(b"error", sequence),
        predict(b"stream", sequence),
        *REQUESTS.values(),
    ):
        records = []
        for arrival in (Arrival.WHOLE, Arrival.HEAD_IN_PIECES):
            caplog.clear()
            with caplog.at_level("INFO", "ACCESS_LOG"):
                await exchange(serving, data, arrival)
            lines = [each for each in caplog.records if each.name == "ACCESS_LOG"]
            assert lines
            records.append([_of_record(each) for each in lines])
        assert records[0] == records[1]


def _of_record(record: object) -> list[object]:
    """What a record says, but for the port, the time, and the number of the job."""
    fields = ("status", "request_id", "sequence_id")
    values = [re.sub(r"^(job|ts-seq)-.+$", r"\1", str(getattr(record, field, "absent"))) for field in fields]
    message = record.getMessage()  # type: ignore[attr-defined]
    return [re.sub(r":\d+ | \d+$", " ", message), *values]


async def test_closing_waits_for_an_answer_and_takes_nothing_more(serving: Serving) -> None:
    model = serving.registry.model
    hold(model)
    connection = await serving.raw(predict())
    await until(lambda: model.calls)
    end = served(serving, connection)
    connection.writer.write(predict(b"behind"))
    await until(lambda: end._held)
    async with asyncio.timeout(20):
        closing = asyncio.ensure_future(serving.doors.close())
        await until(lambda: end._handler_waiter is not None)
        assert not closing.done()
        model.calls[0].part(b"done")
        await closing
    assert (await connection.rest()).endswith(b"\r\n\r\ndone")
    assert len(model.calls) == 1


@pytest.mark.parametrize("streams", [False, True], ids=["waits", "streams"])
async def test_closing_does_not_wait_for_the_answer_to_a_client_that_left(
    serving: Serving, monkeypatch: pytest.MonkeyPatch, streams: bool
) -> None:
    monkeypatch.setattr(listener, "_CLOSE_SECONDS", 1000.0)
    model = serving.registry.model
    model.behave = lambda call: call.part(b"one", more=True) if streams else None
    connection = await serving.raw(predict())
    await until(lambda: model.calls)
    end = served(serving, connection)
    async with asyncio.timeout(20):
        closing = asyncio.ensure_future(serving.doors.close())
        await until(lambda: end._handler_waiter is not None)
        await connection.close()
        await closing
    assert model.cancelled.is_set()


async def test_closing_cancels_a_job_that_takes_too_long(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "_CLOSE_SECONDS", 0.01)
    model = serving.registry.model
    model.behave = lambda call: None
    connection = await serving.raw(predict())
    await until(lambda: model.calls)
    async with asyncio.timeout(20):
        await serving.doors.close()
        await model.cancelled.wait()
    assert await connection.rest() == b""


async def test_a_connection_is_kept_while_its_request_takes_long_and_closed_when_idle(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "_KEEP_ALIVE_SECONDS", 0.05)
    serving = await start()
    model = serving.registry.model
    hold(model)
    connection = await serving.raw(predict())
    await until(lambda: model.calls)
    end = served(serving, connection)
    await until(lambda: end._keepalive_handle is None)  # the time is over
    model.calls[0].part(b"done")
    assert await body_of(connection) == b"done"
    assert await connection.rest() == b""


async def test_a_connection_is_kept_while_a_body_is_awaited(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_KEEP_ALIVE_SECONDS", 0.05)
    monkeypatch.setattr(fast_path, "_PATIENCE", 1000)
    serving = await start()
    connection = await serving.raw(predict(b"x")[:-1])
    end = served(serving, connection)
    await until(lambda: end._begun and end._keepalive_handle is None)  # the time is over
    connection.writer.write(b"x")
    assert await body_of(connection) == b"x"
    await connection.close()


@pytest.mark.parametrize("more", [False, True], ids=["whole", "streams"])
async def test_a_defect_in_an_answer_is_told_and_concerns_no_other_connection(
    serving: Serving, caplog: pytest.LogCaptureFixture, more: bool
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
