"""The settings that say whether, how and how often the host is measured."""

import shlex
from pathlib import Path
from typing import Annotated

from torchserve_py.base.settings.schemas.values import MAX_LONG, Parsed, integer
from torchserve_py.base.settings.table import SettingsSection, Source, Switch, setting


def _command(text: str, _: Path) -> str:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ValueError(str(error).lower()) from None
    if not words:
        raise ValueError
    return text.strip()


class SystemSettings(SettingsSection):
    """Measuring the host."""

    disable_system_metrics: Switch = setting(False, "no metrics of the host")
    system_metrics_cmd: Annotated[str | None, Parsed("a command line", _command), Source(env=None)] = setting(
        None,
        "Python script and arguments that [print metrics of the host](metrics.md#series-with-torchserves-names)",
        "built in",
    )
    metric_time_interval: Annotated[int, integer(1, MAX_LONG, "seconds"), Source(env=None)] = setting(
        60, "pause between collections of host metrics"
    )
