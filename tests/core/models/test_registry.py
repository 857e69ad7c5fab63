"""Registering, with real files and everything but worker processes."""

import asyncio
import tarfile
from pathlib import Path
from typing import Any

import pytest
from tests.core.models.registries import MakeRegistry, urls, without_workers, write_model

from torchserve_py.base.settings.model_spec import ModelSpec, parse_model_specs
from torchserve_py.base.settings.schemas.versions import SavedModel
from torchserve_py.core.archive.cancellation import check_cancelled
from torchserve_py.core.archive.errors import ArchiveExists
from torchserve_py.core.archive.model_files import ModelFiles
from torchserve_py.core.archive.obtain import obtain
from torchserve_py.core.dispatch.dispatcher import Dispatcher
from torchserve_py.core.gpus.nvidia_smi import Gpu
from torchserve_py.core.models.assembly import Assembly
from torchserve_py.core.models.model import Model
from torchserve_py.core.models.startup_models import StartupModel
from torchserve_py.core.plans.plan import Plan, RegisterRequest
from torchserve_py.core.scheduling.scheduler import Scheduler
from torchserve_py.core.serving.errors import BadParameter, InvalidModel, WorkersFailed
from torchserve_py.core.serving.usage import GpuUsage
from torchserve_py.core.workers.listener import WorkerListener
from torchserve_py.core.workers.local_launcher import LocalLauncher
from torchserve_py.core.workers.pool import OVERTAKEN, WorkerPool
from torchserve_py.core.workers.process import WorkerProcess
from torchserve_py.core.workers.startup import WorkerFailed
from torchserve_py.endpoints.failures import failure_of
from torchserve_py.endpoints.model_index import ModelIndex
from torchserve_py.fleet.saved_models.snapshot_file import Snapshot

DEADLINE = 60.0


async def test_a_model_that_no_one_names_is_called_as_its_archive(make_registry: MakeRegistry, store: Path) -> None:
    write_model(store / "my-model", {"model": {"handler": "handler.py"}})
    result = await make_registry().register(without_workers("my-model"))
    assert (result.model_name, result.model_version) == ("my_model", "1.0")


async def test_a_model_for_the_cpp_backend_is_refused(make_registry: MakeRegistry, store: Path) -> None:
    write_model(store / "native", {"runtime": "LSP", "model": {"handler": "native:Handler"}})
    registry = make_registry()
    with pytest.raises(BadParameter, match=r"^Invalid RuntimeType value: LSP: the C\+\+ backend is not run here"):
        await registry.register(without_workers("native"))
    assert not registry.models()


@pytest.mark.parametrize(("contract", "file"), [("truss", "config.yaml"), ("mlserver", "model-settings.json")])
async def test_a_store_beneath_code_that_has_none_is_refused(
    make_registry: MakeRegistry, store: Path, contract: str, file: str
) -> None:
    folder = store / "m"
    folder.mkdir()
    (folder / file).write_text('{"implementation": "model.Mine"}' if contract == "mlserver" else "")
    (folder / "model-config.yaml").write_text(
        "sequenceBatching: true\nsequenceMaxIdleMSec: 60000\nhandler: {cache: {store: file, path: sequences.db}}\n"
    )
    registry = make_registry()
    with pytest.raises(InvalidModel) as refused:
        await registry.register(without_workers("m"))
    for key in ("sequenceBatching is true", "handler.cache is set"):
        assert f"{key} but the model's contract is {contract}: " in str(refused.value)
    assert not registry.models()


async def test_describe_shows_what_a_workers_own_gpu_does(
    make_registry: MakeRegistry, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def no_process(*_: object) -> WorkerProcess:
        raise OSError("not in this test")

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monkeypatch.setattr(LocalLauncher, "start", no_process)
    monkeypatch.setattr(WorkerListener, "path", Path("no socket"))
    registry = make_registry(gpus=[Gpu(0, "GPU-a"), Gpu(1, "GPU-b")])
    write_model(store / "m")
    await registry.register(RegisterRequest(url="m", initial_workers=1, synchronous=False))
    model = registry.get("m")
    async with asyncio.timeout(DEADLINE):
        while not any(worker.gpu for worker in registry.status(model).workers):
            await asyncio.sleep(0)
    assert registry.status(model).workers[0].gpu_usage == "failed to obtained gpu usage"
    registry.usage.gpus = {index: GpuUsage(index, 50, 25, 10, 40) for index in (0, 1)}
    assert registry.status(model).workers[0].gpu_usage.startswith("gpuId::1 utilization.gpu [%]::50 %")
    await registry.close()


@pytest.mark.usefixtures("no_workers")
@pytest.mark.parametrize(
    ("name", "problem"), [("a/b", "part of a URL"), ("a\nb", "part of a URL"), ("stats", "is taken")]
)
async def test_a_name_that_no_url_can_hold_is_refused(
    make_registry: MakeRegistry, store: Path, name: str, problem: str
) -> None:
    write_model(store / "good")
    with pytest.raises(InvalidModel, match=problem):
        await make_registry().register(RegisterRequest(url="good", model_name=name))


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
async def test_an_error_of_the_server_keeps_only_one_startup_model_from_being_served(
    make_registry: MakeRegistry, store: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail_at_times(url: str, **more: Any) -> ModelFiles:
        if url == "bad":
            raise ZeroDivisionError
        return obtain(url, **more)

    monkeypatch.setattr("torchserve_py.core.models.assembly.obtain", fail_at_times)
    write_model(store / "good")
    registry = make_registry(load_models=tuple(parse_model_specs("bad,good")))
    await registry.load_startup_models()
    assert urls(registry) == [("good", "1.0", "good")]
    assert registry.not_loaded == [ModelSpec(None, "bad")]
    (error,) = (record for record in caplog.records if record.levelname == "ERROR")
    assert "Model bad is not loaded" in error.message
    assert error.exc_info is not None


@pytest.mark.usefixtures("no_workers")
async def test_a_startup_model_that_cannot_be_wired_is_a_warning(
    make_registry: MakeRegistry, store: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    build = Assembly.build

    def refuse_at_times(self: Assembly, plan: Plan, *more: Any) -> Model:
        if plan.name == "bad":
            raise InvalidModel("The journal of the model cannot be written")
        return build(self, plan, *more)

    monkeypatch.setattr(Assembly, "build", refuse_at_times)
    write_model(store / "good")
    registry = make_registry(load_models=tuple(parse_model_specs("bad=good,good")))
    await registry.load_startup_models()
    assert urls(registry) == [("good", "1.0", "good")]
    assert registry.not_loaded == [ModelSpec("bad", "good")]
    assert "Model bad=good is not loaded: The journal of the model cannot be written" in caplog.text


async def test_a_start_that_is_cut_short_leaves_no_unpacked_files(
    make_registry: MakeRegistry, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hang_at_times(url: str, **more: Any) -> ModelFiles:
        while url == "slow":
            check_cancelled()
        return obtain(url, **more)

    monkeypatch.setattr("torchserve_py.core.models.assembly.obtain", hang_at_times)
    with tarfile.open(store / "m.tar.gz", "w:gz") as archive:
        archive.add(write_model(tmp_path / "m"), "m")
    registry = make_registry(load_models=tuple(parse_model_specs("slow,m.tar.gz")))
    prepared = asyncio.Event()
    prepare = registry._prepare_at_startup

    async def tell(wanted: StartupModel) -> Plan | None:
        plan = await prepare(wanted)
        prepared.set()
        return plan

    monkeypatch.setattr(registry, "_prepare_at_startup", tell)
    loading = asyncio.create_task(registry.load_startup_models())
    async with asyncio.timeout(DEADLINE):
        await prepared.wait()
    assert list((tmp_path / "models").iterdir())
    loading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await loading
    assert list((tmp_path / "models").iterdir()) == []


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


@pytest.mark.usefixtures("no_workers")
async def test_a_startup_model_that_failed_is_remembered_until_it_is_registered(
    make_registry: MakeRegistry, store: Path
) -> None:
    registry = make_registry(load_models=tuple(parse_model_specs("gone,a=gone,m=good,m=good2")))
    write_model(store / "good")
    write_model(store / "good2")  # a second m, which is no failure
    await registry.load_startup_models()
    assert registry.not_loaded == [ModelSpec(None, "gone"), ModelSpec("a", "gone")]
    assert not registry.startup_ready()
    write_model(store / "gone")
    await registry.register(without_workers("gone"))
    assert registry.not_loaded == [ModelSpec("a", "gone")]
    await registry.register(without_workers("good", model_name="a"))
    assert registry.not_loaded == []


@pytest.mark.usefixtures("no_workers")
async def test_a_snapshot_says_which_models_are_registered_and_how(make_registry: MakeRegistry, store: Path) -> None:
    config = "minWorkers: 7\nmaxWorkers: 8\nbatchSize: 9\nmaxBatchDelay: 10\nresponseTimeout: 11\nstartupTimeout: 12\n"
    for version in ("1.0", "2.0"):
        folder = write_model(store / version, {"model": {"modelVersion": version, "configFile": "model-config.yaml"}})
        (folder / "model-config.yaml").write_text(config)
    first = SavedModel(
        name="m",
        version="1.0",
        location="1.0",
        min_workers=0,
        max_workers=2,
        batch_size=3,
        max_batch_delay=4,
        response_timeout=5,
        startup_timeout=6,
        runtime="python",
        weight=0,
        handler="handler.py",
    )
    changes = {"version": "2.0", "location": "2.0", "default": True, "chosen": True, "min_workers": 1, "weight": 30}
    second = first.model_copy(update=changes)
    snapshot = Snapshot("", 0, (first, second), (ModelSpec("again", "again"),))
    write_model(store / "again")
    registry = make_registry(model_snapshot=snapshot, load_models=tuple(parse_model_specs("other")))
    await registry.load_startup_models()
    await asyncio.sleep(0)  # what was started to scale the last one
    saved = registry.saved_models()
    assert [model for model in saved if model.name == "m"] == [first, second]
    assert [model.name for model in saved] == ["m", "m", "again"]
    assert registry.get("m").version == "2.0"


async def test_a_snapshot_has_no_models_of_workflows(make_registry: MakeRegistry, store: Path) -> None:
    write_model(store / "m")
    registry = make_registry()
    await registry.register(RegisterRequest(url="m", initial_workers=0))
    await registry.register(RegisterRequest(url="m", model_name="w__m", initial_workers=0, in_workflow=True))
    assert [model.name for model in registry.models()] == ["m", "w__m"]
    assert [model.name for model in registry.saved_models()] == ["m"]


@pytest.mark.usefixtures("no_workers")
async def test_every_change_is_told(make_registry: MakeRegistry, store: Path) -> None:
    registry = make_registry()
    seen: list[list[tuple[str, bool, int | None]]] = []
    registry.on_change.append(
        lambda: seen.append([(m.version, m.default, m.min_workers) for m in registry.saved_models()])
    )
    for version in ("1", "2"):
        write_model(store / version, {"model": {"modelVersion": version, "handler": "handler.py"}})
        await registry.register(without_workers(version, model_name="m"))
    assert seen[-1] == [("1", True, 0), ("2", False, 0)]
    await registry.scale("m", "2", 3, 3, synchronous=True)
    assert seen[-1] == [("1", True, 0), ("2", False, 3)]
    registry.set_default("m", "2")
    assert seen[-1] == [("1", False, 0), ("2", True, 3)]
    await registry.unregister("m", "1")
    assert seen[-1] == [("2", True, 3)]
    await registry.register(RegisterRequest(url="1", model_name="m", initial_workers=1))
    assert seen[-1] == [("2", True, 3), ("1", False, 1)]


@pytest.mark.usefixtures("no_workers")
async def test_versions_that_stay_share_the_requests_of_one_that_goes(
    make_registry: MakeRegistry, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = make_registry()
    for version in "1234":
        write_model(store / version, {"model": {"modelVersion": version, "handler": "handler.py"}})
        await registry.register(without_workers(version, model_name="m"))
    registry.set_weights("m", {"1": 30, "2": 50, "3": 20})
    with monkeypatch.context() as patched:  # it runs its open sequences to their end
        patched.setattr(Scheduler, "open_sequences", 1)
        leaving = asyncio.create_task(registry.unregister("m", "2"))
        await asyncio.sleep(0)
        assert registry.weights("m") == {"1": 60, "3": 40}
    await leaving
    assert {each.version: each.weight for each in registry.saved_models()} == {"1": 60, "3": 40, "4": 0}
    registry.check_weights("m", registry.weights("m"))
    await registry.unregister("m", "4")
    assert registry.weights("m") == {"1": 60, "3": 40}
    await registry.unload("m", "1")
    assert registry.weights("m") == {}
    assert {each.version: each.weight for each in registry.saved_models()} == {"3": 0}


@pytest.mark.usefixtures("no_workers")
async def test_new_weights_and_a_new_default_version_keep_running_sequences_where_they_are(
    make_registry: MakeRegistry, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = make_registry()
    for version in ("1", "2"):
        write_model(store / version, {"model": {"modelVersion": version, "handler": "handler.py"}})
        await registry.register(without_workers(version, model_name="m"))
    kept: list[Dispatcher] = []

    def keep_sequences(dispatcher: Dispatcher) -> None:
        kept.append(dispatcher)

    monkeypatch.setattr(Dispatcher, "keep_sequences", keep_sequences)
    registry.set_weights("m", {"1": 90, "2": 10})
    assert len(kept) == 2
    registry.set_default("m", "2")
    assert len(kept) == 4


@pytest.mark.usefixtures("no_workers")
async def test_an_index_of_models_is_made_again_only_when_another_version_is_the_default(
    make_registry: MakeRegistry, store: Path
) -> None:
    registry = make_registry()
    made: list[list[str]] = []
    index = ModelIndex(registry, lambda models: made.append([f"{each.name} {each.version}" for each in models]))
    for version in ("1", "2"):
        write_model(store / version, {"model": {"modelVersion": version, "handler": "handler.py"}})
        await registry.register(without_workers(version, model_name="m"))
        index.get()
        index.get()
    registry.set_default("m", "2")
    index.get()
    await registry.unregister("m", "1")
    index.get()
    await registry.unregister("m", "2")
    index.get()
    index.get()
    assert made == [[], ["m 1"], ["m 2"], []]


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


@pytest.mark.parametrize("method", ["register", "load"])
async def test_a_model_that_cannot_be_built_leaves_no_files(
    make_registry: MakeRegistry, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    with tarfile.open(store / "m.tar.gz", "w:gz") as archive:
        archive.add(write_model(tmp_path / "m"), "m")

    def fail(*_: Any) -> None:
        raise RuntimeError("this name is no label of a metric")

    monkeypatch.setattr(Assembly, "build", fail)
    registry = make_registry()
    call = registry.register(without_workers("m.tar.gz"))
    if method == "load":
        call.close()
        call = registry.load(without_workers("m.tar.gz"))  # type: ignore[assignment]
    with pytest.raises(RuntimeError, match="no label"):
        await call
    assert list((tmp_path / "models").iterdir()) == []


async def test_a_warm_up_needs_its_files(make_registry: MakeRegistry, store: Path) -> None:
    folder = write_model(store / "m")
    (folder / "there.json").write_text("{}")
    (folder / "model-config.yaml").write_text("warmup: [{file: there.json}, {file: samples/cat.jpg}]\n")
    with pytest.raises(InvalidModel, match=r"model-config.yaml: warmup names files .* there: samples/cat.jpg$"):
        await make_registry().register(without_workers("m"))


async def test_a_model_that_another_call_scales_while_it_is_registered_stays(
    make_registry: MakeRegistry, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def overtaken(*_: object) -> None:
        raise WorkerFailed(OVERTAKEN, "another call has changed the number of workers meanwhile")

    monkeypatch.setattr(WorkerPool, "scale", overtaken)
    write_model(store / "m")
    registry = make_registry()
    result = await registry.register(RegisterRequest(url="m", initial_workers=2))
    assert (result.workers_started, result.workers_wanted) == (0, 2)
    assert registry.find("m").name == "m"
    with pytest.raises(WorkersFailed) as failed:
        await registry.scale("m", None, 3, 3, synchronous=True)
    assert (failure_of(failed.value).status, failure_of(failed.value).type) == (409, "ConflictStatusException")
