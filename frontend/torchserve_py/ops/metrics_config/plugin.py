"""A file that lists the metrics there are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchserve_py.plugin_api import Plugin, SchemaOffer

if TYPE_CHECKING:
    from torchserve_py.base.settings.table import SettingsSection


def _settings() -> type[SettingsSection]:
    from torchserve_py.ops.metrics_config.metrics_settings import MetricsSettings

    return MetricsSettings


def _schema() -> SchemaOffer:
    from torchserve_py.ops.metrics_config.metrics_file import MetricsFile

    return SchemaOffer("metrics.yaml", MetricsFile)


PLUGIN = Plugin(name="metrics_config", settings=_settings, schemas={"metrics": _schema})
