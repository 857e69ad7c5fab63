"""What the servers of a fleet serve: a numbered state, of which each change makes the next. Pure.

The text of a state is that of a snapshot (`fleet.saved_models.snapshot_file`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from torchserve_py.base.settings.schemas.versions import SavedModel
from torchserve_py.core.serving.errors import ModelVersionNotFound
from torchserve_py.core.serving.weights import weights_without
from torchserve_py.endpoints.management.edits import (
    DefaultChosen,
    Edit,
    Lapsed,
    Registered,
    Scaled,
    Unregistered,
    Weighted,
)
from torchserve_py.fleet.saved_models.snapshot_file import Snapshot, parse_snapshot

#: A model, and its version.
ModelVersion = tuple[str, str]
#: The most bytes of a state that are read: some ten thousand models.
MOST_BYTES: Final = 16 << 20


class FleetStateError(Exception):
    """The state of the fleet cannot be read or written; the message says what and where."""


@dataclass(frozen=True, slots=True)
class FleetState:
    """The models of a fleet, after so many changes; of each name one version is the default."""

    number: int
    models: Sequence[SavedModel]

    @property
    def by_version(self) -> Mapping[ModelVersion, SavedModel]:
        """The models by name and version."""
        return {(model.name, model.version): model for model in self.models}

    def with_edit(self, edit: Edit) -> FleetState:
        """Return the next state, which differs in what an edit changes; this one if that is nothing.

        Raises ModelVersionNotFound: the edit is about a version that the fleet does not serve any more.
        """
        match edit:
            case Registered(saved):
                models = self._registered(saved)
            case Unregistered(name, versions):
                models = self._without(name, versions)
            case Scaled(name, version, min_workers, max_workers):
                self._check(name, version)
                numbers = {"min_workers": min_workers, "max_workers": max_workers}
                models = [_updated(each, numbers, each.version == version, name) for each in self.models]
            case DefaultChosen(name, version):
                self._check(name, version)
                models = self._with_default(name, version)
            case Weighted(name, weights, instead_of, until):
                for version in weights:
                    self._check(name, version)
                is_due = instead_of is None or instead_of == self.weights(name)
                models = self._weighted(name, weights, until) if is_due else self.models
            case Lapsed(name, until):
                ends = {each.weight_until for each in self.models if each.name == name and each.weight}
                models = self._weighted(name, {}, None) if ends == {until} else self.models
        return self if list(models) == list(self.models) else FleetState(self.number + 1, tuple(models))

    def with_edits(self, edits: Iterable[Edit]) -> FleetState:
        """Return the next state, which differs in what some edits change. Raises as `with_edit`."""
        state = self
        for edit in edits:
            state = state.with_edit(edit)
        return self if list(state.models) == list(self.models) else replace(state, number=self.number + 1)

    def weights(self, name: str) -> Mapping[str, int]:
        """Return the weight of each version of a model that has one."""
        return {each.version: each.weight for each in self.models if each.name == name and each.weight}

    def _weighted(self, name: str, weights: Mapping[str, int], until: int | None) -> Sequence[SavedModel]:
        def changed(version: str) -> Mapping[str, Any]:
            weight = weights.get(version, 0)
            return {"weight": weight, "weight_until": until if weight else None}

        return [
            _updated(each, changed(each.version), each.weight or each.version in weights, name) for each in self.models
        ]

    def _check(self, name: str, version: str) -> None:
        if (name, version) not in self.by_version:
            raise ModelVersionNotFound(name, version)

    def _registered(self, saved: SavedModel) -> Sequence[SavedModel]:
        """Return the models with one that is registered; what it has apart from its registration it keeps."""
        before = self.by_version.get((saved.name, saved.version))
        if before is not None:
            kept: dict[str, Any] = {"weight": before.weight, "weight_until": before.weight_until}
            kept["chosen"] = before.chosen or saved.chosen
            if before.min_workers:
                kept |= {"min_workers": before.min_workers, "max_workers": before.max_workers}
            saved = saved.model_copy(update=kept)
        others_default = any(each.default for each in self.models if each.name == saved.name and each != before)
        is_default = saved.default or not others_default
        chosen = is_default and saved.chosen
        saved = saved.model_copy(update={"default": is_default, "chosen": chosen})
        others = [each if each.name != saved.name or not is_default else _demoted(each) for each in self.models]
        if before is None:
            return [*others, saved]
        return [saved if (each.name, each.version) == (saved.name, saved.version) else each for each in others]

    def _with_default(self, name: str, version: str) -> Sequence[SavedModel]:
        chosen = {"default": True, "chosen": True}
        return [
            each if each.name != name else each.model_copy(update=chosen) if each.version == version else _demoted(each)
            for each in self.models
        ]

    def _without(self, name: str, versions: Iterable[str]) -> Sequence[SavedModel]:
        """Return the models without some versions; if the default one was among them, the first that stays is it.

        Those that stay share the weights of those that go. That is what `models.registry` does, too.
        """
        gone = set(versions)
        others = [each for each in self.models if each.name != name or each.version not in gone]
        weights = weights_without(self.weights(name), gone, sum(each.name == name for each in others))
        others = [_updated(each, {"weight": weights.get(each.version, 0)}, each.weight, name) for each in others]
        heir = next((index for index, each in enumerate(others) if each.name == name), None)
        if heir is not None and not any(each.default for each in others if each.name == name):
            others[heir] = others[heir].model_copy(update={"default": True})
        return others

    def text(self, created: int) -> str:
        """Return the JSON; ``created`` is in milliseconds since 1970. Raises FleetStateError: it is too large."""
        text = str(Snapshot(f"{self.number}", created, tuple(self.models)))
        if (size := len(text.encode())) > MOST_BYTES:
            raise FleetStateError(f"The state of the fleet has {size} bytes, at most {MOST_BYTES} are read.")
        return text


def _updated(model: SavedModel, fields: Mapping[str, Any], is_concerned: object, name: str) -> SavedModel:
    return model.model_copy(update=fields) if model.name == name and is_concerned else model


def _demoted(model: SavedModel) -> SavedModel:
    return model.model_copy(update={"default": False, "chosen": False})


def read_state(text: str, number: int, where: str) -> FleetState:
    """Read a state. Raises FleetStateError: it is damaged."""
    try:
        return FleetState(number, parse_snapshot(text).models)
    except ValueError as error:
        raise FleetStateError(f"{where} is no state of a fleet: {error}; repair it, or remove it.") from None


#: What a fleet serves before a server has said so.
NOTHING: Final = FleetState(0, ())


class StateStore(Protocol):
    """Where the states are kept. Methods block, and raise FleetStateError.

    ``name`` is what the place is called in messages.
    """

    name: str

    def newest_number(self) -> int:
        """Return the number of the newest state, 0 if there is none."""
        ...

    def newest(self) -> FleetState:
        """Return the newest state, `NOTHING` if there is none."""
        ...

    def add(self, state: FleetState) -> bool:
        """Keep a state as the newest one; return whether it is: not if another server has added one of its number."""
        ...
