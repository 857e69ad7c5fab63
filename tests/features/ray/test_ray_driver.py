"""How the process that belongs to a Ray cluster finds nodes for workers, without a cluster."""

import asyncio
from typing import Any

import pytest

from torchserve_py.features.ray import ray_driver


class Cluster(ray_driver.Driver):
    """Has one free node, but the first actor never gets there."""

    def __init__(self) -> None:
        super().__init__()
        self.lost: list[asyncio.Future[None]] = []

    async def _nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "Resources": {"CPU": 1.0}}]

    async def _host(self, demand: object) -> tuple[int, str, bytes]:
        if not self.lost:
            self.lost.append(asyncio.get_running_loop().create_future())
            await self.lost[0]
        return 7, "1.0", b""


async def test_an_actor_that_ray_has_lost_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_driver, "_PLACE_LIMIT", 0.01)
    cluster = Cluster()
    assert "has room for it yet" in str(await cluster.place("9000", {}))
    assert "has room for it yet" in str(await cluster.place("9000", {}))  # it may still come
    assert not cluster.lost[0].cancelled()
    monkeypatch.setattr(ray_driver, "_ACTOR_LIMIT", 0.0)
    assert await cluster.place("9000", {}) == (7, "1.0", b"")
    assert cluster.lost[0].cancelled()
