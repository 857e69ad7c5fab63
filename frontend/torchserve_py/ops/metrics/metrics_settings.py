"""The settings that name the file with the metrics."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

from torchserve_py.base.metrics.metrics_plan import MetricsPlan
from torchserve_py.base.settings.schemas.values import Parsed
from torchserve_py.base.settings.table import Settings, SettingsSection, Switch, setting
from torchserve_py.base.settings.value_kinds import existing_file


def _metrics_config(text: str, base: Path) -> Path:
    from torchserve_py.ops.metrics.metrics_file import read_metrics_config  # most servers have no such file

    path = existing_file(text, base)
    read_metrics_config(path)  # for its errors
    return path


class MetricsSettings(SettingsSection):
    """Which metrics there are."""

    metrics_config: Annotated[Path | None, Parsed("a file as docs/metrics.md describes it", _metrics_config)] = setting(
        None, "YAML file that [lists the metrics](metrics.md#metricsyaml)", "built in"
    )
    model_metrics_auto_detect: Switch = setting(False, "let handlers add metrics that `metrics_config` does not list")


def listed_metrics(settings: Settings) -> MetricsPlan | None:
    """Return the metrics that the file lists; None: there is no file."""
    own = settings.of(MetricsSettings)
    if own.metrics_config is None:
        return None
    from torchserve_py.ops.metrics.metrics_file import read_metrics_config

    return replace(read_metrics_config(own.metrics_config), accepts_unlisted=own.model_metrics_auto_detect)
