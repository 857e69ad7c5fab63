"""The settings of the console."""

from torchserve_py.base.settings.table import SettingsSection, Switch, setting


class ConsoleSettings(SettingsSection):
    """The settings of the console."""

    enable_console: Switch = setting(
        True, "serve [the console](dashboards.md#console) at `/console` of the management listener"
    )
