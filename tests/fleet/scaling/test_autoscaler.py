"""The shell around the scaling policy: when it looks, what it starts and stops, and what it says."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import cast

import pytest
from tests.core.dispatch.shell import FakeWorker, Shell, cause_of, stateful, stateless

from torchserve_py.base.causes import Cause, Reason
from torchserve_py.base.metrics.model_metrics import ModelMetrics
from torchserve_py.core.scheduling.demand import WorkerCounts
from torchserve_py.core.scheduling.policy import Policy
from torchserve_py.core.workers.pool import WorkerPool
from torchserve_py.core.workers.worker import Worker
from torchserve_py.fleet.scaling import autoscaler as module
from torchserve_py.fleet.scaling.autoscaler import Autoscaler
from torchserve_py.fleet.scaling.scaling import ScalingPolicy


class FakePool:
    """Notes what it is told; its workers are ready when a test says so."""

    def __init__(self, shell: Shell, least: int, most: int, wanted: int) -> None:
        self.shell = shell
        self.least, self.most, self.wanted = least, most, wanted
        self.ready_count = wanted
        self.resized: list[tuple[int, Sequence[str]]] = []
        self.looks = 0

    @property
    def counts(self) -> WorkerCounts:
        self.looks += 1
        return WorkerCounts(self.wanted, self.ready_count, False, self.least, self.most)

    def resize(self, count: int, movable: Sequence[str], why: str) -> None:
        assert why
        self.resized.append((count, movable))
        self.wanted = count
        self.shell.dispatcher.set_workers(max(1, count))


class Followed:
    """An autoscaler of a dispatcher with as many workers as the pool has to begin with."""

    def __init__(self, scaling: ScalingPolicy, policy: Policy, *, least: int, most: int, workers: int) -> None:
        self.shell = Shell(policy, workers)
        self.shell.dispatcher.set_workers(max(1, workers))
        self.pool = FakePool(self.shell, least, most, workers)
        self.metrics: ModelMetrics = self.shell.dispatcher.metrics
        self.autoscaler = Autoscaler(
            "Model m version 1.0", scaling, cast("WorkerPool", self.pool), self.shell.dispatcher, self.metrics
        )

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(60):
            while not condition():
                await asyncio.sleep(0.001)


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_INTERVAL", 0.001)
    monkeypatch.setattr(module, "_PROGRESS_INTERVAL", 0.01)


async def test_the_first_request_starts_a_worker_and_waits_for_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    followed = Followed(ScalingPolicy(), stateless(), least=0, most=2, workers=0)
    first, second = followed.shell.submit("a"), followed.shell.submit("b")
    await followed.until(lambda: followed.pool.resized)
    await followed.until(lambda: "loading for 0 s, requests that wait: 2" in caplog.text)
    assert followed.pool.resized == [(1, ())]
    assert followed.metrics.scalings[Reason.request].value == 1
    assert "Model m version 1.0: from 0 to 1 workers: 2 requests wait" in caplog.text
    worker = followed.shell.add_worker("w1")
    followed.pool.ready_count = 1
    followed.shell.answer(worker, first)
    followed.shell.answer(worker, second)
    assert (await first.next()).body == (await second.next()).body == b"ok"
    followed.autoscaler.close()


async def test_requests_that_wait_bring_workers() -> None:
    followed = Followed(ScalingPolicy(target_wait=0.01), stateless(), least=1, most=4, workers=1)
    waiting = [followed.shell.submit(str(number)) for number in range(9)]
    followed.autoscaler.start()
    await followed.until(lambda: followed.pool.resized)
    assert followed.pool.resized[0][0] == 2
    assert followed.metrics.scalings[Reason.waiting].value == 1
    followed.autoscaler.close()
    await followed.shell.dispatcher.close(Cause.unregistered)
    assert {await cause_of(each) for each in waiting} == {Cause.unregistered}


async def test_workers_without_work_go_and_nothing_is_looked_at_without_workers() -> None:
    scaling = ScalingPolicy(down_after=0.02, idle_timeout=0.05)
    followed = Followed(scaling, stateless(), least=0, most=4, workers=2)
    followed.autoscaler.start()
    await followed.until(lambda: not followed.pool.wanted)
    assert followed.pool.resized[-1] == (0, ("w1", "w2"))
    assert followed.metrics.scalings[Reason.idle].value == 1
    await asyncio.sleep(0)
    looks = followed.pool.looks
    await asyncio.sleep(0.05)
    assert followed.pool.looks == looks
    followed.autoscaler.close()


async def test_only_workers_without_open_sequences_are_offered_to_go() -> None:
    scaling = ScalingPolicy(down_after=0.02)
    followed = Followed(scaling, stateful(), least=1, most=2, workers=2)
    worker = followed.shell.workers[0]
    step = followed.shell.submit("a", "s")
    followed.shell.answer(worker, step)
    followed.autoscaler.start()
    await followed.until(lambda: followed.pool.resized)
    assert followed.pool.resized == [(1, ("w2",))]
    followed.autoscaler.close()
    await followed.shell.dispatcher.close(Cause.unregistered)


async def test_workers_whose_sequences_can_move_are_offered_behind_those_without_sequences() -> None:
    followed = Followed(ScalingPolicy(down_after=0.02), stateful(), least=1, most=3, workers=0)
    followed.pool.wanted = followed.pool.ready_count = 3
    followed.shell.dispatcher.set_workers(3)
    for name in ("stays", "gives", "none"):
        worker = FakeWorker(name, followed.shell.dispatcher)
        worker.hands_over = name != "stays"
        followed.shell.dispatcher.worker_up(cast("Worker", worker))
        followed.shell.workers.append(worker)
    for worker in followed.shell.workers[:2]:
        followed.shell.answer(worker, followed.shell.submit("a", worker.id))
    followed.autoscaler.start()
    await followed.until(lambda: followed.pool.resized)
    assert followed.pool.resized == [(2, ("none", "gives"))]
    followed.autoscaler.close()
    await followed.shell.dispatcher.close(Cause.unregistered)


async def test_a_closed_autoscaler_starts_nothing() -> None:
    followed = Followed(ScalingPolicy(), stateless(), least=0, most=2, workers=0)
    followed.autoscaler.start()
    followed.autoscaler.close()
    waiting = followed.shell.submit("a")
    await asyncio.sleep(0.02)
    assert not followed.pool.resized
    await followed.shell.dispatcher.close(Cause.unregistered)
    assert await cause_of(waiting) is Cause.unregistered


async def test_it_goes_on_after_an_error(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    followed = Followed(ScalingPolicy(down_after=0.01), stateless(), least=1, most=2, workers=2)
    failing = iter([True])
    demand = followed.shell.dispatcher.scheduler.demand

    def demand_or_error(now: float) -> object:
        if next(failing, False):
            raise ZeroDivisionError
        return demand(now)

    monkeypatch.setattr(followed.shell.dispatcher.scheduler, "demand", demand_or_error)
    followed.autoscaler.start()
    await followed.until(lambda: followed.pool.resized)
    assert "ZeroDivisionError" in caplog.text
    followed.autoscaler.close()
