"""The clock by which sequences are idle."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace

import pytest

from torchserve_py.core import running_time
from torchserve_py.core.running_time import RunningTime


async def test_a_standstill_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    moment = 100.0
    monkeypatch.setattr(running_time, "time", SimpleNamespace(monotonic=lambda: moment))
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
    await asyncio.sleep(2 * running_time._STANDSTILL)
    assert clock.now() - first >= running_time._STANDSTILL or time.monotonic() - began > 3 * running_time._STANDSTILL
    clock.close()


async def test_what_is_read_right_after_a_standstill_may_have_waited_since_it_began(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moment = 100.0
    monkeypatch.setattr(running_time, "time", SimpleNamespace(monotonic=lambda: moment))
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
