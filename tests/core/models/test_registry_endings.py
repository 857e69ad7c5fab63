"""How models leave the registry, and how it closes."""

import asyncio
import tarfile
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.core.models.registries import MakeRegistry, without_workers, write_model

from torchserve_py.base.causes import Cause
from torchserve_py.core.archive.cancellation import CANCELLED, check_cancelled
from torchserve_py.core.archive.model_files import ModelFiles
from torchserve_py.core.archive.obtain import obtain
from torchserve_py.core.jobs.call import Call
from torchserve_py.core.jobs.parts import JobFailed
from torchserve_py.core.models.registry import ModelRegistry
from torchserve_py.core.serving.errors import ModelNotFound, ShuttingDown, UnregisterTimeout
from torchserve_py.core.serving.serving import RegisterRequest
from torchserve_py.core.workers.listener import WorkerListener
from torchserve_py.core.workers.local_launcher import LocalLauncher
from torchserve_py.core.workers.process import WorkerProcess
from torchserve_py.core.workers.supervisor import Supervisor

DEADLINE = 60.0


async def test_a_worker_that_is_not_wanted_any_more_before_it_is_ready_is_no_error(
    make_registry: MakeRegistry, store: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    release = asyncio.Event()

    async def slow_process(*_: object) -> WorkerProcess:
        await release.wait()
        raise OSError("not in this test")

    monkeypatch.setattr(LocalLauncher, "start", slow_process)
    monkeypatch.setattr(WorkerListener, "path", Path("no socket"))
    registry = make_registry()
    write_model(store / "m")
    await registry.register(RegisterRequest(url="m", initial_workers=1, synchronous=False))
    while not registry.find("m").pool.supervisors:
        await asyncio.sleep(0)
    stop = Supervisor.stop

    async def stop_and_release(supervisor: Supervisor, limit: float) -> None:
        asyncio.get_running_loop().call_soon(release.set)
        await stop(supervisor, limit)

    monkeypatch.setattr(Supervisor, "stop", stop_and_release)
    async with asyncio.timeout(DEADLINE):
        await registry.scale("m", None, 0, 0, synchronous=True)
        await registry.close()
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []


async def test_unregistering_tells_of_a_worker_that_cannot_be_killed(
    make_registry: MakeRegistry, store: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    never = asyncio.Event()

    async def hang(*_: object) -> None:
        await never.wait()

    monkeypatch.setattr(Supervisor, "_run", hang)
    monkeypatch.setattr("torchserve_py.core.workers.pool._KILL_LIMIT", 0)
    registry = make_registry(unregister_model_timeout=0)
    write_model(store / "m")
    await registry.register(RegisterRequest(url="m", initial_workers=1, synchronous=False))
    while not registry.find("m").pool.supervisors:
        await asyncio.sleep(0)
    with pytest.raises(UnregisterTimeout, match=r"^Timed out while cleaning resources: m$"):
        await registry.unregister("m")
    assert "does not end, not even by SIGKILL" in caplog.text
    assert not registry.models()
    never.set()


@pytest.mark.usefixtures("no_workers")
async def test_removing_the_files_of_a_model_does_not_hold_up_the_event_loop(
    make_registry: MakeRegistry, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []
    monkeypatch.setattr(ModelFiles, "remove", lambda *_, **__: threads.append(threading.current_thread()))
    write_model(store / "m")
    registry = make_registry()
    await registry.register(without_workers("m"))
    await registry.unregister("m")
    assert len(threads) == 1
    assert threads[0] is not threading.main_thread()


async def test_a_registration_that_is_being_prepared_when_the_server_closes_adds_no_model(
    make_registry: MakeRegistry, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, done = threading.Event(), threading.Event()

    def hang(*_: object, **__: object) -> None:
        started.set()
        assert done.wait(DEADLINE)
        check_cancelled()

    monkeypatch.setattr("torchserve_py.core.models.assembly.obtain", hang)
    registry = make_registry()
    registering = asyncio.create_task(registry.register(without_workers("m")))
    while not started.is_set():
        await asyncio.sleep(0.001)
    closing = asyncio.create_task(registry.close())
    await asyncio.sleep(0)
    done.set()
    with pytest.raises(ShuttingDown):
        await registering
    await closing
    with pytest.raises(ShuttingDown):
        await registry.register(without_workers("m"))
    assert not registry.models()


async def test_nothing_is_registered_while_the_server_drains(make_registry: MakeRegistry, store: Path) -> None:
    write_model(store / "m")
    registry = make_registry()
    await registry.drain(0)
    with pytest.raises(ShuttingDown, match="shutting down"):
        await registry.register(without_workers("m"))


async def test_files_that_come_too_late_are_removed(
    make_registry: MakeRegistry, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tarfile.open(store / "m.tar.gz", "w:gz") as archive:
        archive.add(write_model(tmp_path / "m"), "m")
    started, done = threading.Event(), threading.Event()

    def late(*arguments: Any, **more: Any) -> Any:
        started.set()
        assert done.wait(DEADLINE)
        CANCELLED.get().clear()  # too late
        return obtain(*arguments, **more)

    monkeypatch.setattr("torchserve_py.core.models.assembly.obtain", late)
    monkeypatch.setattr("torchserve_py.core.archive.cancellation._CLEAN_UP_LIMIT", 0.0)
    registry = make_registry()
    registering = asyncio.create_task(registry.register(without_workers("m.tar.gz")))
    while not started.is_set():
        await asyncio.sleep(0.001)
    registering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await registering
    done.set()
    async with asyncio.timeout(DEADLINE):
        while not (tmp_path / "models").exists() or list((tmp_path / "models").iterdir()):
            await asyncio.sleep(0.01)
    assert not registry.models()


def with_a_job(registry: ModelRegistry) -> Call:
    """A request that waits, since the worker that is wanted never comes."""
    model = registry.find("m")
    model.dispatcher.set_workers(1)
    call = Call((), b"x")
    model.submit(call, None)
    return call


async def test_two_that_unregister_the_same_model(make_registry: MakeRegistry, store: Path) -> None:
    write_model(store / "m")
    registry = make_registry()
    await registry.register(without_workers("m"))
    outcomes = await asyncio.gather(
        registry.unload("m"), registry.unregister("m"), registry.unload("m"), return_exceptions=True
    )
    assert [type(outcome) for outcome in outcomes] == [type(None), ModelNotFound, ModelNotFound]


async def test_the_server_drains_and_ends_models_that_are_being_unloaded(
    make_registry: MakeRegistry, store: Path
) -> None:
    write_model(store / "m")
    registry = make_registry()
    await registry.register(without_workers("m"))
    parts = with_a_job(registry)
    unloading = asyncio.create_task(registry.unload("m"))
    while registry.models():
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert await registry.drain(0) is False
    async with asyncio.timeout(DEADLINE):
        await registry.close()
        await unloading
    with pytest.raises(JobFailed) as failed:
        await parts.next()
    assert failed.value.cause is Cause.draining
