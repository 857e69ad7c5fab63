"""Where what is served is kept: the settings of snapshots, and of a fleet's state."""

import re
from collections.abc import Iterable, Mapping, MutableMapping
from pathlib import Path
from typing import Annotated, Final

from torchserve_py.base.settings.schemas.values import Parsed
from torchserve_py.base.settings.table import DEFAULT_ORIGIN, Effective, Number, SettingsSection, Source, setting
from torchserve_py.base.settings.value_kinds import checked_path
from torchserve_py.fleet.saved_models.snapshot_file import Snapshot, parse_snapshot
from torchserve_py.sequences.redis.redis_url import redis_url_problem

_SNAPSHOT: Final = Parsed("the JSON of a snapshot that a server has written", lambda text, _: parse_snapshot(text))


def _place(text: str, base: Path) -> str:
    text = text.strip()
    if not text:
        raise ValueError
    if "://" not in text:
        return str(checked_path(base / text))
    if problem := redis_url_problem(text):
        raise ValueError(f"it {problem}")
    return text


_PLACE: Final = Parsed("a folder that all servers share, or the URL of a Redis database", _place)


def _name(text: str, base: Path) -> str:
    if not re.fullmatch(r"[\w.-]{1,100}", text) or text in {".", ".."}:
        raise ValueError
    return text


_NAME: Final = Parsed("a name of letters, digits, points, hyphens and underscores", _name)


class SavedModelsSettings(SettingsSection):
    """Where a server, or the servers of a fleet together, keep what they serve, and what snapshots hold."""

    fleet_state: Annotated[str | None, _PLACE] = setting(
        None, "where the servers of a [fleet](fleet.md) share what they serve", repr=False
    )
    fleet_name: Annotated[str | None, _NAME] = setting(
        None, "name of the fleet; fleets with one folder or database need different names"
    )
    model_snapshot: Annotated[Snapshot | None, _SNAPSHOT, Source(env=None)] = setting(
        None, "models to serve instead of `load_models`; from a [snapshot](#snapshots)"
    )
    snapshots_kept: Number = setting(10, "how many snapshots are kept")

    @classmethod
    def settle(cls, effective: MutableMapping[str, Effective]) -> Iterable[str]:
        """Drop the models of a snapshot where the command line names others, as flags win over every file."""
        models, snapshot = effective.get("load_models"), effective.get("model_snapshot")
        if models and snapshot and snapshot.value and models.origin.startswith("flag "):
            effective["model_snapshot"] = Effective(None, DEFAULT_ORIGIN)
            others = f"those of {snapshot.origin} are not; start without the flag to have these back"
            yield f"{models.origin} says which models are loaded, so {others}"

    @classmethod
    def contradictions(cls, effective: Mapping[str, Effective]) -> Iterable[str]:
        """Yield a line for each model whose archive is missing."""
        snapshot, store = effective.get("model_snapshot"), effective.get("model_store")
        if snapshot and snapshot.value and store:
            yield from snapshot.value.missing(store.value)
