"""Paths of KServe V1, KServe V2 and Vertex AI."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from torchserve_py.plugin_api import EndpointsOffer, Plugin

if TYPE_CHECKING:
    from torchserve_py.base.settings.table import SettingsSection


def _endpoints() -> Iterable[EndpointsOffer]:
    from torchserve_py.apis.kserve.kserve_endpoints import KServeEndpoints
    from torchserve_py.apis.kserve.v1_models_endpoints import V1ModelsDoor

    return [EndpointsOffer("inference_address", KServeEndpoints), EndpointsOffer("inference_address", V1ModelsDoor)]


def _settings() -> type[SettingsSection]:
    from torchserve_py.apis.kserve.kserve_settings import KServeSettings

    return KServeSettings


PLUGIN = Plugin(name="kserve", endpoints=_endpoints, settings=_settings)
