"""What the servers of a fleet serve: a numbered state, of which each change makes the next. Pure.

The text of a state is that of a snapshot (`features.snapshots.snapshot_file`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from torchserve_py.features.snapshots.snapshot_file import Snapshot, parse_snapshot
from torchserve_py.settings.schemas.versions import SavedModel

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

    def with_model(self, saved: SavedModel, *, becomes_default: bool) -> FleetState:
        """Return the next state, in which a version is served as it is saved.

        It is the default version of its name if it becomes that, was that, or is the only one.
        """
        others = [model for model in self.models if (model.name, model.version) != (saved.name, saved.version)]
        of_name = [model for model in others if model.name == saved.name]
        is_default = becomes_default or not any(model.default for model in of_name)
        if is_default:
            others = [_demoted(model) if model.name == saved.name else model for model in others]
        before = self.by_version.get((saved.name, saved.version))
        chosen = is_default and (becomes_default or (before is not None and before.chosen))
        saved = saved.model_copy(update={"default": is_default, "chosen": chosen})
        return replace(self, number=self.number + 1, models=(*others, saved))

    def without_model(self, name: str, version: str) -> FleetState:
        """Return the next state, in which a version is not served; if it was the default one, its name's first one is.

        That is what `models.served_models.Versions.remove` does, too.
        """
        others = [model for model in self.models if (model.name, model.version) != (name, version)]
        heir = next((index for index, model in enumerate(others) if model.name == name), None)
        if heir is not None and not any(model.default for model in others if model.name == name):
            others[heir] = others[heir].model_copy(update={"default": True})
        return replace(self, number=self.number + 1, models=tuple(others))

    def text(self, created: int) -> str:
        """Return the JSON; ``created`` is in milliseconds since 1970. Raises FleetStateError: it is too large."""
        text = str(Snapshot(f"{self.number}", created, tuple(self.models)))
        if (size := len(text.encode())) > MOST_BYTES:
            raise FleetStateError(f"The state of the fleet has {size} bytes, at most {MOST_BYTES} are read.")
        return text


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
    """Where the states are kept. Methods block, and raise FleetStateError."""

    def newest_number(self) -> int:
        """Return the number of the newest state, 0 if there is none."""
        ...

    def newest(self) -> FleetState:
        """Return the newest state, `NOTHING` if there is none."""
        ...

    def add(self, state: FleetState) -> bool:
        """Keep a state as the newest one; return whether it is: not if another server has added one of its number."""
        ...
