"""Snapshots: a server that is restarted serves what it served before."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from torchserve_py.plugin_api import BackgroundOffer, Plugin, Restored

if TYPE_CHECKING:
    from torchserve_py.base.settings.table import Settings, SettingsSection


def _settings() -> type[SettingsSection]:
    from torchserve_py.fleet.snapshots.snapshot_settings import SnapshotSettings

    return SnapshotSettings


def _restored(settings: Settings) -> Restored | None:
    from torchserve_py.fleet.snapshots.snapshot_settings import SnapshotSettings

    snapshot = settings.of(SnapshotSettings).model_snapshot
    return None if snapshot is None else Restored(snapshot.models, snapshot.not_loaded)


def _background() -> Iterable[BackgroundOffer]:
    from torchserve_py.fleet.snapshots.snapshot_writer import write_snapshots

    return [BackgroundOffer("writing the first snapshot of the configuration", write_snapshots)]


PLUGIN = Plugin(name="snapshots", settings=_settings, restored=_restored, background=_background)
