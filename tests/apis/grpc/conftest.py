"""Real gRPC against endpoints with a fake model registry behind them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from grpc import aio
from tests.endpoints.fake_serving import FakeServing
from tests.endpoints.fakes import FakeMetrics, make_settings

from torchserve_py.apis.grpc.grpc_listeners import GrpcListeners, start_grpc_listeners
from torchserve_py.apis.grpc.protos import inference_pb2_grpc, management_pb2_grpc
from torchserve_py.endpoints.routing import EndpointContext
from torchserve_py.ops.keys.generated_keys import GeneratedKeys


class GrpcServing:
    """Open endpoints, clients of both, and the registry behind them."""

    def __init__(self, endpoints: GrpcListeners, registry: FakeServing) -> None:
        self.endpoints = endpoints
        self.registry = registry
        self.inference_channel = aio.insecure_channel(self.target("inference"))
        self.management_channel = aio.insecure_channel(self.target("management"))
        self.inference = inference_pb2_grpc.InferenceAPIsServiceStub(self.inference_channel)
        self.management = management_pb2_grpc.ManagementAPIsServiceStub(self.management_channel)

    def target(self, service: str) -> str:
        address = self.endpoints.addresses[f"grpc_{service}_port"]
        return f"{address.host}:{address.port}"

    async def close(self) -> None:
        await self.inference_channel.close()
        await self.management_channel.close()
        async with asyncio.timeout(60):
            await self.endpoints.close()


Start = Callable[..., Awaitable[GrpcServing]]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    """Open endpoints with settings of the test's choice."""
    opened: list[GrpcServing] = []

    async def run(
        registry: FakeServing | None = None, tokens: GeneratedKeys | None = None, **settings: Any
    ) -> GrpcServing:
        registry = registry or FakeServing()
        settings = {"grpc_inference_port": 0, "grpc_management_port": 0, **settings}
        known = make_settings(tmp_path, **settings)
        context = EndpointContext(known, registry, FakeMetrics(), tokens)  # type: ignore[arg-type]
        endpoints = await start_grpc_listeners(context)
        opened.append(GrpcServing(endpoints, registry))
        return opened[-1]

    yield run
    for serving in opened:
        await serving.close()


@pytest.fixture
async def serving(start: Start) -> GrpcServing:
    """Open endpoints with one model, ``noop``, that answers with what it was sent."""
    return await start()
