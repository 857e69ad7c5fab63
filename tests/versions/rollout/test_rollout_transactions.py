"""A rollout fails at each of its points, without processes: all is as it was before, or done."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from torchserve_py.base.settings.schemas.versions import SavedModel
from torchserve_py.core.serving.errors import ModelVersionNotFound, WorkersFailed
from torchserve_py.core.serving.serving import ModelStatus
from torchserve_py.endpoints.failures import EndpointError
from torchserve_py.endpoints.management.management_calls import ManagementCalls
from torchserve_py.versions.rollout import rollouts
from torchserve_py.versions.rollout.rollouts import Rollouts

#: More points than a rollout of three places has.
MOST_POINTS = 60


@dataclass
class _Version:
    workers: int
    least: int
    most: int
    weight: int = 0
    open_sequences: int = 0


@dataclass
class Models:
    """As much of `serving.Serving` as a rollout needs; ``fails`` is called before each change, and may raise."""

    versions_of_m: dict[str, _Version]
    default: str = "1"
    chosen: bool = False
    until: int | None = None
    continues_all: bool = True
    fails: Callable[[str], None] = lambda what: None
    on_change: list[Callable[[], None]] = field(default_factory=list)

    @property
    def now(self) -> Mapping[str, Any]:
        """What is to be as before."""
        versions = {name: (each.workers, each.least, each.most) for name, each in self.versions_of_m.items()}
        return {"versions": versions, "default": self.default, "chosen": self.chosen, "weights": self.weights("m")} | {
            "until": self.until
        }

    def get(self, name: str, version: str | None = None) -> Any:
        version = version or self.default
        self._version(version)
        config = SimpleNamespace(follows_load=False, startup_timeout=1)
        kinds = {"kind": "stateless", "is_stateful": False, "is_durable": False}
        return SimpleNamespace(name=name, version=version, config=config, **kinds)

    def versions(self, name: str) -> list[Any]:
        return [self.get(name, each) for each in self.versions_of_m]

    def status(self, model: Any) -> ModelStatus:
        found = self._version(model.version)
        worker: Any = SimpleNamespace(id="w", ready=True, waits=False, failure="", gave_up=False)
        limits: dict[str, Any] = {
            "min_workers": found.least,
            "max_workers": found.most,
            "open_sequences": found.open_sequences,
        }
        return ModelStatus(workers=[worker] * found.workers, queue_remaining=1, queue_pending=0, **limits)

    def saved_models(self) -> list[SavedModel]:
        return [
            SavedModel(name="m", version=version, location="m").model_copy(
                update={"default": version == self.default, "chosen": self.chosen and version == self.default}
            )
            for version in self.versions_of_m
        ]

    def weights(self, name: str) -> dict[str, int]:
        return {version: each.weight for version, each in self.versions_of_m.items() if each.weight}

    def weights_until(self, name: str) -> int | None:
        return self.until

    def takes_over(self, name: str, version: str, other: str) -> bool:
        return False

    def continues(self, name: str, version: str, other: str) -> bool:
        return self.continues_all

    def check_weights(self, name: str, weights: Mapping[str, int], *, force: bool = False) -> None:
        for version in weights:
            self._version(version)

    def check_default(self, name: str, version: str, *, force: bool = False) -> None:
        self._version(version)

    def set_weights(
        self, name: str, weights: Mapping[str, int], *, until: int | None = None, force: bool = False
    ) -> None:
        self.fails(f"weigh {dict(weights)}")
        self.check_weights(name, weights)
        for version, each in self.versions_of_m.items():
            each.weight = weights.get(version, 0)
        self.until = until

    def set_default(self, name: str, version: str, *, chosen: bool = True, force: bool = False) -> None:
        self.fails(f"choose {version}")
        self._version(version)
        self.default, self.chosen = version, chosen

    async def scale(self, name: str, version: str, least: int, most: int, *, synchronous: bool) -> int | None:
        await asyncio.sleep(0)
        found = self._version(version)
        found.least, found.most = least, most
        found.workers = min(found.workers, most)
        self.fails(f"scale {version} to {least}")  # such as a worker that does not come up
        found = self._version(version)
        found.workers = max(found.workers, least)
        return None

    def let_requests_wait(self, name: str, version: str, *, wait: bool) -> None:
        if wait:
            self.fails(f"wait for {version}")

    def hand_over(self, name: str, version: str, to: str) -> None:
        self.fails(f"hand over to {to}")

    def _version(self, version: str) -> _Version:
        if version not in self.versions_of_m:
            raise ModelVersionNotFound("m", version)
        return self.versions_of_m[version]


class Judge:
    """The canaries: notes what becomes of the one of ``m``."""

    def __init__(self) -> None:
        self.state = "judges"

    def hold(self, name: str) -> None:
        self.state = "held"

    def go_on(self, name: str) -> None:
        self.state = "judges"

    def forget(self, name: str, why: str) -> None:
        self.state = "over"


class World:
    """One server: version 1 is the default one; version 2 has none of its places, or some and a canary's weights."""

    def __init__(self, places: int, own: int) -> None:
        self.models = Models({"1": _Version(places, 1, places + 1), "2": _Version(own, own, own)})
        if own:
            self.models.versions_of_m["1"].weight, self.models.versions_of_m["2"].weight = 95, 5
            self.models.until = 1_700_000_000
        self.judge = Judge()
        serving: Any = self.models
        self.calls = ManagementCalls(SimpleNamespace(enable_model_api=True), serving)  # type: ignore[arg-type]
        self.rollouts = Rollouts(serving, self.calls, self.judge, 0.1)  # type: ignore[arg-type]


def error_at(point: int, error: Exception) -> Callable[[str], None]:
    """Return what raises an error at one point of many."""
    points: Iterator[int] = iter(range(10_000))

    def fails(what: str) -> None:
        if next(points) == point:
            raise error

    return fails


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollouts, "_PLACE_INTERVAL", 0.0)


@pytest.mark.parametrize("own", [0, 1])
@pytest.mark.parametrize("places", [1, 3])
@pytest.mark.parametrize("error", [WorkersFailed("m", "2", 500), ZeroDivisionError()], ids=["foreseen", "unforeseen"])
async def test_a_rollout_that_fails_at_any_point_leaves_all_as_it_was(places: int, own: int, error: Exception) -> None:
    stopped = 0
    for point in range(MOST_POINTS):
        world = World(places, own)
        before = world.models.now
        world.models.fails = error_at(point, error)
        try:
            await world.rollouts.roll_out("m", "2")
        except (WorkersFailed, EndpointError, ZeroDivisionError):
            stopped += 1
            assert world.models.now == before, f"point {point}"
            assert world.judge.state == "judges"
            assert world.rollouts.about("m")["state"] == "stopped"
            assert world.rollouts.about("m")["taken"] == 0
        else:
            assert world.models.default == "2"
            assert world.models.weights("m") == {}
            assert world.models.versions_of_m["1"].workers == 0
            assert world.judge.state == "over"
        assert not world.calls.transactions.held
    assert stopped >= 2 * places  # the points after the last one are none


async def test_places_that_cannot_be_given_back_stay_where_they_are() -> None:
    world = World(3, 0)

    def fails(what: str) -> None:
        if what in ("scale 2 to 3", "scale 1 to 2"):  # no worker comes up any more
            raise WorkersFailed("m", "2", 500)

    world.models.fails = fails
    with pytest.raises(EndpointError):
        await world.rollouts.roll_out("m", "2")
    assert world.rollouts.about("m")["taken"] == 2
    assert {version: each.workers for version, each in world.models.versions_of_m.items()} == {"1": 1, "2": 2}
    assert world.models.weights("m") == {"1": 33, "2": 67}
    assert world.models.default == "1"
    world.models.fails = lambda what: None
    await world.rollouts.roll_out("m", "2")
    assert world.models.versions_of_m["2"].workers == 3


async def test_sequences_that_cannot_go_back_keep_their_worker() -> None:
    world = World(2, 0)
    world.models.continues_all = False
    world.models.versions_of_m["2"].open_sequences = 3

    def fails(what: str) -> None:
        if what == "choose 2":
            raise ZeroDivisionError

    world.models.fails = fails
    with pytest.raises(ZeroDivisionError):
        await world.rollouts.roll_out("m", "2")
    assert {version: each.workers for version, each in world.models.versions_of_m.items()} == {"1": 1, "2": 1}
    assert world.models.weights("m") == {"1": 50, "2": 50}


async def test_a_version_that_is_unregistered_meanwhile_gives_all_places_back() -> None:
    world = World(2, 0)

    def fails(what: str) -> None:
        if what == "scale 2 to 2":
            del world.models.versions_of_m["2"]

    world.models.fails = fails
    with pytest.raises(ModelVersionNotFound):
        await world.rollouts.roll_out("m", "2")
    assert world.models.versions_of_m["1"].workers == 2
    assert world.models.weights("m") == {}


async def test_what_a_rollout_changes_is_not_changed_meanwhile() -> None:
    world = World(1, 1)
    refused = []

    def fails(what: str) -> None:
        refused.append(what)

    world.models.fails = fails
    rolling = asyncio.create_task(world.rollouts.roll_out("m", "2"))
    while not refused:
        await asyncio.sleep(0)
    for change in (
        world.calls.set_weights("m", {"1": 50, "2": 50}),
        world.calls.set_default("m", "2"),
        world.rollouts.roll_out("m", "1"),
    ):
        with pytest.raises(EndpointError, match="The rollout of version 2 of model m is under way") as raised:
            await change
        assert (raised.value.failure.status, raised.value.failure.cause) == (409, "rollout_under_way")
    await rolling
    await world.calls.set_weights("m", {"2": 100})
