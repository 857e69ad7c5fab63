"""Servers that a replay sends to."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

Answer = Callable[[web.Request], Any]
Serve = Callable[[Answer], Any]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Serves what a function answers."""
    opened: list[TestServer] = []

    async def run(answer: Answer) -> TestServer:
        app = web.Application()
        app.router.add_get("/v2/models/m/versions/2.0", model)
        app.router.add_route("*", "/{rest:.*}", answer)
        opened.append(TestServer(app))
        await opened[-1].start_server()
        return opened[-1]

    async def model(request: web.Request) -> web.Response:
        return web.Response()

    yield run
    for each in opened:
        await each.close()


def address(server: TestServer) -> str:
    return str(server.make_url("")).rstrip("/")
