"""A file that lists the metrics there are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchserve_py.plugin_api import Plugin, SchemaOffer

if TYPE_CHECKING:
    from torchserve_py.base.metrics.metrics_plan import MetricsPlan
    from torchserve_py.base.settings.table import Settings, SettingsSection


def _settings() -> type[SettingsSection]:
    from torchserve_py.ops.metrics_config.metrics_settings import MetricsSettings

    return MetricsSettings


def _metrics_plan(settings: Settings) -> MetricsPlan | None:
    from torchserve_py.ops.metrics_config.metrics_settings import listed_metrics

    return listed_metrics(settings)


def _schema() -> SchemaOffer:
    from torchserve_py.ops.metrics_config.metrics_file import MetricsFile

    return SchemaOffer("metrics.yaml", MetricsFile)


PLUGIN = Plugin(name="metrics_config", settings=_settings, metrics_plan=_metrics_plan, schemas={"metrics": _schema})
