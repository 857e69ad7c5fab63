"""The servers of a fleet serve the same models."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from torchserve_py.plugin_api import BackgroundOffer, Plugin, Restored

if TYPE_CHECKING:
    from torchserve_py.base.settings.table import Settings, SettingsSection


def _settings() -> type[SettingsSection]:
    from torchserve_py.fleet.shared_state.fleet_settings import FleetSettings

    return FleetSettings


def _restored(settings: Settings) -> Restored | None:
    from torchserve_py.fleet.shared_state.fleet_member import restored

    return restored(settings)


def _background() -> Iterable[BackgroundOffer]:
    from torchserve_py.fleet.shared_state.fleet_member import belong_to_fleet

    return [BackgroundOffer("serving what the fleet serves", belong_to_fleet)]


PLUGIN = Plugin(
    name="fleet",
    settings=_settings,
    restored=_restored,
    background=_background,
)
