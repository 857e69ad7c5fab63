"""Registering and unregistering, with real files and everything but worker processes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from torchserve_py.metrics.server_metrics import ServerMetrics
from torchserve_py.models.assembly import RegisterRequest
from torchserve_py.models.errors import BadParameter, UnregisterTimeout
from torchserve_py.models.registry import ModelRegistry
from torchserve_py.nvidia_smi import Gpu
from torchserve_py.settings import Settings
from torchserve_py.workers.listener import WorkerListener
from torchserve_py.workers.process import WorkerProcess
from torchserve_py.workers.supervisor import Supervisor

DEADLINE = 30.0

MakeRegistry = Callable[..., ModelRegistry]


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
        monkeypatch.setattr("torchserve_py.models.assembly.list_gpus", lambda: gpus)
        values = Settings(model_store=store, temp_dir=tmp_path, **settings)
        return ModelRegistry(values, WorkerListener(tmp_path), ServerMetrics())

    return make


def write_model(folder: Path, manifest: dict[str, Any] | None = None) -> Path:
    """Write a model folder, a packed one where there is a manifest."""
    folder.mkdir()
    (folder / "handler.py").write_text("def handle(data, context):\n    return data\n")
    if manifest is not None:
        (folder / "MAR-INF").mkdir()
        (folder / "MAR-INF" / "MANIFEST.json").write_text(json.dumps(manifest))
    return folder


def without_workers(url: str, **more: Any) -> RegisterRequest:
    return RegisterRequest(url=url, initial_workers=0, **more)


async def test_a_model_that_no_one_names_is_called_as_its_archive(make_registry: MakeRegistry, store: Path) -> None:
    write_model(store / "my-model", {"model": {"handler": "handler.py"}})
    result = await make_registry().register(without_workers("my-model"))
    assert (result.model_name, result.model_version) == ("my_model", "1.0")


async def test_a_model_for_the_cpp_backend_is_refused(make_registry: MakeRegistry, store: Path) -> None:
    write_model(store / "native", {"runtime": "LSP", "model": {"handler": "native:Handler"}})
    registry = make_registry()
    with pytest.raises(BadParameter, match=r"^Invalid RuntimeType value: LSP: the C\+\+ backend is not run here"):
        await registry.register(without_workers("native"))
    assert registry.models() == []


async def test_describe_shows_what_a_workers_own_gpu_does(
    make_registry: MakeRegistry, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def no_process(*_: object) -> WorkerProcess:
        raise OSError("not in this test")

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monkeypatch.setattr(WorkerProcess, "launch", no_process)
    monkeypatch.setattr(WorkerListener, "path", Path("no socket"))
    registry = make_registry(gpus=[Gpu(0, "GPU-a"), Gpu(1, "GPU-b")])
    write_model(store / "m")
    await registry.register(RegisterRequest(url="m", initial_workers=1, synchronous=False))
    model = registry.get("m")
    async with asyncio.timeout(DEADLINE):
        while not any(worker.gpu for worker in model.workers):
            await asyncio.sleep(0)
    assert model.workers[0].gpu_usage == "failed to obtained gpu usage"
    registry.usage.gpus = {0: "of another", 1: "gpuId::1 …"}
    assert model.workers[0].gpu_usage == "gpuId::1 …"
    await registry.close()


async def test_unregistering_tells_of_a_worker_that_cannot_be_killed(
    make_registry: MakeRegistry, store: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    never = asyncio.Event()

    async def hang(*_: object) -> None:
        await never.wait()

    monkeypatch.setattr(Supervisor, "_run", hang)
    monkeypatch.setattr("torchserve_py.workers.pool._KILL_LIMIT", 0)
    registry = make_registry(unregister_model_timeout=0)
    write_model(store / "m")
    await registry.register(RegisterRequest(url="m", initial_workers=1, synchronous=False))
    while not registry.get("m").workers:
        await asyncio.sleep(0)
    with pytest.raises(UnregisterTimeout, match=r"^Timed out while cleaning resources: m$"):
        await registry.unregister("m")
    assert "does not end, not even by SIGKILL" in caplog.text
    assert registry.models() == []
    never.set()
