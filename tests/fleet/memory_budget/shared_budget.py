"""A budget that models share which have no processes: workers have as much memory as a test says."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from tests.core.dispatch.shell import FakeWorker, Shell, stateless

from torchserve_py.base.metrics.server_metrics import ServerMetrics
from torchserve_py.base.settings.schemas.plugin_keys import PluginKeys
from torchserve_py.core.models.model import Model
from torchserve_py.core.scheduling.demand import WorkerCounts
from torchserve_py.core.scheduling.policy import Policy
from torchserve_py.core.serving.usage import Usage
from torchserve_py.core.workers.worker import Worker
from torchserve_py.fleet.memory_budget.budget_keys import BudgetKeys
from torchserve_py.fleet.memory_budget.budget_metrics import BudgetMetrics
from torchserve_py.fleet.memory_budget.memory_room import MemoryRoom

MB = 1_000_000


class RoomWorker(FakeWorker):
    """A worker that waits for room, loads, answers and ends when it is told to.

    ``asked`` is the question that it has not answered yet, ``killed`` why it was ended.
    """

    label = "W-1-m_1.0"
    pids = ()

    def __init__(self, shell: Shell, pid: int, gpu_index: int | None) -> None:
        super().__init__("w1", shell.dispatcher)
        self.pid, self.gpu_index = pid, gpu_index
        self.ready = False
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.asked = self.killed = ""
        self._answer: asyncio.Future[float | str | None] = asyncio.get_running_loop().create_future()

    async def ask(self, kind: str, limit: float) -> float | str | None:
        self.asked, self._answer = kind, asyncio.get_running_loop().create_future()
        return await self._answer

    def answers(self, value: float | str | None) -> None:
        """Answer the question."""
        self.asked = ""
        self._answer.set_result(value)

    def kill(self, reason: str) -> None:
        self.killed = reason


class FakePool:
    """The pool of one model with one worker at most."""

    on_demand, max_workers = True, 1

    def __init__(self, min_workers: int) -> None:
        self.min_workers = min_workers
        self.take_room: Callable[[RoomWorker], asyncio.Future[int | None]]
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

    def model(
        self, name: str, policy: Policy | None = None, min_workers: int = 0, *, sleeps: bool = False, **keys: object
    ) -> "Sharing":
        return Sharing(self, name, policy or stateless(), min_workers, keys, self._folder, sleeps=sleeps)

    def next_pid(self) -> int:
        return next(self._pids)


class Sharing:
    """A model that shares a budget."""

    def __init__(
        self,
        budget: BudgetOf,
        name: str,
        policy: Policy,
        least: int,
        keys: dict[str, object],
        folder: Path,
        *,
        sleeps: bool,
    ) -> None:
        self.budget, self.shell, self.pool = budget, Shell(policy, 0), FakePool(least)
        self.shell.dispatcher.set_workers(1)
        self.up: RoomWorker | None = None
        self.scaled = asyncio.Event()
        own = BudgetKeys.model_validate({**keys, "sleep": sleeps})
        config = SimpleNamespace(plugin_keys=PluginKeys((own,)), parallel_level=0, startup_timeout=60)
        self.model = FakeModel(
            **{"name": name, "version": "1.0", "config": config, "pool": self.pool, "scale": self._scale},
            **{"dispatcher": self.shell.dispatcher, "files": SimpleNamespace(model_dir=folder)},
        )
        budget.room.add(cast("Model", self.model))

    async def _scale(self, *numbers: int) -> None:
        self.scaled.set()

    def start(self, gpu_index: int | None = None) -> "asyncio.Task[int | None]":
        """Ask for room for a worker."""
        self.pool.worker = RoomWorker(self.shell, self.budget.next_pid(), gpu_index)
        return asyncio.ensure_future(self.pool.take_room(self.pool.worker))

    async def load(self, size: int, gpu_index: int | None = None) -> None:
        """Load the model, whose worker takes so much."""
        async with asyncio.timeout(60):
            await self.start(gpu_index)
            assert self.pool.worker is not None
            self.budget.memory[self.pool.worker.pid] = size
            self.pool.worker.ready = True
            self.up = self.pool.worker
            self.shell.dispatcher.worker_up(cast("Worker", self.up))
            pid = self.pool.worker.pid
            await until(lambda: pid in self.budget.settled)

    def end(self) -> None:
        """The worker is gone."""
        assert self.pool.worker is not None
        if self.up is not None:
            self.up.ready = False
            self.shell.lose(self.up)
        self.pool.worker.ended.set_result("is over")

    @property
    def was_unloaded(self) -> bool:
        return any(count == 0 for count, _ in self.pool.resized)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.001)
