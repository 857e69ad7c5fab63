"""The console: a page that shows what the server does."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from torchserve_py.plugin_api import EndpointsOffer, Plugin

if TYPE_CHECKING:
    from torchserve_py.base.settings.table import SettingsSection


def _endpoints() -> Iterable[EndpointsOffer]:
    from torchserve_py.tools.console.console_endpoints import ConsoleEndpoints

    return [EndpointsOffer("management_address", ConsoleEndpoints)]


def _settings() -> type[SettingsSection]:
    from torchserve_py.tools.console.console_settings import ConsoleSettings

    return ConsoleSettings


PLUGIN = Plugin(
    name="console",
    endpoints=_endpoints,
    settings=_settings,
)
