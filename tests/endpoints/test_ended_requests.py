"""Requests that are over: counted and logged once, whatever their answer was, and kept for a moment without a body."""

import asyncio
from pathlib import Path

import pytest
from tests.endpoints.fake_serving import FakeServing
from tests.endpoints.fakes import FakeMetrics, make_settings
from tests.net.http1.engine import LIMITS, FakeTransport

from torchserve_py.base.logs import access_log
from torchserve_py.endpoints import ended_requests
from torchserve_py.endpoints.http_request import Application, HttpRequest
from torchserve_py.endpoints.responses import ALREADY_SENT, AlreadySent, Answer
from torchserve_py.endpoints.routing import EndpointContext, PathValues, Route
from torchserve_py.net.http1.http_connection import HttpConnection
from torchserve_py.net.http1.http_server import HttpServer
from torchserve_py.net.http1.request import Request


class Answering:
    """A connection to a whole answer (``/whole``) and a stream (``/stream``)."""

    def __init__(self, tmp_path: Path) -> None:
        self.metrics = FakeMetrics()
        self.context = EndpointContext(make_settings(tmp_path, access_log=True), FakeServing(), self.metrics, None)  # type: ignore[arg-type]
        routes = [Route("/whole", lambda request, values: Answer(200, b"whole")), Route("/stream", self.stream)]
        self.connection = HttpConnection(HttpServer(Application(self.context, routes), LIMITS))
        self.connection.connection_made(FakeTransport())

    async def stream(self, request: Request, values: PathValues) -> AlreadySent:
        self.context.responses.start_stream(request, Answer(200))
        await asyncio.sleep(0)
        request.send(((b"last",),), last=True)
        return ALREADY_SENT

    async def ask(self, method: str, path: str, body: bytes = b"") -> None:
        head = f"{method} {path} HTTP/1.1\r\nHost: h\r\nContent-Length: {len(body)}\r\n\r\n"
        self.connection.data_received(head.encode() + body)
        for _ in range(5):
            await asyncio.sleep(0)


async def test_each_answer_and_each_request_is_counted_and_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    access_log.flush()
    caplog.set_level("INFO", "ACCESS_LOG")
    answering = Answering(tmp_path)
    for path in ("/whole", "/whole", "/stream", "/nothing", "/whole"):
        await answering.ask("GET", path)
    assert answering.metrics.counts == (4, 1, 0)
    assert answering.metrics.http_requests == {
        ("GET", "/whole", 200): 3,
        ("GET", "/stream", 200): 1,
        ("GET", "", 404): 1,
    }
    access_log.flush()
    asked = [record.getMessage().split()[2] for record in caplog.records if record.name == "ACCESS_LOG"]
    assert asked == ["/whole", "/whole", "/stream", "/nothing", "/whole"]


async def test_a_request_that_is_kept_keeps_no_body(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[HttpRequest] = []
    note = ended_requests.EndedRequests.note

    def keep(self: ended_requests.EndedRequests, request: HttpRequest, *, is_whole: bool) -> None:
        kept.append(request)
        note(self, request, is_whole=is_whole)

    monkeypatch.setattr(ended_requests.EndedRequests, "note", keep)
    answering = Answering(tmp_path)
    await answering.ask("POST", "/nothing", b"unread" * 100)
    (request,) = kept
    assert (request.body_size, request.body_at_hand(1000)) == (600, b"")
    access_log.flush()
