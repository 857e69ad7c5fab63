"""Which metrics there are, and ``/metrics``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from torchserve_py.plugin_api import EndpointsOffer, Plugin, SchemaOffer

if TYPE_CHECKING:
    from torchserve_py.base.settings.table import SettingsSection


def _endpoints() -> Iterable[EndpointsOffer]:
    from torchserve_py.ops.metrics.metrics_endpoints import MetricsEndpoints

    return [EndpointsOffer("metrics_address", MetricsEndpoints)]


def _settings() -> type[SettingsSection]:
    from torchserve_py.ops.metrics.metrics_settings import MetricsSettings

    return MetricsSettings


def _schema() -> SchemaOffer:
    from torchserve_py.ops.metrics.metrics_file import MetricsFile

    return SchemaOffer("metrics.yaml", MetricsFile)


PLUGIN = Plugin(name="metrics", endpoints=_endpoints, settings=_settings, schemas={"metrics": _schema})
