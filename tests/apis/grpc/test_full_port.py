"""A gRPC port with all its connections answers health checks, and nothing else."""

import grpc
import pytest
from grpc import aio
from tests.net.http2.conftest import start

from torchserve_py.net.admission import Admission, ConnectionBudget
from torchserve_py.net.http2.grpc_messages import MessageLimit
from torchserve_py.net.http2.grpc_server import GrpcServer
from torchserve_py.net.http2.rpc import RpcLimits, RpcMethod

CHECK = "/grpc.health.v1.Health/Check"
OTHER = "/m.S/Other"


async def call(port: int, path: str) -> bytes:
    """Call a method over a connection of its own."""
    async with aio.insecure_channel(f"127.0.0.1:{port}", options=(("grpc.use_local_subchannel_pool", 1),)) as channel:
        answer: bytes = await channel.unary_unary(path)(b"", timeout=180)
        return answer


async def test_health_checks_are_answered_beyond_the_limit() -> None:
    limit = MessageLimit(4096, "is enough")
    methods = {path: RpcMethod(lambda request, call: b"well", limit) for path in (CHECK, OTHER)}
    probes = {CHECK: methods[CHECK]}
    server = GrpcServer(methods, RpcLimits(10), Admission(ConnectionBudget(100), 1), probes=probes)
    port = await server.listen("127.0.0.1", 0, None)
    async with aio.insecure_channel(f"127.0.0.1:{port}", options=(("grpc.use_local_subchannel_pool", 1),)) as held:
        assert await held.unary_unary(OTHER)(b"", timeout=180) == b"well"
        for _ in range(20):
            assert await call(port, CHECK) == b"well"
        with pytest.raises(aio.AioRpcError) as refused:
            await call(port, OTHER)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "all the connections" in str(refused.value.details())
    await server.stop(0)


async def test_a_server_that_leaves_has_clients_connect_anew() -> None:
    running = await start()
    async with running.channel() as channel:
        before = channel.get_state(try_to_connect=True)
        while before is not grpc.ChannelConnectivity.READY:
            await channel.wait_for_state_change(before)
            before = channel.get_state()
        running.server.leave()
        await channel.wait_for_state_change(grpc.ChannelConnectivity.READY)
    await running.server.stop(0)
