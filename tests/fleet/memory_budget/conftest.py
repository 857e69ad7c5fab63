"""Budgets without processes."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tests.fleet.memory_budget.shared_budget import BudgetOf

from torchserve_py.fleet.memory_budget import memory_room as module
from torchserve_py.fleet.memory_budget.worker_memory import WorkerMemory


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., BudgetOf]:
    def make_budget(**sizes: int) -> BudgetOf:
        budget = BudgetOf(tmp_path, **sizes)

        def measured(
            pids: Sequence[int], loaded: Sequence[int], *, gpus: bool
        ) -> tuple[dict[int, WorkerMemory], dict[int, int]]:
            budget.settled |= budget.loaded.intersection(pids)
            budget.loaded.update(loaded)
            found = {pid: budget.memory.get(pid, 1) for pid in pids}
            return {pid: WorkerMemory(size, size) for pid, size in found.items()}, found if gpus else {}

        monkeypatch.setattr(module, "_measured", measured)
        return budget

    monkeypatch.setattr(module, "_LEAST_PAUSE", 0.001)
    monkeypatch.setattr(module, "_SOON", 0.001)
    monkeypatch.setattr(module, "_LATER", 0.001)
    monkeypatch.setattr("torchserve_py.fleet.memory_budget.budgeted_model._SHORTEST_STAY", 0.0)
    return make_budget
