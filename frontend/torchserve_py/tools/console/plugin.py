"""The console: a page that shows what the server does."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from torchserve_py.plugin_api import DoorOffer, Plugin

if TYPE_CHECKING:
    from torchserve_py.base.settings.table import SettingsSection


def _doors() -> Iterable[DoorOffer]:
    from torchserve_py.tools.console.console_door import ConsoleDoor

    return [DoorOffer("management_address", ConsoleDoor)]


def _settings() -> type[SettingsSection]:
    from torchserve_py.tools.console.console_settings import ConsoleSettings

    return ConsoleSettings


PLUGIN = Plugin(
    name="console",
    doors=_doors,
    settings=_settings,
)
