"""Canaries and shadows that cannot go on, because an operator has done something else, without workers."""

import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.base.metrics.records import Ended
from tests.core.models.registries import MakeRegistry, without_workers, write_model

from torchserve_py.base.causes import Cause
from torchserve_py.core.models.registry import ModelRegistry
from torchserve_py.core.serving.errors import BadParameter, ModelError
from torchserve_py.core.serving.serving import ModelStatus, ServedModel, WorkerStatus
from torchserve_py.endpoints.management.management_calls import ManagementCalls
from torchserve_py.versions.traffic.canaries import Canaries
from torchserve_py.versions.traffic.canary import CanaryRules, ShadowRule
from torchserve_py.versions.traffic.shadows import Shadows
from torchserve_py.versions.traffic.traffic_body import ShadowRules

pytestmark = pytest.mark.usefixtures("no_workers")


@pytest.fixture
async def registry(make_registry: MakeRegistry, store: Path) -> ModelRegistry:
    """Versions 1, the default one, to 3 of a model."""
    made = make_registry(enable_model_api=True)
    for version in "123":
        model = {"modelName": "m", "modelVersion": version, "handler": "handler.py"}
        write_model(store / version, {"model": model})
        await made.register(without_workers(version))
    return made


def canaries_of(registry: ModelRegistry) -> Canaries:
    settings = SimpleNamespace(enable_model_api=True)
    return Canaries(registry, ManagementCalls(settings, registry), Shadows(registry))  # type: ignore[arg-type]


async def set_default(registry: ModelRegistry) -> None:
    registry.set_default("m", "2")


async def unregister(registry: ModelRegistry) -> None:
    await registry.unregister("m", "2")


async def set_weights(registry: ModelRegistry) -> None:
    registry.set_weights("m", {"1": 50, "3": 50})


@pytest.mark.parametrize(
    ("change", "why", "weights"),
    [
        (set_default, "an operator has made 2 the default version", {}),
        (unregister, "Model version: 2 does not exist for model: m", {}),
        (set_weights, "an operator has changed the traffic", {"1": 50, "3": 50}),  # at another server of a fleet
    ],
)
async def test_a_canary_is_called_off_and_leaves_no_weights_behind(
    registry: ModelRegistry,
    change: Callable[[ModelRegistry], Awaitable[None]],
    why: str,
    weights: dict[str, int],
) -> None:
    canaries = canaries_of(registry)
    await canaries.begin("m", CanaryRules(version="2"))
    await canaries.look(1.0)
    assert registry.weights("m") == {"1": 95, "2": 5}
    await change(registry)
    await canaries.look(2.0)
    assert registry.weights("m") == weights
    shown = canaries.about("m")
    assert "canary" not in shown
    assert [each["decision"] for each in shown["decisions"]] == ["begun", "called off"]
    assert shown["decisions"][-1]["why"] == why


@pytest.mark.parametrize("change", [set_default, unregister])
async def test_a_shadow_that_cannot_go_on_is_not_shown(
    registry: ModelRegistry, change: Callable[[ModelRegistry], Awaitable[None]]
) -> None:
    shadows = Shadows(registry)
    shadows.begin("m", ShadowRules(version="2"))
    shadows.look()
    assert (shadows.about("m")["version"], set(shadows.saved())) == ("2", {"m"})
    await change(registry)
    assert shadows.about("m") == {}
    shadows.begin("m", ShadowRules(version="3"))
    registry.set_weights("m", {"3": 100})
    shadows.look()
    assert shadows.saved() == {}


@pytest.mark.parametrize(
    "refused",
    [
        CanaryRules(version="1"),
        CanaryRules(version="9"),
        CanaryRules(version="3", shadow=ShadowRule()),  # an operator's shadow is there
    ],
)
async def test_a_canary_goes_on_when_another_one_is_refused(registry: ModelRegistry, refused: CanaryRules) -> None:
    shadows = Shadows(registry)
    settings = SimpleNamespace(enable_model_api=True)
    canaries = Canaries(registry, ManagementCalls(settings, registry), shadows)  # type: ignore[arg-type]
    await canaries.begin("m", CanaryRules(version="2"))
    shadows.begin("m", ShadowRules(version="3"))
    with pytest.raises(ModelError):
        await canaries.begin("m", refused)
    await canaries.look(time.monotonic())
    assert registry.weights("m") == {"1": 95, "2": 5}
    assert canaries.about("m")["canary"]["version"] == "2"
    assert [each["decision"] for each in canaries.about("m")["decisions"]] == ["begun"]
    shadows.end("m", "it has had its day")
    await canaries.begin("m", CanaryRules(version="3", steps=[10]))
    assert registry.weights("m") == {"1": 90, "3": 10}
    assert [each["decision"] for each in canaries.about("m")["decisions"]] == ["begun", "called off", "begun"]


async def test_a_canary_that_does_not_get_on_is_rolled_back(registry: ModelRegistry) -> None:
    canaries = canaries_of(registry)
    await canaries.begin("m", CanaryRules(version="2", deadline_sec=60))
    saved = canaries.saved()["m"]
    await canaries.look(time.monotonic())
    assert "canary" in canaries.about("m")
    # The deadline is that of the whole canary, over restarts, too.
    again = canaries_of(registry)
    again.resume("m", saved.model_copy(update={"began": saved.began - 61}))
    await again.look(time.monotonic())
    *_, last = again.about("m")["decisions"]
    assert last["decision"] == "rolled back"
    assert last["why"].startswith("it did not get through its steps within 60 s (deadlineSec): 0 of 600 requests")
    assert registry.weights("m") == {}


async def test_only_requests_that_chance_has_shared_are_compared(registry: ModelRegistry) -> None:
    canaries = canaries_of(registry)
    await canaries.begin("m", CanaryRules(version="2", min_requests=100))
    now = time.monotonic()

    def job(told: Cause | int, *, by_default: bool = True, took: float = 0.0, job_id: str = "") -> Ended:
        return Ended(now - took, 0, now, told, told == 200, job_id, by_default=by_default)

    counted = [job(200), job(500), job(Cause.worker_died), job(Cause.queue_full), job(Cause.cancelled)]
    others = [job(200, by_default=False), job(200, took=60.0), job(400), job(Cause.rate_limited), job(Cause.step_gap)]
    for version in "12":
        canaries.follow("m", version, [replace(each, id=str(i)) for i, each in enumerate([*counted, *others])])
    await canaries.look(now + 1)
    assert canaries.about("m")["canary"]["now"] == "5 of 100 requests compared so far"


async def test_the_shadow_of_a_canary_begins_and_ends_with_it(registry: ModelRegistry) -> None:
    shadows = Shadows(registry)
    settings = SimpleNamespace(enable_model_api=True)
    canaries = Canaries(registry, ManagementCalls(settings, registry), shadows)  # type: ignore[arg-type]
    await canaries.begin("m", CanaryRules(version="2", shadow=ShadowRule(percent=50)))
    shadows.look()
    assert shadows.about("m")["percent"] == 50
    assert shadows.saved() == {}  # the canary brings it back
    with pytest.raises(BadParameter, match="has a shadow of its canary"):
        shadows.begin("m", ShadowRules(version="3"))
    with pytest.raises(BadParameter, match="has a shadow of its canary"):
        shadows.end("m", "an operator has ended it")
    canaries.forget("m")
    assert shadows.about("m") == {}


@pytest.mark.parametrize("dies", [True, False])
async def test_a_step_begins_anew_when_a_worker_dies(
    registry: ModelRegistry, monkeypatch: pytest.MonkeyPatch, *, dies: bool
) -> None:
    deaths = 0

    def status(model: ServedModel) -> ModelStatus:
        died = deaths if model.version == "2" else 0
        about: dict[str, Any] = {"started_at": datetime.now(UTC), "ready": True, "memory": 0, "pid": 1, "gpu": False}
        worker = WorkerStatus(id="9000", **about, gpu_usage="", gpu_memory=None, failure="", gave_up=False, deaths=died)
        return ModelStatus(min_workers=1, max_workers=1, workers=[worker], queue_remaining=1, queue_pending=0)

    monkeypatch.setattr(registry, "status", status)
    canaries = canaries_of(registry)
    await canaries.begin("m", CanaryRules(version="2", steps=[50], interval_sec=10, min_requests=1))
    now = time.monotonic()

    for version in "12":
        canaries.follow("m", version, [Ended(now, 0, now)])
    await canaries.look(now + 5)
    assert canaries.about("m")["canary"]["now"].startswith("0 of 1 requests failed")
    deaths += dies
    await canaries.look(now + 9)
    await canaries.look(now + 11)
    assert registry.get("m").version == ("1" if dies else "2")
