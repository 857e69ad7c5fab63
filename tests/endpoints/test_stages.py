"""A request that is over: what its endpoint does then is neither sent, nor counted, nor logged."""

import asyncio
from pathlib import Path

import pytest
from tests.endpoints.fake_serving import FakeServing
from tests.endpoints.fakes import FakeMetrics, make_settings
from tests.net.http1.engine import LIMITS, FakeTransport

from torchserve_py.base.logs import access_log
from torchserve_py.endpoints.http_request import Application
from torchserve_py.endpoints.responses import Answer
from torchserve_py.endpoints.routing import EndpointContext, PathValues, Route
from torchserve_py.net.http1.http_connection import HttpConnection
from torchserve_py.net.http1.http_server import HttpServer
from torchserve_py.net.http1.request import OVER, WAITING, Request

HEAD = b"GET /late HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Late:
    """A route that answers although it was cancelled."""

    def __init__(self, tmp_path: Path, error: Exception | None = None) -> None:
        self.metrics = FakeMetrics()
        self.error = error
        self.stages: list[int] = []
        self.has_ended = asyncio.Event()
        context = EndpointContext(make_settings(tmp_path, access_log=True), FakeServing(), self.metrics, None)  # type: ignore[arg-type]
        server = HttpServer(Application(context, [Route("/late", self.answer)]), LIMITS)
        self.connection = HttpConnection(server)
        self.connection.connection_made(FakeTransport())

    async def answer(self, request: Request, values: PathValues) -> Answer:
        self.stages.append(request.stage)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.stages.append(request.stage)
            asyncio.get_running_loop().call_soon(self.has_ended.set)
        if self.error is not None:
            raise self.error
        return Answer(200, b"too late")


@pytest.mark.parametrize("error", [None, ValueError("too late")])
async def test_a_client_that_left_is_logged_once_whatever_its_endpoint_does_then(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, error: Exception | None
) -> None:
    caplog.set_level("INFO")
    late = Late(tmp_path, error)
    late.connection.data_received(HEAD)
    await asyncio.sleep(0)
    late.connection.connection_lost(None)
    async with asyncio.timeout(60):
        await late.has_ended.wait()
    await asyncio.sleep(0)
    assert late.stages == [WAITING, OVER]
    assert dict(late.metrics.http_requests) == {("GET", "/late", 499): 1}
    access_log.flush()  # no other test is to find the line
