"""The settings of the console."""

from torchserve_py.base.settings.table import SettingsSection, Switch, setting


class ConsoleSettings(SettingsSection):
    """The settings of the console."""

    enable_console: Switch = setting(
        True, "serve the console, a page for browsers, at `/console` of the management listener"
    )
