"""Registering and unregistering, with real files and everything but worker processes."""

from __future__ import annotations

import asyncio
import json
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from torchserve_py.archive.errors import ArchiveExists
from torchserve_py.archive.model_spec import ModelSpec, parse_model_specs
from torchserve_py.metrics.server_metrics import ServerMetrics
from torchserve_py.models.assembly import RegisterRequest
from torchserve_py.models.errors import BadParameter, UnregisterTimeout
from torchserve_py.models.registry import ModelRegistry
from torchserve_py.nvidia_smi import Gpu
from torchserve_py.settings import Settings
from torchserve_py.workers.listener import WorkerListener
from torchserve_py.workers.pool import WorkerPool
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


@pytest.fixture
def no_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scale(pool: WorkerPool, min_workers: int, max_workers: int) -> None:
        pool.min_workers, pool.max_workers = min_workers, max_workers

    monkeypatch.setattr(WorkerPool, "scale", scale)


def urls(registry: ModelRegistry) -> list[tuple[str, str, str]]:
    """Name, version and URL of all that is registered."""
    models = [model for name, _ in registry.models() for model in registry.versions(name)]
    return [(model.name, model.version, model.url) for model in models]


@pytest.mark.usefixtures("no_workers")
async def test_a_startup_model_that_cannot_be_loaded_is_a_warning(
    make_registry: MakeRegistry, store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_model(store / "good")
    (store / "empty").mkdir()
    (store / "broken.mar").write_text("no archive")
    registry = make_registry(load_models=tuple(parse_model_specs("gone.mar,broken.mar,empty,https://h/x.mar,a=good")))
    await registry.load_startup_models()
    assert urls(registry) == [("a", "1.0", "good")]
    warnings = [record.message.split(": ")[:2] for record in caplog.records if record.levelname == "WARNING"]
    assert sorted(warnings) == [
        ["Model broken.mar is not loaded", "Failed to save model"],
        ["Model empty is not loaded", "No handler is known for model empty"],
        ["Model gone.mar is not loaded", "Model not found at"],
        ["Model https://h/x.mar is not loaded", "Given URL https://h/x.mar does not match any allowed URL(s)"],
    ]


@pytest.mark.usefixtures("no_workers")
async def test_of_two_equal_startup_models_the_first_is_served(
    make_registry: MakeRegistry, store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in "bcd":
        write_model(store / name)
    registry = make_registry(load_models=tuple(parse_model_specs("m=c,m=b,m=d")))
    await registry.load_startup_models()
    assert urls(registry) == [("m", "1.0", "c")]
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == [
        "Model m=b is not loaded: Model version 1.0 is already registered for model m",
        "Model m=d is not loaded: Model version 1.0 is already registered for model m",
    ]


@pytest.mark.usefixtures("no_workers")
async def test_a_download_stays_when_the_server_stops_and_is_served_when_it_starts_again(
    make_registry: MakeRegistry, store: Path, tmp_path: Path
) -> None:
    with tarfile.open(tmp_path / "m.tar.gz", "w:gz") as archive:
        archive.add(write_model(tmp_path / "m"), "m")
    url = (tmp_path / "m.tar.gz").as_uri()
    settings = {"load_models": (ModelSpec("m", url),)}
    first = make_registry(**settings)
    await first.load_startup_models()
    await first.close()
    (tmp_path / "m.tar.gz").unlink()
    second = make_registry(**settings)
    await second.load_startup_models()
    assert urls(second) == [("m", "1.0", url)]
    with pytest.raises(ArchiveExists, match=r"^Model file already exists m[.]tar[.]gz$"):
        await second.register(without_workers(url, model_name="another"))


@pytest.mark.parametrize("manifest", [None, {"createdOn": "x", "archiverVersion": "x"}, {"createdOn": "x"}, {}])
async def test_a_manifest_that_does_not_tell_its_making_is_told_of(
    manifest: dict[str, Any] | None, make_registry: MakeRegistry, store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    missing = [] if manifest is None else [key for key in ("createdOn", "archiverVersion") if key not in manifest]
    write_model(store / "m", None if manifest is None else {**manifest, "model": {"handler": "handler.py"}})
    await make_registry().register(without_workers("m"))
    warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert [warning.split(" is missing in MAR-INF/MANIFEST.json")[0] for warning in warnings] == [
        f"m: {key}" for key in missing
    ]


async def test_signing_for_s3_is_refused_as_long_as_it_is_missing(make_registry: MakeRegistry) -> None:
    with pytest.raises(BadParameter, match="s3_sse_kms is not supported"):
        await make_registry().register(without_workers("https://h/x.mar", s3_sse_kms=True))
