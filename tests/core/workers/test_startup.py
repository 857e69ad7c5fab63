"""What a process says of how loading went."""

import asyncio
from typing import Any, cast

import pytest

from torchserve_py.core.workers.startup import Startup, WorkerFailed
from ts.protocol.messages import Loaded

GOOD = {"ok": True, "status": 200, "message": "", "traceback": "", "declares": {}}


@pytest.mark.parametrize(
    "change", [{"ok": 1}, {"status": "507"}, {"status": True}, {"message": None}, {"message": b"x"}]
)
async def test_what_is_malformed_is_refused_when_it_arrives(change: dict[str, Any]) -> None:
    startup = Startup("w", 1, asyncio.get_running_loop().create_future())
    with pytest.raises(ValueError, match="how loading went is told with ok of type"):
        startup.loaded(cast("Loaded", {**GOOD, "ok": False, **change}))
    startup.loaded(cast("Loaded", GOOD))
    assert await startup.model(60) == GOOD


async def test_a_failure_is_told() -> None:
    startup = Startup("w", 2, asyncio.get_running_loop().create_future())
    startup.loaded(cast("Loaded", {**GOOD, "ok": False, "status": 507, "message": "no room"}))
    with pytest.raises(WorkerFailed, match="no room") as failed:
        await startup.model(60)
    assert failed.value.status == 507
