"""Registering workflows: what is registered as models, and what is left when that goes wrong or is called off."""

import asyncio
import shutil
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from torchserve_py.apis.workflows import registry as registry_module
from torchserve_py.apis.workflows import startup_workflows
from torchserve_py.apis.workflows.errors import RegistrationFailed, WorkflowConflict, WorkflowNotFound
from torchserve_py.apis.workflows.execution import WorkflowCall
from torchserve_py.apis.workflows.registry import WorkflowRegistry
from torchserve_py.apis.workflows.torch_workflow_archiver import PackOptions, pack
from torchserve_py.apis.workflows.workflow_settings import WorkflowSettings
from torchserve_py.base.settings.flags import parse_flags
from torchserve_py.base.settings.resolution import Resolution
from torchserve_py.base.settings.server_settings import server_settings
from torchserve_py.base.settings.table import Effective
from torchserve_py.core.serving.errors import ModelError, ModelNotFound, ShuttingDown
from torchserve_py.core.serving.serving import AwaitedWorkflow, RegisterRequest, RegisterResult
from torchserve_py.endpoints.failures import failure_of

SPEC = "models: {m: {url: m.mar, max-workers: 3, batch-size: 4}}\ndag: {pre: [m]}\n"


@dataclass
class FakeConfig:
    job_queue_size: int = 100


@dataclass
class FakeModel:
    name: str
    is_stateful: bool = False
    config: FakeConfig = field(default_factory=FakeConfig)


@dataclass
class FakeStatus:
    min_workers: int
    max_workers: int


class FakeModels:
    """Registers nothing but names, as soon as the gate is open."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.ends = asyncio.Event()
        self.ends.set()
        self.requests: list[RegisterRequest] = []
        self.names: set[str] = set()
        self.workers: dict[str, FakeStatus] = {}
        self.broken: str | None = None
        self.on_change: list[Callable[[], None]] = []
        self.awaited_workflows: Sequence[AwaitedWorkflow] = ()

    async def register(self, request: RegisterRequest) -> RegisterResult:
        assert request.model_name is not None
        self.requests.append(request)
        await self.gate.wait()
        if request.model_name == self.broken:
            raise OSError(28, "No space left on device")
        self.names.add(request.model_name)
        least = request.initial_workers or 0
        self.workers[request.model_name] = FakeStatus(least, request.max_workers or least)
        return RegisterResult(request.model_name, "1.0", 1, 1, pending=False)

    async def unregister(self, name: str, version: str | None = None) -> None:
        if name not in self.names:
            raise ModelNotFound(name)
        self.names.remove(name)
        await self.ends.wait()

    def get(self, name: str, version: str | None = None) -> FakeModel:
        if name not in self.names:
            raise ModelNotFound(name)
        return FakeModel(name)

    def status(self, model: FakeModel) -> FakeStatus:
        return self.workers[model.name]


@pytest.fixture
def models() -> FakeModels:
    return FakeModels()


@pytest.fixture
def registry(tmp_path: Path, models: FakeModels) -> WorkflowRegistry:
    (tmp_path / "spec.yaml").write_text(SPEC)
    (tmp_path / "h.py").write_text("")
    pack(PackOptions("w", str(tmp_path / "spec.yaml"), str(tmp_path / "h.py"), export_path=str(tmp_path / "store")))
    settings = server_settings()(model_store=tmp_path / "store", temp_dir=tmp_path / "tmp", enable_model_api=True)
    return WorkflowRegistry(settings, models)  # type: ignore[arg-type]


async def test_what_cannot_be_registered_at_the_start_is_tried_again(
    tmp_path: Path, registry: WorkflowRegistry, models: FakeModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_module, "_AGAIN", 0.0)
    store = tmp_path / "store"
    (tmp_path / "config.properties").write_text(f"load_workflows=absent.war, w.war\nmodel_store={store}\n")
    settings = Resolution(parse_flags([]), {}, tmp_path).settings()
    assert settings.of(WorkflowSettings).load_workflows == ("absent.war", "w.war")
    server = WorkflowRegistry(settings, models)  # type: ignore[arg-type]
    assert server.saved == ("absent.war", "w.war")
    assert models.awaited_workflows == [AwaitedWorkflow(name, failed=False) for name in ("absent", "w")]
    starting = asyncio.create_task(server.register_at_start())
    async with asyncio.timeout(60):
        while not server.workflows():
            await asyncio.sleep(0)
        assert "absent.war" in server.failures
        assert models.awaited_workflows == [AwaitedWorkflow("absent", failed=True)]
        shutil.copy(store / "w.war", store / "absent.war")
        while "already registered" not in server.failures.get("absent.war", ""):
            await asyncio.sleep(0)
        await server.unregister("w")
        await starting
    assert (server.failures, [each.url for each in server.workflows()]) == ({}, ["absent.war"])
    assert models.awaited_workflows == []


@pytest.mark.parametrize("entry", ["absent.war", "mine=https://h/absent.war?token=secret"])
async def test_whoever_registers_what_failed_at_the_start_ends_the_waiting(
    entry: str, tmp_path: Path, registry: WorkflowRegistry, models: FakeModels
) -> None:
    (tmp_path / "config.properties").write_text(f"load_workflows={entry}\nmodel_store={tmp_path / 'store'}\n")
    server = WorkflowRegistry(Resolution(parse_flags([]), {}, tmp_path).settings(), models)  # type: ignore[arg-type]
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        starting = group.create_task(server.register_at_start())
        while not server.failures:
            await asyncio.sleep(0)
        assert "secret" not in models.awaited_workflows[0].name
        shutil.copy(tmp_path / "store" / "w.war", tmp_path / "store" / "absent.war")
        await server.register(RegisterRequest(url="absent.war", model_name="mine" if "mine" in entry else None))
        assert (server.failures, models.awaited_workflows) == ({}, [])
        starting.cancel()


async def test_what_is_served_is_saved_for_a_later_start(
    tmp_path: Path, registry: WorkflowRegistry, models: FakeModels
) -> None:
    saved: list[tuple[str, ...]] = []
    models.on_change.append(lambda: saved.append(registry.saved))
    await registry.register(RegisterRequest(url="w.war"))
    await registry.register(RegisterRequest(url="w.war", model_name="other"))
    timeouts = {"response_timeout": 300, "startup_timeout": 600}
    await registry.register(RegisterRequest(url="w.war", model_name="slow", **timeouts))
    await registry.unregister("w")
    slow = "slow=w.war?response_timeout=300&startup_timeout=600"
    assert saved == [("w.war",), ("other=w.war", "w.war"), ("other=w.war", slow, "w.war"), ("other=w.war", slow)]
    store = tmp_path / "store"
    (tmp_path / "config.properties").write_text(f"load_workflows={','.join(saved[2])}\nmodel_store={store}\n")
    later = WorkflowRegistry(Resolution(parse_flags([]), {}, tmp_path).settings(), models)  # type: ignore[arg-type]
    await later.register_at_start()
    assert [(each.name, each.url) for each in later.workflows()] == [(name, "w.war") for name in ("other", "slow", "w")]
    assert later.saved == saved[2]
    nodes = [each for each in models.requests[-6:] if (each.response_timeout, each.startup_timeout) == (300, 600)]
    assert sorted(str(each.model_name) for each in nodes) == ["slow__m", "slow__pre"]


async def test_nodes_that_somebody_has_scaled_have_as_many_workers_at_the_next_start(
    tmp_path: Path, registry: WorkflowRegistry, models: FakeModels
) -> None:
    await registry.register(RegisterRequest(url="w.war", response_timeout=9))
    await registry.register(RegisterRequest(url="w.war", model_name="other"))
    models.workers |= {"w__m": FakeStatus(2, 2), "w__pre": FakeStatus(0, 4), "other__m": FakeStatus(5, 5)}
    saved = ("other=w.war?workers.m=5", "w.war?response_timeout=9&workers.m=2&workers.pre=0-4")
    assert sorted(saved) == sorted(registry.saved)
    models.names.remove("other__m")  # somebody has unregistered it
    assert "other=w.war" in registry.saved
    models.names.clear()
    store = tmp_path / "store"
    (tmp_path / "config.properties").write_text(f"load_workflows={','.join(saved)}\nmodel_store={store}\n")
    later = WorkflowRegistry(Resolution(parse_flags([]), {}, tmp_path).settings(), models)  # type: ignore[arg-type]
    await later.register_at_start()
    assert models.workers["w__m"] == FakeStatus(2, 2)
    assert models.workers["w__pre"] == FakeStatus(0, 4)
    assert (models.workers["other__m"], models.workers["other__pre"]) == (FakeStatus(5, 5), FakeStatus(1, 1))
    assert later.saved == saved


@pytest.mark.parametrize(
    "query",
    [
        *("", "batch_size=2", "response_timeout=", "response_timeout=-1", "response_timeout=1e3"),
        *("workers.m=", "workers.m=x", "workers.m=4-2", "workers=2", "response_timeout=1-2"),
    ],
)
async def test_what_follows_an_archive_at_the_start_is_a_timeout_or_workers(query: str) -> None:
    known = "response_timeout=SECONDS or startup_timeout=SECONDS, or workers.NODE=NUMBER or =LEAST-MOST"
    with pytest.raises(ValueError, match=rf"behind w.war\? is not {known}"):
        startup_workflows.read(f"w.war?{query}")


async def test_the_query_of_a_url_is_the_urls() -> None:
    url = "https://h/w.war?response_timeout=1"
    assert startup_workflows.read(f"x={url}").request == RegisterRequest(url=url, model_name="x")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"model_name": "a,b"}, "The workflow 'a,b=w.war' could not be registered again after a restart"),
        ({"model_name": "a=b"}, "'a=b=w.war' could not"),
        ({"model_name": "a:b"}, "'a:b=w.war' could not"),
        ({"model_name": "a/b"}, "The workflow name 'a/b' cannot be part of a URL: it must not hold a slash"),
        ({"model_name": "a\nb"}, "must not hold a control character"),
        ({"response_timeout": 0}, "Parameter response_timeout is 0, it must be an integer from 1"),
        ({"startup_timeout": 2**31}, "Parameter startup_timeout is 2147483648, it must be"),
    ],
)
async def test_what_is_wrong_with_a_registration_is_told_before_any_model_is_registered(
    registry: WorkflowRegistry, models: FakeModels, tmp_path: Path, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelError, match=message) as raised:
        await registry.register(RegisterRequest(url="w.war", **given))
    assert failure_of(raised.value).status == 400
    assert (models.requests, registry.saved) == ([], ())
    assert not (tmp_path / "tmp" / "models").exists() or unpacked(tmp_path) == []


async def test_a_workflow_may_have_a_name_that_only_a_model_may_not_have(registry: WorkflowRegistry) -> None:
    await registry.register(RegisterRequest(url="w.war", model_name="stats"))
    assert registry.saved == ("stats=w.war",)


async def test_an_archive_with_a_name_that_cannot_be_listed_is_refused(
    registry: WorkflowRegistry, tmp_path: Path
) -> None:
    for name in ("a,b.war", "a?b.war", "a=b.war"):
        shutil.copy(tmp_path / "store" / "w.war", tmp_path / "store" / name)
        with pytest.raises(ModelError, match="could not be registered again after a restart"):
            await registry.register(RegisterRequest(url=name))


def unpacked(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "tmp" / "models").iterdir())


async def test_nodes_are_models(registry: WorkflowRegistry, models: FakeModels, tmp_path: Path) -> None:
    workflow = await registry.register(RegisterRequest(url="w.war", response_timeout=7))
    function, model = sorted(models.requests, key=lambda request: request.handler or "~")
    (folder,) = unpacked(tmp_path)
    assert model == RegisterRequest(
        url="m.mar",
        model_name="w__m",
        batch_size=4,
        max_batch_delay=50,
        initial_workers=3,
        response_timeout=7,
        in_workflow=True,
    )
    assert function == RegisterRequest(
        url=str(folder),
        model_name="w__pre",
        handler="h.py:pre",
        batch_size=1,
        max_batch_delay=0,
        initial_workers=1,
        response_timeout=7,
        in_workflow=True,
        is_function=True,
    )
    assert registry.workflows() == [workflow]
    await registry.unregister("w")
    assert (registry.workflows(), models.names, unpacked(tmp_path)) == ([], set(), [])


async def test_a_workflow_whose_models_still_answer_is_gone_and_has_its_file(
    registry: WorkflowRegistry, models: FakeModels, tmp_path: Path
) -> None:
    shutil.copy(tmp_path / "store" / "w.war", tmp_path / "away.war")
    away = RegisterRequest(url=(tmp_path / "away.war").as_uri())
    await registry.register(away)
    models.ends.clear()
    ending = asyncio.create_task(registry.unregister("w"))
    while registry.workflows():
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    with pytest.raises(WorkflowNotFound, match=r"^Workflow not found: w: it is being unregistered"):
        await registry.unregister("w")
    with pytest.raises(WorkflowConflict, match=r"already exists away.war: workflow w, which .* is being unregistered$"):
        await registry.register(away)
    models.ends.set()
    await ending
    await registry.register(away)


async def test_a_name_is_taken_as_soon_as_somebody_registers_it(
    registry: WorkflowRegistry, models: FakeModels, tmp_path: Path
) -> None:
    models.gate.clear()
    first = asyncio.create_task(registry.register(RegisterRequest(url="w.war")))
    async with asyncio.timeout(60):
        while not models.requests:
            await asyncio.sleep(0)
        with pytest.raises(WorkflowConflict):
            await registry.register(RegisterRequest(url="w.war"))
    with pytest.raises(WorkflowNotFound):
        registry.get("w")
    models.gate.set()
    assert await first is registry.get("w")
    assert len(unpacked(tmp_path)) == 1


async def test_an_error_that_nobody_foresaw_leaves_nothing(
    registry: WorkflowRegistry, models: FakeModels, tmp_path: Path
) -> None:
    models.broken = "w__m"
    with pytest.raises(RegistrationFailed, match=r"m: .*No space left on device"):
        await registry.register(RegisterRequest(url="w.war"))
    assert (registry.workflows(), models.names, unpacked(tmp_path)) == ([], set(), [])


async def test_a_registration_goes_on_when_its_caller_hangs_up(registry: WorkflowRegistry, models: FakeModels) -> None:
    models.gate.clear()
    caller = asyncio.create_task(registry.register(RegisterRequest(url="w.war")))
    async with asyncio.timeout(60):
        while not models.requests:
            await asyncio.sleep(0)
        caller.cancel()
        await asyncio.wait([caller])
        models.gate.set()
        while not registry.workflows():
            await asyncio.sleep(0)
    assert models.names == {"w__m", "w__pre"}


async def test_closing_calls_a_registration_off(registry: WorkflowRegistry, models: FakeModels, tmp_path: Path) -> None:
    models.gate.clear()
    caller = asyncio.create_task(registry.register(RegisterRequest(url="w.war")))
    async with asyncio.timeout(60):
        while not models.requests:
            await asyncio.sleep(0)
        await registry.close()
        with pytest.raises(ShuttingDown):
            await caller
    assert unpacked(tmp_path) == []
    with pytest.raises(ShuttingDown):
        await registry.register(RegisterRequest(url="w.war"))


async def test_nothing_new_is_accepted_while_the_server_drains(registry: WorkflowRegistry) -> None:
    await registry.register(RegisterRequest(url="w.war"))
    assert await registry.drain(30)
    with pytest.raises(ShuttingDown):
        registry.submit(registry.get("w"), WorkflowCall(Mock(), Mock(), Mock(), "w", b"", None))


async def test_accepted_requests_go_through_all_nodes_before_these_are_unregistered(
    registry: WorkflowRegistry, models: FakeModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    await registry.register(RegisterRequest(url="w.war"))
    goes_on, seen = asyncio.Event(), list[set[str]]()

    async def execute(*_: Any) -> AsyncGenerator[Any]:
        await goes_on.wait()
        seen.append(set(models.names))
        for part in ():
            yield part

    monkeypatch.setattr(registry_module, "execute", execute)
    registry.submit(registry.get("w"), WorkflowCall(Mock(), Mock(), Mock(), "w", b"", None))
    ending = asyncio.create_task(registry.unregister("w"))
    while registry.workflows():
        await asyncio.sleep(0)
    for _ in range(9):  # else its models go now
        await asyncio.sleep(0)
    goes_on.set()
    await ending
    assert seen == [{"w__pre", "w__m"}]
    assert models.names == set()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("=w.war", '"=w.war" has no name before its "="'),
        ("w.war?workers.m1=abc", "workers.m1=abc behind w.war? is not response_timeout=SECONDS"),
    ],
)
def test_a_value_that_names_no_workflow_keeps_the_server_from_starting(text: str, said: str) -> None:
    effective = {"load_workflows": Effective(("fine.war", text), "config.properties")}
    (line,) = WorkflowSettings.contradictions(effective)
    assert line.startswith(f"config.properties: load_workflows = {text}: {said}")


def test_two_workflows_of_one_name_keep_the_server_from_starting() -> None:
    values = ("look=a.war", "other.war", "look=b.war?response_timeout=5", "look=a.war")
    effective = {"load_workflows": Effective(values, "config.properties")}
    (line,) = WorkflowSettings.contradictions(effective)
    assert line == (
        "config.properties: load_workflows names two workflows look, look=a.war and look=b.war?response_timeout=5;"
        " rename one of them"
    )
