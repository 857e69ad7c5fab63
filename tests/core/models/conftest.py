"""Registries, with real files and everything but worker processes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.core.models.registries import MakeRegistry
from tests.core.workers.conftest import pytest_asyncio_loop_factories

from torchserve_py.base.metrics.server_metrics import ServerMetrics
from torchserve_py.base.settings.server_settings import server_settings
from torchserve_py.core.gpus.nvidia_smi import Gpu
from torchserve_py.core.models.registry import ModelRegistry
from torchserve_py.core.workers.listener import WorkerListener
from torchserve_py.core.workers.pool import WorkerPool
from torchserve_py.server import FURTHER_PARTS

__all__ = ["pytest_asyncio_loop_factories"]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """An empty model store."""
    folder = tmp_path / "store"
    folder.mkdir()
    return folder


@pytest.fixture
def make_registry(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeRegistry:
    """Make a registry, on a host without GPUs if none are given: `make_registry(enable_model_api=True)`."""

    def make(gpus: Sequence[Gpu] = (), **settings: Any) -> ModelRegistry:
        monkeypatch.setattr("torchserve_py.core.gpus.visible_devices.list_gpus", lambda: gpus)
        values = server_settings().model_construct(model_store=store, temp_dir=tmp_path, **settings)
        return ModelRegistry(values, WorkerListener(tmp_path), ServerMetrics(), FURTHER_PARTS)

    return make


@pytest.fixture
def no_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that are wanted and never come."""

    async def scale(pool: WorkerPool, min_workers: int, max_workers: int, count: int | None = None) -> None:
        pool.min_workers, pool.max_workers = min_workers, max_workers

    monkeypatch.setattr(WorkerPool, "scale", scale)
