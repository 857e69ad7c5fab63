"""Canaries and shadows that cannot go on, because an operator has done something else, without workers."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.unit.models.registries import MakeRegistry, without_workers, write_model

from torchserve_py.features.management.management_calls import ManagementCalls
from torchserve_py.features.traffic.canaries import Canaries
from torchserve_py.features.traffic.shadows import Shadows
from torchserve_py.features.traffic.traffic_body import CanaryRules, ShadowRules
from torchserve_py.models.registry import ModelRegistry

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
    settings = SimpleNamespace(enable_model_api=True)
    canaries = Canaries(registry, ManagementCalls(settings, registry))  # type: ignore[arg-type]
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
