"""What a server does to serve what its fleet serves: all of the wanted state is compared with all that is here. Pure.

Nothing depends on how the state came about, so servers that miss changes, or see them in another order, come to the
same end. For each model: first what is missing comes, then the requests move to versions that are ready, and only then
what is no longer wanted goes. A version that answers requests here stays until another one can, if there is memory for
both.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

from torchserve_py.base.settings.schemas.versions import SavedModel
from torchserve_py.fleet.saved_models.fleet_state import FleetState, ModelVersion

#: What tells how, rather than how often and for whom, a version is served.
_HOW_MANY_AND_FOR_WHOM: Final[Mapping[str, Any]] = {
    "default": False,
    "chosen": False,
    "weight": None,
    "weight_until": None,
    "min_workers": None,
    "max_workers": None,
}
_NOTHING: Final[Mapping[ModelVersion, SavedModel]] = {}


class Here(NamedTuple):
    """A version that this server serves.

    ``applied`` is the registration of the fleet that it was made of, None if that is not known.
    """

    saved: SavedModel
    is_ready: bool
    lacks_memory: bool = False
    applied: SavedModel | None = None


class FollowingStep(NamedTuple):
    """Something to do with a version, or with a model (its version is empty then). ``value`` tells what."""

    kind: Literal["register", "load", "scale", "choose", "weigh", "unregister"]
    key: ModelVersion
    value: Any


@dataclass(frozen=True)
class FollowingPlan:
    """What to do in this order, and what cannot be done yet: by model, why."""

    steps: Sequence[FollowingStep]
    blocked: Mapping[str, str] = field(default_factory=dict)


def plan(wanted: FleetState, here: Mapping[ModelVersion, Here], held: Container[str] = ()) -> FollowingPlan:
    """Compare what the fleet serves with what is served here; leave models alone that something else holds."""
    names = dict.fromkeys([*(each.name for each in wanted.models), *(name for name, _ in here)])
    wanted_of, here_of = _by_name(wanted.by_version), _by_name(here)
    steps: list[FollowingStep] = []
    blocked: dict[str, str] = {}
    for name in names:
        if name not in held:
            of_model = _OfModel(name, wanted_of.get(name, {}), here_of.get(name, {}))
            steps += of_model.steps()
            if why := of_model.why_blocked:
                blocked[name] = why
    return FollowingPlan(steps, blocked)


@dataclass
class _OfModel:
    """The versions of one model, by version."""

    name: str
    wanted: Mapping[str, SavedModel]
    here: Mapping[str, Here]

    def __post_init__(self) -> None:
        self.default = next((each.version for each in self.wanted.values() if each.default), None)
        self.weights = {version: each.weight for version, each in self.wanted.items() if each.weight}
        self.weights_now = {version: each.saved.weight for version, each in self.here.items() if each.saved.weight}
        self.until = _until(self.wanted.values())
        self.until_now = _until(each.saved for each in self.here.values())
        default_now = next((each.saved.version for each in self.here.values() if each.saved.default), None)
        self.now = _shares(self.weights_now, default_now)
        self.then = _shares(self.weights, self.default)
        self.why_blocked = self._blocked()

    def steps(self) -> Iterator[FollowingStep]:
        """Yield what to do."""
        for version, saved in self.wanted.items():
            served = self.here.get(version)
            if served is None:
                yield self._step("register", version, saved)
            elif not _is_made_of(saved, served):
                yield self._step("load", version, saved)
        if self.default in self.here and not self.why_blocked:
            yield from self._switch()
        for version, saved in self.wanted.items():
            if (served := self.here.get(version)) is not None:
                yield from self._scaled(version, saved, served.saved)
        gone = [version for version in self.here if version not in self.wanted and not self._stays(version)]
        for version in sorted(gone, key=lambda each: self.here[each].saved.default):  # a default version ends last
            yield self._step("unregister", version, None)

    def _switch(self) -> Iterator[FollowingStep]:
        assert self.default is not None
        chosen, now = self.wanted[self.default].chosen, self.here[self.default].saved
        if not now.default or now.chosen != chosen:
            yield self._step("choose", self.default, chosen)
        weights = {version: weight for version, weight in self.weights.items() if version in self.here}
        if weights != self.weights_now or (weights and self.until != self.until_now):
            yield self._step("weigh", "", (weights, self.until))

    def _scaled(self, version: str, saved: SavedModel, now: SavedModel) -> Iterator[FollowingStep]:
        numbers = saved.min_workers or 0, saved.max_workers or 0
        numbers_now = now.min_workers or 0, now.max_workers or 0
        if self._stays(version):  # no fewer than now, until another version has its requests
            numbers = max(numbers[0], numbers_now[0]), max(numbers[1], numbers_now[1])
        if numbers != numbers_now:
            yield self._step("scale", version, numbers)

    def _stays(self, version: str) -> bool:
        """Return whether a version answers requests here that no other one can take yet."""
        return bool(self.why_blocked) and version in self.now

    def _blocked(self) -> str:
        """Return why requests cannot move yet to the versions that are to have them.

        They can where nothing that answers them now is ready, where no workers are wanted (an operator insists), and
        where memory is lacking as long as the old version has it.
        """
        if not self.wanted or not self.here or self.default is None:
            return ""
        missing = next((each for each in self.then if each not in self.here), None)
        if missing is not None:
            return f"version {missing} is not loaded"
        loses = any(share > self.then.get(each, 0) and self.here[each].is_ready for each, share in self.now.items())
        gaining = [each for each, share in self.then.items() if share > self.now.get(each, 0)]
        waiting = [each for each in gaining if not self.here[each].is_ready and self.wanted[each].min_workers]
        if not loses or not waiting or any(self.here[each].lacks_memory for each in waiting):
            return ""
        return f"version {waiting[0]} has no ready worker"

    def _step(self, kind: Any, version: str, value: Any) -> FollowingStep:
        return FollowingStep(kind, (self.name, version), value)


def _is_made_of(wanted: SavedModel, served: Here) -> bool:
    """Return whether a version is registered as it is to be; what the fleet leaves open is settled by each server."""
    if served.applied is not None:
        return registration(wanted) == served.applied
    asked = registration(wanted).model_dump(exclude_none=True)
    return asked.items() <= registration(served.saved).model_dump().items()


def registration(saved: SavedModel) -> SavedModel:
    """Return what a version is registered with."""
    return saved.model_copy(update=_HOW_MANY_AND_FOR_WHOM)


def _shares(weights: Mapping[str, int], default: str | None) -> Mapping[str, float]:
    total = sum(weights.values())
    if total:
        return {version: weight / total for version, weight in weights.items()}
    return {} if default is None else {default: 1.0}


def _until(models: Iterable[SavedModel]) -> int | None:
    """Return when weights end unless somebody moves that on, None if they stay."""
    return max((each.weight_until for each in models if each.weight and each.weight_until), default=None)


def _by_name(models: Mapping[ModelVersion, Any]) -> Mapping[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for (name, version), each in models.items():
        found.setdefault(name, {})[version] = each
    return found
