"""Who gets room: workers and models without processes, which have as much memory as a test says."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from tests.unit.dispatch.shell import FakeWorker, Shell, cause_of, durable, stateful, stateless

from torchserve_py.features.memory_budget import memory_room as module
from torchserve_py.features.memory_budget.budget_keys import BudgetKeys
from torchserve_py.features.memory_budget.budget_metrics import BudgetMetrics
from torchserve_py.features.memory_budget.memory_room import MemoryRoom
from torchserve_py.features.memory_budget.worker_memory import Memory
from torchserve_py.metrics.server_metrics import ServerMetrics
from torchserve_py.models.model import Model
from torchserve_py.scheduling.demand import WorkerCounts
from torchserve_py.scheduling.effects import Cause
from torchserve_py.scheduling.policy import Policy
from torchserve_py.serving.usage import Usage
from torchserve_py.settings.schemas.plugin_keys import PluginKeys
from torchserve_py.workers.startup import WorkerFailed

MB = 1_000_000


class RoomWorker:
    """A worker that waits for room, loads, and ends when it is told to."""

    label = "W-1-m_1.0"

    def __init__(self, pid: int, gpu_index: int | None) -> None:
        self.pid, self.gpu_index = pid, gpu_index
        self.ready = False
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()


class FakePool:
    """The pool of one model with one worker at most."""

    on_demand, max_workers = True, 1

    def __init__(self, min_workers: int) -> None:
        self.min_workers = min_workers
        self.take_room: Callable[[RoomWorker], asyncio.Future[None]]
        self.worker: RoomWorker | None = None
        self.resized: list[tuple[int, str]] = []

    @property
    def ready_count(self) -> int:
        return int(self.worker is not None and self.worker.ready)

    @property
    def counts(self) -> WorkerCounts:
        return WorkerCounts(int(self.worker is not None), self.ready_count, False, self.min_workers, 1)

    def resize(self, count: int, movable: Sequence[str], why: str) -> None:
        self.resized.append((count, why))


class FakeModel(SimpleNamespace):
    """A model, which is only equal to itself."""

    __hash__ = object.__hash__
    __eq__ = object.__eq__


class BudgetOf:
    """A budget, and models that share it."""

    def __init__(self, folder: Path, *, host: int | None = None, each_gpu: int | None = None) -> None:
        self.usage = Usage()
        self.room = MemoryRoom(host, each_gpu, BudgetMetrics(ServerMetrics()), self.usage)
        self.memory: dict[int, int] = {}
        #: The workers that were measured as loaded, and those that were measured again since.
        self.loaded: set[int] = set()
        self.settled: set[int] = set()
        self._folder = folder
        self._pids = iter(range(1, 100))

    def model(self, name: str, policy: Policy | None = None, min_workers: int = 0, **keys: object) -> "Sharing":
        return Sharing(self, name, policy or stateless(), min_workers, keys, self._folder)

    def next_pid(self) -> int:
        return next(self._pids)


class Sharing:
    """A model that shares a budget."""

    def __init__(
        self, budget: BudgetOf, name: str, policy: Policy, least: int, keys: dict[str, object], folder: Path
    ) -> None:
        self.budget, self.shell, self.pool = budget, Shell(policy, 0), FakePool(least)
        self.shell.dispatcher.set_workers(1)
        self.up: FakeWorker | None = None
        self.scaled = asyncio.Event()
        config = SimpleNamespace(
            plugin_keys=PluginKeys((BudgetKeys.model_validate(keys),)), parallel_level=0, startup_timeout=60
        )
        self.model = FakeModel(
            **{"name": name, "version": "1.0", "config": config, "pool": self.pool, "scale": self._scale},
            **{"dispatcher": self.shell.dispatcher, "files": SimpleNamespace(model_dir=folder)},
        )
        budget.room.add(cast("Model", self.model))

    async def _scale(self, *numbers: int) -> None:
        self.scaled.set()

    def start(self, gpu_index: int | None = None) -> "asyncio.Task[None]":
        """Ask for room for a worker."""
        self.pool.worker = RoomWorker(self.budget.next_pid(), gpu_index)
        return asyncio.ensure_future(self.pool.take_room(self.pool.worker))

    async def load(self, size: int, gpu_index: int | None = None) -> None:
        """Load the model, whose worker takes so much."""
        async with asyncio.timeout(60):
            await self.start(gpu_index)
            assert self.pool.worker is not None
            self.budget.memory[self.pool.worker.pid] = size
            self.up = self.shell.add_worker("w1")
            self.pool.worker.ready = True
            pid = self.pool.worker.pid
            await until(lambda: pid in self.budget.settled)

    def end(self) -> None:
        """The worker is gone."""
        assert self.pool.worker is not None
        if self.up is not None:
            self.shell.lose(self.up)
        self.pool.worker.ended.set_result("is over")

    @property
    def was_unloaded(self) -> bool:
        return any(count == 0 for count, _ in self.pool.resized)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.001)


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., BudgetOf]:
    def make_budget(**sizes: int) -> BudgetOf:
        budget = BudgetOf(tmp_path, **sizes)

        def measured(
            pids: Sequence[int], loaded: Sequence[int], *, gpus: bool
        ) -> tuple[dict[int, Memory], dict[int, int]]:
            budget.settled |= budget.loaded.intersection(pids)
            budget.loaded.update(loaded)
            found = {pid: budget.memory.get(pid, 1) for pid in pids}
            return {pid: Memory(size, size) for pid, size in found.items()}, found if gpus else {}

        monkeypatch.setattr(module, "_measured", measured)
        return budget

    monkeypatch.setattr(module, "_LEAST_PAUSE", 0.001)
    monkeypatch.setattr(module, "_SOON", 0.001)
    monkeypatch.setattr(module, "_LATER", 0.001)
    monkeypatch.setattr("torchserve_py.features.memory_budget.budgeted_model._SHORTEST_STAY", 0.0)
    return make_budget


async def test_an_idle_model_makes_room(make: Callable[..., BudgetOf]) -> None:
    budget = make(host=100 * MB)
    first, second = budget.model("first", memory=70 * MB), budget.model("second", memory=50 * MB)
    await first.load(70 * MB)
    assert budget.usage.budgets["host"] == (70 * MB, 100 * MB)
    waiting = second.start()
    second_job = second.shell.submit("x")
    await until(lambda: first.was_unloaded)
    assert first.pool.resized[0] == (0, "room for model second 1.0")
    assert not waiting.done()  # the memory is not free before the process is gone
    first.end()
    await asyncio.wait_for(waiting, 60)
    second_job.cancel()


@pytest.mark.parametrize(
    ("policy", "keys"),
    [
        pytest.param(stateless(), {"pin": True}, id="pinned"),
        pytest.param(stateful(), {}, id="an open sequence is only in its memory"),
    ],
)
async def test_a_model_that_must_not_go_stays(
    make: Callable[..., BudgetOf], policy: Policy, keys: dict[str, object]
) -> None:
    budget = make(host=100 * MB)
    stays, goes = budget.model("stays", policy, memory=50 * MB, **keys), budget.model("goes", memory=40 * MB)
    await stays.load(50 * MB)
    assert stays.up is not None
    stays.shell.answer(stays.up, stays.shell.submit("x", "s"))
    await goes.load(40 * MB)
    other = budget.model("other", memory=45 * MB)
    waiting = other.start()
    job = other.shell.submit("x")
    await until(lambda: goes.was_unloaded)
    goes.end()
    await asyncio.wait_for(waiting, 60)
    assert not stays.was_unloaded
    job.cancel()


async def test_a_model_whose_sequences_are_stored_may_go(make: Callable[..., BudgetOf]) -> None:
    budget = make(host=100 * MB)
    stored, other = budget.model("stored", durable(), memory=70 * MB), budget.model("other", memory=50 * MB)
    await stored.load(70 * MB)
    assert stored.up is not None
    stored.shell.answer(stored.up, stored.shell.submit("x", "s"))
    waiting = other.start()
    job = other.shell.submit("x")
    await until(lambda: stored.was_unloaded)
    waiting.cancel()
    job.cancel()


async def test_each_gpu_has_its_budget(make: Callable[..., BudgetOf]) -> None:
    budget = make(each_gpu=100 * MB)
    first, beside, same = (budget.model(name, memory=70 * MB) for name in ("first", "beside", "same"))
    await first.load(70 * MB, gpu_index=0)
    await beside.load(70 * MB, gpu_index=1)
    assert set(budget.usage.budgets) == {"gpu 0", "gpu 1"}
    waiting = same.start(gpu_index=1)
    job = same.shell.submit("x")
    await until(lambda: beside.was_unloaded)
    assert not first.was_unloaded
    waiting.cancel()
    job.cancel()


async def test_what_was_measured_counts_at_the_next_load(make: Callable[..., BudgetOf]) -> None:
    budget = make(host=100 * MB)
    model, other = budget.model("m", memory=10 * MB), budget.model("other", memory=40 * MB)
    await model.load(80 * MB)
    model.end()
    await other.load(40 * MB)
    model.start()
    job = model.shell.submit("x")
    await until(lambda: other.was_unloaded)
    job.cancel()


async def test_a_model_that_took_more_than_the_budget_to_load_does_not_start_again(
    make: Callable[..., BudgetOf],
) -> None:
    budget = make(host=100 * MB)
    model = budget.model("m", memory=10 * MB)
    await model.load(120 * MB)
    await until(lambda: model.was_unloaded)
    model.end()
    with pytest.raises(WorkerFailed, match="it takes 120 MB, and memory_budget is 100 MB") as refused:
        await model.start()
    assert refused.value.lacks_memory


async def test_a_request_is_refused_where_there_never_will_be_room(make: Callable[..., BudgetOf]) -> None:
    budget = make(host=100 * MB)
    pinned, other = budget.model("pinned", pin=True, memory=70 * MB), budget.model("other", memory=50 * MB)
    await pinned.load(70 * MB)
    assert await cause_of(other.shell.submit("x")) is Cause.not_loaded
    assert not other.scaled.is_set()


async def test_a_request_waits_behind_others_if_there_is_room_for_one_of_them_at_a_time(
    make: Callable[..., BudgetOf],
) -> None:
    budget = make(host=100 * MB)
    fixed, first = budget.model("fixed", min_workers=1, memory=50 * MB), budget.model("first", memory=40 * MB)
    second, third = budget.model("second", memory=40 * MB), budget.model("third", memory=40 * MB)
    await fixed.load(50 * MB)
    await first.load(40 * MB)
    working = first.shell.submit("x")
    waiting = second.start()
    jobs = [second.shell.submit("x"), third.shell.submit("x")]
    assert [each.shell.dispatcher.scheduler.queued for each in (second, third)] == [1, 1]
    for job in (working, *jobs):
        job.cancel()
    waiting.cancel()


async def test_a_worker_that_nobody_waits_for_any_more_is_taken_away(
    make: Callable[..., BudgetOf], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_GRACE", 0.01)
    budget = make(host=100 * MB)
    busy, other = budget.model("busy", memory=70 * MB), budget.model("other", memory=50 * MB)
    await busy.load(70 * MB)
    working = busy.shell.submit("x")
    waiting = other.start()
    await until(lambda: other.pool.resized)
    assert other.pool.resized == [(0, "no request waits for it any more")]
    assert not busy.was_unloaded
    waiting.cancel()
    working.cancel()


async def test_a_model_with_workers_all_the_time_is_not_unloaded(make: Callable[..., BudgetOf]) -> None:
    budget = make(host=100 * MB)
    fixed, other = budget.model("fixed", min_workers=1, memory=70 * MB), budget.model("other", memory=50 * MB)
    await fixed.load(70 * MB)
    assert await cause_of(other.shell.submit("x")) is Cause.not_loaded
    assert not fixed.was_unloaded
