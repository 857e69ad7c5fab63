"""How the process that belongs to a Ray cluster finds nodes for workers, without a cluster."""

import asyncio
from typing import Any

import pytest

from torchserve_py.fleet.ray import ray_driver


class Cluster(ray_driver.Driver):
    """Has one free node, but the first actors never get there."""

    def __init__(self) -> None:
        super().__init__()
        self.lost: list[asyncio.Future[None]] = []

    async def _nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "Resources": {"CPU": 1.0}}]

    async def _host(self, demand: object) -> tuple[int, str, bytes]:
        if len(self.lost) < 2:
            self.lost.append(asyncio.get_running_loop().create_future())
            await self.lost[-1]
        return 7, "1.0", b""

    async def place_after(self, seconds: float) -> object:
        """Ask for the place of a worker again, so many seconds after its actor was made."""
        if "9000" in self._placing:
            since = asyncio.get_running_loop().time() - seconds
            self._placing["9000"] = self._placing["9000"]._replace(since=since)
        return await self.place("9000", {})


async def test_an_actor_that_ray_has_lost_is_replaced_by_one_that_has_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_driver, "_PLACE_LIMIT", 0.01)
    cluster = Cluster()
    for seconds, made in ((0, 1), (50, 1), (61, 2), (61, 2), (119, 2)):
        assert "has room for it yet" in str(await cluster.place_after(seconds))
        assert len(cluster.lost) == made
    assert await cluster.place_after(121) == (7, "1.0", b"")
    assert [each.cancelled() for each in cluster.lost] == [True, True]
