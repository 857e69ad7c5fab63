"""The time in which a process runs: a standstill does not advance it, and it limits waits."""

import asyncio
import gc
import time
import weakref
from collections.abc import Callable
from typing import cast
from unittest.mock import Mock

import pytest

from torchserve_py.net import running_time, turns
from torchserve_py.net.running_time import Deadline, RunningTime


class Machine:
    """A clock of the machine that a test advances, and an event loop that comes round when the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.moment = 100.0
        monkeypatch.setattr(running_time, "boot_time", lambda: self.moment)
        self.loop = Mock()
        self.clock = RunningTime(cast("asyncio.AbstractEventLoop", self.loop))

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
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


async def test_a_standstill_does_not_count(machine: Machine) -> None:
    first = machine.clock.now()
    assert machine.comes_round(0.1) == pytest.approx(first + 0.1)
    stopped = machine.passes(60.0)
    assert stopped <= first + 0.1 + 2 * (running_time._BEAT + running_time._TOLERANCE)
    assert machine.comes_round(1.0) == pytest.approx(stopped)
    assert machine.clock.lost == pytest.approx(61.1 - (stopped - first))
    assert machine.comes_round(0.1) == pytest.approx(stopped + 0.1)


async def test_time_in_which_the_event_loop_has_too_much_to_do_does_not_count(machine: Machine) -> None:
    first = shown = machine.clock.now()
    for _ in range(10):
        for _ in range(10):
            later = machine.passes(0.1)
            assert later >= shown, "the clock goes back"
            shown = later
        shown = machine.comes_round(0.0)
    assert shown - first <= 10 * 2 * (running_time._BEAT + running_time._TOLERANCE)


async def test_a_quiet_event_loop_is_no_standstill() -> None:
    clock = running_time.running_time()
    began, first = time.monotonic(), clock.now()
    await asyncio.sleep(0.6)
    took = time.monotonic() - began
    assert clock.now() - first == pytest.approx(took, abs=0.01) or took > 0.7


async def test_what_is_read_right_after_a_standstill_may_have_waited_since_it_began(machine: Machine) -> None:
    long_before = machine.clock.now()
    for _ in range(3):
        before = machine.comes_round(0.1)
    right_after = machine.comes_round(60.0)
    for _ in range(3):
        later = machine.comes_round(0.1)
    waited = running_time._BEAT + running_time._TOLERANCE
    assert machine.clock.moment_of(long_before) == pytest.approx(100.0)
    assert machine.clock.moment_of(before) == pytest.approx(100.3)
    assert machine.clock.moment_of(right_after) == pytest.approx(100.3 + waited)
    assert machine.clock.moment_of(later) == pytest.approx(160.6)


async def test_standstills_that_follow_each_other_count_as_one(machine: Machine) -> None:
    machine.clock.now()
    for _ in range(5):
        shown = machine.comes_round(2.0)
    assert machine.clock.moment_of(shown) < 101.0


#: Seconds; and for how long the event loop does nothing at all, which is as if the process were stopped.
LIMIT = 0.6
STANDSTILL = 1.0


async def test_a_wait_is_longer_by_a_standstill() -> None:
    clock, never = running_time.running_time(), asyncio.get_running_loop().create_future()
    began = time.monotonic()
    asyncio.get_running_loop().call_later(0.05, time.sleep, STANDSTILL)
    await clock.wait([never], LIMIT)
    assert time.monotonic() - began >= LIMIT + STANDSTILL - 2 * (running_time._BEAT + running_time._TOLERANCE)


async def test_a_wait_ends_with_the_first_that_is_done() -> None:
    clock, never = running_time.running_time(), asyncio.get_running_loop().create_future()
    for limit in (None, 3600.0):
        await asyncio.wait_for(clock.wait([never, asyncio.ensure_future(asyncio.sleep(0))], limit), 30)
    await asyncio.wait_for(clock.wait([never], 0.0), 30)
    assert not never.done()


async def test_work_that_takes_too_long_has_ended_when_that_is_told() -> None:
    ends: list[str] = []

    async def work(seconds: float) -> str:
        try:
            await asyncio.sleep(seconds)
            return "done"
        finally:
            await asyncio.sleep(0)
            ends.append("ended")

    clock = running_time.running_time()
    assert await clock.within(3600.0, work(0.0)) == "done"
    assert await clock.within(None, work(0.0)) == "done"
    with pytest.raises(TimeoutError):
        await clock.within(0.01, work(3600.0))
    assert ends == ["ended"] * 3


async def test_a_deadline_is_later_by_a_standstill() -> None:
    passed: asyncio.Future[float] = asyncio.get_running_loop().create_future()
    began = time.monotonic()
    deadline = Deadline(asyncio.get_running_loop())
    deadline.start(3600.0, lambda: pytest.fail("it was replaced"))
    deadline.start(LIMIT, lambda: passed.set_result(time.monotonic() - began))
    asyncio.get_running_loop().call_later(0.05, time.sleep, STANDSTILL)
    took = await asyncio.wait_for(passed, 30)
    assert took >= LIMIT + STANDSTILL - 2 * (running_time._BEAT + running_time._TOLERANCE)


@pytest.mark.parametrize("kept", [running_time.running_time, turns.running_turns])
def test_an_event_loop_that_has_ended_is_not_kept(kept: Callable[[], object]) -> None:
    async def ask() -> None:
        kept()

    loop = asyncio.new_event_loop()
    loop.run_until_complete(ask())
    loop.close()
    seen = weakref.ref(loop)
    del loop
    gc.collect()
    assert seen() is None
