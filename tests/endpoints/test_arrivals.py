"""A request is answered the same however it arrives: whole or in pieces."""

import asyncio
import json
import re
from collections.abc import Callable
from enum import Enum

import pytest
from tests.endpoints.conftest import OpenEndpoints, Start
from tests.endpoints.fake_serving import FakeModel, FakeServing, Submitted
from tests.endpoints.raw_requests import (
    CHUNKED,
    CLOSING,
    PING,
    answered,
    opened,
    over,
    predict,
    taken,
)

from torchserve_py.base.causes import Cause
from torchserve_py.base.logs import access_log
from torchserve_py.endpoints.http_request import HttpRequest


def show(call: Submitted) -> None:
    """Answer with what the model was given, or as the body says."""
    said = call.body.decode("latin-1")
    actions: dict[str, Callable[[], None]] = {
        "fail": lambda: call.fail(Cause.queue_full),
        "die": lambda: call.fail(Cause.worker_died),
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
        call.fail(Cause.worker_died)
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
    "get": b"GET /predictions/noop?a=%20b HTTP/1.1\r\nHost: localhost\r\n\r\n",
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
    "other endpoint": predict(b'{"x": 1}', line=b"POST /invocations HTTP/1.1"),
    "ping": PING,
    "too large": predict(bytes(2000)),
    "options": predict(line=b"OPTIONS /predictions/noop HTTP/1.1"),
    "delete": predict(b"a", line=b"DELETE /predictions/noop HTTP/1.1"),
    "chunked": CHUNKED,
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


async def exchange(serving: OpenEndpoints, data: bytes, arrival: Arrival) -> bytes:
    """Everything that is answered to one request and the closing one behind it."""
    connection = await opened(serving)
    pieces = {Arrival.WHOLE: len(data), Arrival.HEAD_IN_PIECES: 20}.get(arrival, len(data) - 1)
    connection.writer.write(data[:pieces])
    if data[pieces:]:
        await taken(serving, connection)
        connection.writer.write(data[pieces:])
    answers = await answered(connection)
    if not connection.reader.at_eof():
        connection.writer.write(predict(b"last", CLOSING))
        answers += await connection.rest()
    await connection.close()
    return re.sub(rb"(?m)^(x-request-id|date): .*\r\n", b"", answers)


@pytest.mark.parametrize("name", REQUESTS)
async def test_the_same_is_answered_however_a_request_arrives(start: Start, name: str) -> None:
    serving = await start(max_request_size=1000)
    serving.registry.model.behave = show
    data = REQUESTS[name]
    whole = await exchange(serving, data, Arrival.WHOLE)
    assert whole.startswith(b"HTTP/1.1 ")
    assert await exchange(serving, data, Arrival.HEAD_IN_PIECES) == whole
    assert await exchange(serving, data, Arrival.BODY_BEHIND) == whole


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
    "unknown model",
    "defect",
)


@pytest.mark.parametrize("name", ANSWERED_IN_CALLBACKS)
async def test_no_task_is_needed(start: Start, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    serving = await start(max_request_size=1000)
    serving.registry.model.behave = show
    tasks: list[object] = []
    monkeypatch.setattr(HttpRequest, "_run", lambda self, coroutine: tasks.append(coroutine))
    connection = await opened(serving)
    data = REQUESTS[name]
    for cut in (len(data), len(data) - 1, 30):
        connection.writer.write(data[:cut])
        await taken(serving, connection)
        connection.writer.write(data[cut:])
        await answered(connection)
    assert tasks == []
    await connection.close()


async def test_the_access_log_has_the_same_record(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    registry = FakeServing([FakeModel(stateful=True)])
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
            tasks = asyncio.all_tasks()
            with caplog.at_level("INFO", "ACCESS_LOG"):
                await exchange(serving, data, arrival)
                await over(serving, tasks)
                access_log.flush()
            lines = [each for each in caplog.records if each.name == "ACCESS_LOG"]
            assert lines
            records.append([_of_record(each) for each in lines])
        assert records[0] == records[1]


def _of_record(record: object) -> list[object]:
    """What a record says, but for the port, the time, and ids that the server makes."""
    fields = ("status", "request_id", "sequence_id")
    made = r"^(job|ts-seq)-.+$|^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"
    values = [re.sub(made, r"\1", str(getattr(record, field, "absent"))) for field in fields]
    message = record.getMessage()  # type: ignore[attr-defined]
    return [re.sub(r":\d+ | \d+$", " ", message), *values]
