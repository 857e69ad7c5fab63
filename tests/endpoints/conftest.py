"""Real HTTP against endpoints with a fake model registry behind them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.endpoints.fake_serving import FakeServing
from tests.endpoints.fakes import FakeMetrics, RawConnection, make_settings

from torchserve_py.base.settings.addresses import Address
from torchserve_py.base.settings.table import Settings
from torchserve_py.endpoints.http_listeners import HttpListeners, start_http_listeners
from torchserve_py.endpoints.token_authorization import KEY_FILE
from torchserve_py.ops.keys.server_keys import open_keys
from torchserve_py.plugins import plugins
from torchserve_py.server import PROTECTION


async def open_endpoints(
    settings: Settings, registry: FakeServing, metrics: FakeMetrics, key_file: Path = Path(KEY_FILE)
) -> HttpListeners:
    """Open the endpoints of a server."""
    offers = [offer for plugin in plugins() for offer in plugin.endpoints()]
    tokens = None if settings.disable_token_authorization else open_keys(settings, key_file)
    return await start_http_listeners(settings, registry, metrics, offers, tokens, PROTECTION)  # type: ignore[arg-type]


class OpenEndpoints:
    """Open endpoints, and what a test needs to talk to them and to look behind them."""

    def __init__(self, endpoints: HttpListeners, registry: FakeServing, metrics: FakeMetrics, key_file: Path) -> None:
        self.endpoints = endpoints
        self.registry = registry
        self.metrics = metrics
        self.key_file = key_file
        self.client = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20), auto_decompress=False)

    def address(self, endpoint: str = "inference") -> Address:
        return self.endpoints.addresses[f"{endpoint}_address"]

    async def request(self, method: str, target: str, *, endpoint: str = "inference", **more: Any) -> Answer:
        async with self.client.request(method, f"{self.address(endpoint)}{target}", **more) as response:
            return Answer(response.status, response.headers, await response.read())

    async def raw(self, data: bytes, *, endpoint: str = "inference") -> RawConnection:
        address = self.address(endpoint)
        reader, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(data)
        return RawConnection(reader, writer)


class Answer:
    """A response that has been read."""

    def __init__(self, status: int, headers: Any, body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    def json(self) -> Any:
        return json.loads(self.body)


Start = Callable[..., Awaitable[OpenEndpoints]]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    """Open endpoints with settings of the test's choice."""
    opened: list[OpenEndpoints] = []

    async def run(registry: FakeServing | None = None, **settings: Any) -> OpenEndpoints:
        registry = registry or FakeServing()
        registry.store = tmp_path
        metrics = FakeMetrics()
        key_file = tmp_path / "key_file.json"
        endpoints = await open_endpoints(make_settings(tmp_path, **settings), registry, metrics, key_file)
        opened.append(OpenEndpoints(endpoints, registry, metrics, key_file))
        return opened[-1]

    yield run
    for serving in opened:
        await serving.client.close()
        async with asyncio.timeout(60):
            await serving.endpoints.close()


@pytest.fixture
async def serving(start: Start) -> OpenEndpoints:
    """Open endpoints with one model, ``noop``, that answers with what it was sent."""
    return await start()
