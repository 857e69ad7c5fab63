"""A fleet of servers without processes: what each serves is plain values, and a folder or a list keeps the states."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace

from torchserve_py.base.settings.schemas.versions import SavedModel
from torchserve_py.core.serving.errors import (
    BadParameter,
    DefaultVersionInUse,
    DefaultVersionNotFound,
    InvalidModel,
    ModelAwaited,
    ModelNotFound,
    ModelVersionNotFound,
    VersionConflict,
    VersionNotReady,
)
from torchserve_py.core.serving.serving import Awaited, ModelStatus, RegisterRequest, RegisterResult, Tell
from torchserve_py.endpoints.management.management_calls import ManagementCalls
from torchserve_py.fleet.saved_models.fleet_member import FleetMember
from torchserve_py.fleet.saved_models.fleet_state import NOTHING, FleetState, FleetStateError


class States:
    """A store of states in memory; ``fails`` says when it cannot be used, and ``loses`` when its answer is lost."""

    name = "memory"

    def __init__(self) -> None:
        self.state = NOTHING
        self.fails: Callable[[], bool] = lambda: False
        self.loses: Callable[[], bool] = lambda: False

    def newest_number(self) -> int:
        self._check()
        return self.state.number

    def newest(self) -> FleetState:
        self._check()
        return self.state

    def add(self, state: FleetState) -> bool:
        self._check()
        if state.number != self.state.number + 1:
            return False
        self.state = state
        if self.loses():
            raise FleetStateError("no answer")
        return True

    def _check(self) -> None:
        if self.fails():
            raise FleetStateError("the store is away")


@dataclass
class _Served:
    id: int
    name: str
    version: str
    lacks_memory: Callable[[], bool] = lambda: False


@dataclass
class Models:
    """What one server serves: as much of `serving.Serving` as a fleet needs."""

    unloadable: set[str] = field(default_factory=set)
    unready: set[str] = field(default_factory=set)
    saved: dict[str, dict[str, SavedModel]] = field(default_factory=dict)
    ids: dict[tuple[str, str], int] = field(default_factory=dict)
    on_change: list[Callable[[], None]] = field(default_factory=list)
    awaited: Mapping[tuple[str, str], Awaited] = field(default_factory=dict)
    count: int = 0
    usage: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(worker_memory={}))
    #: How often a version was loaded.
    loads: int = 0
    #: Fails with something that nobody has foreseen, as often as this says.
    defects: int = 0

    def saved_models(self) -> list[SavedModel]:
        if self.defects:
            self.defects -= 1
            raise ZeroDivisionError
        return [each for versions in self.saved.values() for each in versions.values()]

    def get(self, name: str, version: str | None = None) -> _Served:
        versions = self._of(name)
        if version is None:
            version = next(each.version for each in versions.values() if each.default)
        if version not in versions and (name, version) in self.awaited:
            raise ModelAwaited(name, version, "it could not be loaded")
        if version not in versions:
            raise ModelVersionNotFound(name, version)
        return _Served(self.ids[name, version], name, version)

    def versions(self, name: str) -> list[_Served]:
        return [self.get(name, version) for version in self._of(name)]

    def is_loaded(self, model: _Served) -> bool:
        return model.version not in self.unready and bool(self.saved[model.name][model.version].min_workers)

    def status(self, model: _Served) -> ModelStatus:
        saved = self.saved[model.name][model.version]
        numbers = {"min_workers": saved.min_workers or 0, "max_workers": saved.max_workers or 0}
        return ModelStatus(workers=[], queue_remaining=1, queue_pending=0, **numbers)

    def weights(self, name: str) -> dict[str, int]:
        return {version: each.weight for version, each in self._of(name).items() if each.weight}

    def forget_not_loaded(self) -> None:
        pass

    async def register(self, request: RegisterRequest, tell: Tell | None = None) -> RegisterResult:
        name, version = request.url.removesuffix(".mar").split("-")
        await asyncio.sleep(random.random() / 1000)
        if version in self.unloadable:
            raise InvalidModel(f"{request.url} is no model")
        if version in self.saved.get(name, {}):
            raise VersionConflict(name, version)
        saved = _made_of(request, name, version)
        if tell is not None:
            await tell(saved)
            if version in self.saved.get(name, {}):
                raise VersionConflict(name, version)
        self._put(saved.model_copy(update={"default": name not in self.saved}))
        self._changed()
        return RegisterResult(name, version, 1, 1, pending=False)

    async def load(self, model: SavedModel, tell: Tell | None = None) -> _Served:
        await asyncio.sleep(random.random() / 1000)
        self.loads += 1
        if tell is not None:
            await tell(model)
        before = self.saved.get(model.name, {}).get(model.version)
        kept = (
            {"default": before.default, "chosen": before.chosen}
            if before
            else {"default": model.name not in self.saved}
        )
        self._put(model.model_copy(update=kept))
        self._changed()
        return self.get(model.name, model.version)

    def check_scale(self, name: str, version: str | None, least: int, most: int) -> None:
        self.get(name, version)

    async def scale(self, name: str, version: str, least: int, most: int, *, synchronous: bool) -> int | None:
        self._update(name, version, min_workers=least, max_workers=most)
        return least if synchronous else None

    def check_default(self, name: str, version: str, *, force: bool = False) -> None:
        if version not in self._of(name):
            raise DefaultVersionNotFound(name, version)
        if not force and self.is_loaded(self.get(name)) and not self.is_loaded(self.get(name, version)):
            raise VersionNotReady(name, version, "none", "another")

    def set_default(self, name: str, version: str, *, chosen: bool = True, force: bool = False) -> None:
        self.check_default(name, version, force=force)
        for each in self._of(name):
            self._update(name, each, default=each == version, chosen=chosen and each == version)

    def check_weights(self, name: str, weights: Mapping[str, int], *, force: bool = False) -> None:
        for version in weights:
            self.get(name, version)
        if not weights.keys() <= self._of(name).keys():
            raise BadParameter("weights")

    def set_weights(
        self, name: str, weights: Mapping[str, int], *, until: int | None = None, force: bool = False
    ) -> None:
        self.check_weights(name, weights)
        for version in self._of(name):
            weight = weights.get(version, 0)
            self._update(name, version, weight=weight, weight_until=until if weight else None)

    def activity(self, model: _Served) -> None:
        """Nothing runs here."""

    def weights_until(self, name: str) -> int | None:
        return max((each.weight_until for each in self._of(name).values() if each.weight_until), default=None)

    def lapsed(self, now: float) -> list[str]:
        return [name for name in self.saved if (self.weights_until(name) or now) < now]

    def check_unregister(self, name: str, version: str | None) -> str:
        model = self.get(name, version)
        if self.saved[name][model.version].default and len(self.saved[name]) > 1:
            raise DefaultVersionInUse(name)
        return model.version

    async def unregister(self, name: str, version: str | None = None) -> None:
        self._remove(name, self.check_unregister(name, version))

    async def unload(self, name: str, version: str | None = None) -> None:
        for each in [version] if version else list(self._of(name)):
            self._remove(name, each)

    def _remove(self, name: str, version: str) -> None:
        gone = self.saved[name].pop(version)
        del self.ids[name, version]
        if not self.saved[name]:
            del self.saved[name]
        elif gone.default:
            self._update(name, next(iter(self.saved[name])), default=True, chosen=False)
        self._changed()

    def _put(self, saved: SavedModel) -> None:
        self.count += 1
        self.ids[saved.name, saved.version] = self.count
        self.saved.setdefault(saved.name, {})[saved.version] = saved

    def _update(self, name: str, version: str, **fields: object) -> None:
        self.get(name, version)
        self.saved[name][version] = self.saved[name][version].model_copy(update=fields)
        self._changed()

    def _of(self, name: str) -> dict[str, SavedModel]:
        if name not in self.saved:
            raise ModelNotFound(name)
        return self.saved[name]

    def _changed(self) -> None:
        for each in self.on_change:
            each()


class Server:
    """One server of a fleet."""

    def __init__(self, states: States, models: Models | None = None) -> None:
        self.models = models or Models()
        settings = type("Settings", (), {"enable_model_api": True})
        self.calls = ManagementCalls(settings, self.models)  # type: ignore[arg-type]
        self.now = 0.0
        self.member = FleetMember(self.models, states, self.calls.transactions, lambda: self.now)  # type: ignore[arg-type]
        self.calls.transactions.listeners.append(self.member)

    async def look(self, seconds: float = 1.0) -> None:
        """Look at the state, after a while, and end what that has begun."""
        self.now += seconds
        try:
            await self.member.look()
        except FleetStateError:
            pass
        while self.member._working:
            await asyncio.sleep(0)

    @property
    def served(self) -> Mapping[tuple[str, str], tuple[object, ...]]:
        """What counts of each version: workers, default, choice, weight, and what it is made of."""
        return served(self.models.saved_models())


def served(models: Sequence[SavedModel]) -> Mapping[tuple[str, str], tuple[object, ...]]:
    """See `Server.served`."""
    return {
        (each.name, each.version): (
            *(each.min_workers, each.max_workers, each.default, each.chosen),
            *(each.weight or 0, each.batch_size or 1),
        )
        for each in models
    }


def _made_of(request: RegisterRequest, name: str, version: str) -> SavedModel:
    return SavedModel(name=name, version=version, location=request.url).model_copy(
        update={
            "min_workers": request.initial_workers or 0,
            "max_workers": request.max_workers or request.initial_workers or 0,
            "batch_size": request.batch_size or 1,
            "weight": request.weight or 0,
        }
    )
