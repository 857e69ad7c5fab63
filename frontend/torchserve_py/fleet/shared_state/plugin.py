"""The servers of a fleet serve the same models."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from torchserve_py.plugin_api import BackgroundOffer, Plugin

if TYPE_CHECKING:
    from torchserve_py.base.settings.table import SettingsSection


def _settings() -> type[SettingsSection]:
    from torchserve_py.fleet.shared_state.fleet_settings import FleetSettings

    return FleetSettings


def _background() -> Iterable[BackgroundOffer]:
    from torchserve_py.fleet.shared_state.fleet_member import belong_to_fleet

    return [BackgroundOffer("serving what the fleet serves", belong_to_fleet)]


PLUGIN = Plugin(name="fleet", settings=_settings, background=_background)
