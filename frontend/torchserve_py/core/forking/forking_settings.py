"""The setting of forked workers."""

from torchserve_py.base.settings.table import SettingsSection, Switch, setting


class ForkingSettings(SettingsSection):
    """Whether workers are forked."""

    fork_workers: Switch = setting(
        True, "fork workers of models that use torch from a process that has imported it (Linux)"
    )
