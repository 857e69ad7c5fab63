"""Workers that are forked from a process that has imported what they need."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchserve_py.plugin_api import Plugin

if TYPE_CHECKING:
    from torchserve_py.base.settings.table import SettingsSection


def _settings() -> type[SettingsSection]:
    from torchserve_py.core.forking.forking_settings import ForkingSettings

    return ForkingSettings


PLUGIN = Plugin(name="forking", settings=_settings)
