"""A server that was frozen gives others the time that it had no chance to hear them in: none of it counts.

The event loop does nothing at all for a while, which is as if the process were stopped.
"""

import asyncio
import time
from pathlib import Path
from typing import Any, cast

import pytest

from torchserve_py.core.forking import forking
from torchserve_py.core.forking.forking import ForkedProcess, Forking
from torchserve_py.core.workers.confinement import Confinement
from torchserve_py.core.workers.launch_command import Launch

LIMIT = 0.6


async def standstill() -> None:
    """The process is frozen for longer than every limit, and then there is nothing to read yet."""
    await asyncio.sleep(0.05)
    time.sleep(2 * LIMIT)
    await asyncio.sleep(0.05)


async def test_the_warm_parent_and_its_workers_are_not_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    forked, closed = cast("ForkedProcess", object()), []

    async def fork(*arguments: Any) -> ForkedProcess:
        await standstill()
        return forked

    async def close() -> None:
        closed.append("closed")

    forks = Forking(Confinement(), frozenset())
    monkeypatch.setattr(forking, "_FORK_LIMIT", LIMIT)
    monkeypatch.setattr(forking, "_is_forkable", lambda launch: True)
    monkeypatch.setattr(forks, "_forked", fork)
    monkeypatch.setattr(forks, "close", close)
    assert await forks.fork(Launch(Path("/")), ("torch",), Path("/"), "", "w", ()) is forked
    assert closed == []
