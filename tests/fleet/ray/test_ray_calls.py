"""Calls to the process that belongs to a Ray cluster."""

import asyncio
from typing import cast

from tests.core.workers.test_after_a_freeze import LIMIT, standstill

from torchserve_py.core.workers.connection import WorkerConnection
from torchserve_py.core.workers.process import WorkerProcess
from torchserve_py.fleet.ray.ray_calls import RayCalls


class Ray:
    """The process that belongs to a Ray cluster, and the connection to it."""

    async def wait(self) -> str:
        never: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        return await never

    def send(self, buffers: object) -> None:
        """A call; it is answered when a test says so."""


async def test_the_process_that_belongs_to_a_ray_cluster_may_still_answer() -> None:
    ray = Ray()
    calls = RayCalls(cast("WorkerProcess", ray))
    calls._connection = cast("WorkerConnection", ray)
    call = asyncio.ensure_future(calls.call("look", limit=LIMIT))
    await standstill()
    calls._answered(cast("WorkerConnection", ray), ["result", 0, True])
    assert await call is True
