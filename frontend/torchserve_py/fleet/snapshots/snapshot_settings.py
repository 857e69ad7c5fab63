"""The settings of snapshots."""

from collections.abc import Iterable, Mapping, MutableMapping
from typing import Annotated

from torchserve_py.base.settings.schemas.values import Parsed
from torchserve_py.base.settings.table import DEFAULT_ORIGIN, Effective, Number, SettingsSection, Source, setting
from torchserve_py.fleet.snapshots.snapshot_file import Snapshot, parse_snapshot

_SNAPSHOT = Parsed("the JSON of a snapshot that a server has written", lambda text, _: parse_snapshot(text))


class SnapshotSettings(SettingsSection):
    """What snapshots hold, and how many there are."""

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
