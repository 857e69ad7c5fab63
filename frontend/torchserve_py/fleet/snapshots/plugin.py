"""Snapshots: a server that is restarted serves what it served before."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from torchserve_py.plugin_api import BackgroundOffer, Plugin

if TYPE_CHECKING:
    from torchserve_py.base.settings.table import SettingsSection


def _settings() -> type[SettingsSection]:
    from torchserve_py.fleet.snapshots.snapshot_settings import SnapshotSettings

    return SnapshotSettings


def _background() -> Iterable[BackgroundOffer]:
    from torchserve_py.fleet.snapshots.snapshot_writer import write_snapshots

    return [BackgroundOffer("writing the first snapshot of the configuration", write_snapshots)]


PLUGIN = Plugin(name="snapshots", settings=_settings, background=_background)
