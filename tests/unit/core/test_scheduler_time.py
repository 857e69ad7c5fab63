"""The clock by which sequences are idle, and the one timer of a scheduler."""

import asyncio
import time
from collections.abc import AsyncIterator
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


class Machine:
    """A clock of the machine that a test advances, and an event loop that comes round when the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.moment = 100.0
        monkeypatch.setattr(scheduler_time, "time", SimpleNamespace(monotonic=lambda: self.moment))
        self.clock = RunningTime()

    def passes(self, seconds: float) -> float:
        """Time passes in which the event loop does not come round; return what the clock shows then."""
        self.moment += seconds
        return self.clock.now()

    def comes_round(self, seconds: float) -> float:
        """Time passes, and then the event loop comes round."""
        self.moment += seconds
        self.clock._beat()
        return self.clock.now()


@pytest.fixture
async def machine(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Machine]:
    made = Machine(monkeypatch)
    yield made
    made.clock.close()


async def test_a_standstill_does_not_count(machine: Machine) -> None:
    first = machine.clock.now()
    assert machine.comes_round(0.1) == pytest.approx(first + 0.1)
    stopped = machine.passes(60.0)
    assert stopped <= first + 0.1 + 2 * (scheduler_time._BEAT + scheduler_time._TOLERANCE)
    assert machine.comes_round(1.0) == pytest.approx(stopped)
    assert machine.comes_round(0.1) == pytest.approx(stopped + 0.1)


async def test_time_in_which_the_event_loop_has_too_much_to_do_does_not_count(machine: Machine) -> None:
    first = shown = machine.clock.now()
    for _ in range(10):
        for _ in range(10):
            later = machine.passes(0.1)
            assert later >= shown, "the clock goes back"
            shown = later
        shown = machine.comes_round(0.0)
    assert shown - first <= 10 * 2 * (scheduler_time._BEAT + scheduler_time._TOLERANCE)


async def test_a_quiet_event_loop_is_no_standstill() -> None:
    clock = RunningTime()
    began, first = time.monotonic(), clock.now()
    await asyncio.sleep(0.6)
    took = time.monotonic() - began
    assert clock.now() - first == pytest.approx(took, abs=0.01) or took > 0.7
    clock.close()


async def test_what_is_read_right_after_a_standstill_may_have_waited_since_it_began(machine: Machine) -> None:
    long_before = machine.clock.now()
    for _ in range(3):
        before = machine.comes_round(0.1)
    right_after = machine.comes_round(60.0)
    for _ in range(3):
        later = machine.comes_round(0.1)
    waited = scheduler_time._BEAT + scheduler_time._TOLERANCE
    assert machine.clock.moment_of(long_before) == pytest.approx(100.0)
    assert machine.clock.moment_of(before) == pytest.approx(100.3)
    assert machine.clock.moment_of(right_after) == pytest.approx(100.3 + waited)
    assert machine.clock.moment_of(later) == pytest.approx(160.6)


async def test_standstills_that_follow_each_other_count_as_one(machine: Machine) -> None:
    machine.clock.now()
    for _ in range(5):
        shown = machine.comes_round(2.0)
    assert machine.clock.moment_of(shown) < 101.0
