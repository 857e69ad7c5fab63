"""Pages of other sites are kept away from a server without keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchserve_py.plugin_api import Plugin

if TYPE_CHECKING:
    from torchserve_py.base.settings.table import SettingsSection


def _settings() -> type[SettingsSection]:
    from torchserve_py.ops.browser_guard.guard_settings import GuardSettings

    return GuardSettings


PLUGIN = Plugin(name="browser_guard", settings=_settings)
