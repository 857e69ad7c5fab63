"""Workers run as another user, or with a limit on memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchserve_py.plugin_api import Plugin

if TYPE_CHECKING:
    from torchserve_py.base.settings.table import SettingsSection


def _settings() -> type[SettingsSection]:
    from torchserve_py.core.confinement.confinement_settings import ConfinementSettings

    return ConfinementSettings


PLUGIN = Plugin(name="confinement", settings=_settings)
