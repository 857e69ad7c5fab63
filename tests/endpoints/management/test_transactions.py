"""Each operation fails at each point: what was stays, and nothing is told of what is not done."""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.core.models.registries import MakeRegistry, write_model

from torchserve_py.base.settings.schemas.versions import SavedModel
from torchserve_py.base.settings.server_settings import server_settings
from torchserve_py.core.archive.errors import ArchiveError
from torchserve_py.core.models.registry import ModelRegistry
from torchserve_py.core.serving.errors import (
    DefaultVersionInUse,
    DefaultVersionNotFound,
    ModelVersionNotFound,
    VersionConflict,
)
from torchserve_py.core.serving.serving import RegisterRequest
from torchserve_py.endpoints.failures import EndpointError, Failure
from torchserve_py.endpoints.management.edits import Edit
from torchserve_py.endpoints.management.management_calls import ManagementCalls

pytestmark = pytest.mark.usefixtures("no_workers")

Operation = Callable[[ManagementCalls], Awaitable[Any]]
OPERATIONS: dict[str, Operation] = {
    "register": lambda calls: calls.register({"url": "3", "initial_workers": 0}),
    "load": lambda calls: calls.load(RegisterRequest(url="3", model_name="m")),
    "load again": lambda calls: calls.load(RegisterRequest(url="2", model_name="m", batch_size=8)),
    "scale": lambda calls: calls.scale("m", "1", {"min_worker": 0, "max_worker": 3}),
    "unregister": lambda calls: calls.unregister("m", "2"),
    "unload": lambda calls: calls.unload("m"),
    "set the default version": lambda calls: calls.set_default("m", "2"),
    "set weights": lambda calls: calls.set_weights("m", {"1": 90, "2": 10}),
}
REFUSED: dict[str, tuple[Operation, type[Exception]]] = {
    "register again": (lambda calls: calls.register({"url": "2", "initial_workers": 0}), VersionConflict),
    "register nothing": (lambda calls: calls.register({"url": "none"}), ArchiveError),
    "load nothing": (lambda calls: calls.load(RegisterRequest(url="none")), ArchiveError),
    "scale nothing": (lambda calls: calls.scale("m", "9", {"min_worker": 1}), ModelVersionNotFound),
    "scale to fewer than the least": (
        lambda calls: calls.scale("m", "1", {"min_worker": 2, "max_worker": 1}),
        EndpointError,
    ),
    "unregister the default version": (lambda calls: calls.unregister("m", "1"), DefaultVersionInUse),
    "unregister nothing": (lambda calls: calls.unregister("m", "9"), ModelVersionNotFound),
    "unload nothing": (lambda calls: calls.unload("m", "9"), ModelVersionNotFound),
    "choose nothing": (lambda calls: calls.set_default("m", "9"), DefaultVersionNotFound),
    "weigh nothing": (lambda calls: calls.set_weights("m", {"1": 50, "9": 50}), ModelVersionNotFound),
}


class Others:
    """Notes what it is told, and how the models are at that time."""

    def __init__(self, registry: ModelRegistry) -> None:
        self._registry = registry
        self.told: list[Edit] = []
        self.models: list[Sequence[SavedModel]] = []
        self.is_away = False

    async def tell(self, edits: Sequence[Edit]) -> None:
        if self.is_away:
            raise EndpointError(Failure(503, "ServiceUnavailableException", "away", "fleet_not_told"))
        await self.insist(edits)

    async def insist(self, edits: Sequence[Edit]) -> None:
        self.told += edits
        self.models.append(self._registry.saved_models())


@pytest.fixture
async def registry(make_registry: MakeRegistry, store: Path) -> ModelRegistry:
    for version in "123":
        write_model(store / version, {"model": {"modelName": "m", "modelVersion": version, "handler": "handler.py"}})
    made = make_registry()
    for version in "12":
        await made.register(RegisterRequest(url=version, initial_workers=0))
    return made


@pytest.fixture
def others(registry: ModelRegistry) -> Others:
    return Others(registry)


@pytest.fixture
def calls(registry: ModelRegistry, others: Others) -> ManagementCalls:
    made = ManagementCalls(server_settings().model_construct(enable_model_api=True), registry)
    made.transactions.listeners.append(others)
    return made


@pytest.mark.parametrize("operation", OPERATIONS)
async def test_what_cannot_be_told_is_not_done_and_can_be_done_again(
    operation: str, registry: ModelRegistry, others: Others, calls: ManagementCalls
) -> None:
    before = registry.saved_models()
    others.is_away = True
    with pytest.raises(EndpointError, match="away"):
        await OPERATIONS[operation](calls)
    assert registry.saved_models() == before
    assert [model.version for model in registry.versions("m")] == ["1", "2"]
    others.is_away = False
    await OPERATIONS[operation](calls)
    assert registry.saved_models() != before
    assert len(others.told) == 1


@pytest.mark.parametrize("operation", OPERATIONS)
async def test_others_are_told_before_the_change_counts_here(
    operation: str, registry: ModelRegistry, others: Others, calls: ManagementCalls
) -> None:
    before = registry.saved_models()
    await OPERATIONS[operation](calls)
    assert others.models == [before]


@pytest.mark.parametrize("operation", REFUSED)
async def test_what_is_refused_is_not_told(
    operation: str, registry: ModelRegistry, others: Others, calls: ManagementCalls
) -> None:
    before = registry.saved_models()
    call, error = REFUSED[operation]
    with pytest.raises(error):
        await call(calls)
    assert registry.saved_models() == before
    assert others.told == []


async def test_what_protects_clients_is_done_although_it_cannot_be_told(
    registry: ModelRegistry, others: Others, calls: ManagementCalls
) -> None:
    await calls.set_weights("m", {"1": 90, "2": 10})
    others.is_away = True
    await calls.set_weights("m", {}, insist=True)
    assert registry.weights("m") == {}


async def test_a_model_that_something_holds_is_held_to_its_end(calls: ManagementCalls) -> None:
    refusal = Failure(409, "ConflictStatusException", "A rollout is under way.", "rollout_under_way")
    with pytest.raises(ZeroDivisionError), calls.holding("m", refusal):
        for change in (
            calls.set_weights("m", {"1": 50, "2": 50}),
            calls.set_default("m", "2"),
            calls.scale("m", "1", {"min_worker": 3}),
        ):
            with pytest.raises(EndpointError, match="A rollout is under way"):
                await change
        raise ZeroDivisionError
    assert not calls.transactions.held
    await calls.set_default("m", "2")
