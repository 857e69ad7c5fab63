"""The one timer of a scheduler."""

import asyncio
import time

from torchserve_py.core.dispatch.alarm import Alarm


async def test_it_rings_once_for_the_earliest_moment() -> None:
    rings: asyncio.Queue[float] = asyncio.Queue()
    alarm = Alarm(lambda: rings.put_nowait(time.monotonic()))
    now = time.monotonic()
    for deadline in (now + 3600, now + 0.01, now + 7200):
        alarm.set(deadline, now)
    assert await asyncio.wait_for(rings.get(), 30) < now + 3600
    alarm.set(now, time.monotonic())  # a moment that has passed is not forgotten
    await asyncio.wait_for(rings.get(), 30)
    assert rings.empty()


async def test_it_is_quiet_once_cancelled() -> None:
    rings: list[None] = []
    alarm = Alarm(lambda: rings.append(None))
    now = time.monotonic()
    alarm.set(now, now)
    alarm.cancel()
    alarm.set(now, now)
    for _ in range(3):
        await asyncio.sleep(0)
    assert rings == []
