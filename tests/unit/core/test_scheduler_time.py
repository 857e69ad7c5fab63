"""The clock by which sequences are idle, and the one timer of a scheduler."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace

import pytest

from torchserve_py.core import scheduler_time
from torchserve_py.core.scheduler_time import Alarm, RunningTime


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


async def test_a_standstill_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    moment = 100.0
    monkeypatch.setattr(scheduler_time, "time", SimpleNamespace(monotonic=lambda: moment))
    clock = RunningTime()
    first = clock.now()
    moment += 0.2
    assert clock.now() == pytest.approx(first + 0.2)
    moment += 60.0  # nobody looked for so long
    assert clock.now() == pytest.approx(first + 0.2)
    moment += 0.1
    assert clock.now() == pytest.approx(first + 0.3)
    clock.close()


async def test_a_quiet_event_loop_is_no_standstill() -> None:
    clock = RunningTime()
    began, first = time.monotonic(), clock.now()
    await asyncio.sleep(2 * scheduler_time._STANDSTILL)
    assert (
        clock.now() - first >= scheduler_time._STANDSTILL or time.monotonic() - began > 3 * scheduler_time._STANDSTILL
    )
    clock.close()


async def test_what_is_read_right_after_a_standstill_may_have_waited_since_it_began(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moment = 100.0
    monkeypatch.setattr(scheduler_time, "time", SimpleNamespace(monotonic=lambda: moment))
    clock = RunningTime()
    long_before = clock.now()
    moment += 0.25
    before = clock.now()
    moment += 60.0
    right_after = clock.now()
    moment += 0.25
    later = clock.now()
    moment += 60.0
    clock.now()
    shown = (long_before, before, right_after, later)
    assert [clock.moment_of(each) for each in shown] == pytest.approx([100.0, 100.25, 100.25, 160.5])
    clock.close()
