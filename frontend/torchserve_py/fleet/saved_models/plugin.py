"""What is served is saved: a server serves it again after a restart, and the servers of a fleet serve the same."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from torchserve_py.plugin_api import BackgroundOffer, Plugin

if TYPE_CHECKING:
    from torchserve_py.base.settings.table import SettingsSection


def _settings() -> type[SettingsSection]:
    from torchserve_py.fleet.saved_models.saved_models_settings import SavedModelsSettings

    return SavedModelsSettings


def _background() -> Iterable[BackgroundOffer]:
    from torchserve_py.fleet.saved_models.fleet_member import belong_to_fleet
    from torchserve_py.fleet.saved_models.snapshot_writer import write_snapshots

    return [
        BackgroundOffer("serving what the fleet serves", belong_to_fleet),
        BackgroundOffer("writing the first snapshot of the configuration", write_snapshots),
    ]


PLUGIN = Plugin(name="saved_models", settings=_settings, background=_background)
