"""``/models/{model}/traffic`` of the management API."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from torchserve_py.plugin_api import BackgroundOffer, EndpointsOffer, Plugin

if TYPE_CHECKING:
    from torchserve_py.base.settings.schemas.plugin_keys import ModelConfigKeys
    from torchserve_py.base.settings.table import SettingsSection


def _endpoints() -> Iterable[EndpointsOffer]:
    from torchserve_py.versions.traffic.shadow_endpoints import ShadowEndpoints
    from torchserve_py.versions.traffic.traffic_endpoints import TrafficEndpoints
    from torchserve_py.versions.traffic.traffic_start import TrafficStart

    return [
        EndpointsOffer("inference_address", TrafficStart),
        EndpointsOffer("management_address", TrafficEndpoints),
        EndpointsOffer("management_address", ShadowEndpoints),
    ]


def _settings() -> type[SettingsSection]:
    from torchserve_py.versions.traffic.traffic_settings import TrafficSettings

    return TrafficSettings


def _background() -> Iterable[BackgroundOffer]:
    from torchserve_py.versions.traffic.traffic_care import care_for_traffic

    return [BackgroundOffer("judging canaries", care_for_traffic)]


def _model_config() -> type[ModelConfigKeys]:
    from torchserve_py.versions.traffic.traffic_keys import TrafficKeys

    return TrafficKeys


PLUGIN = Plugin(
    name="traffic",
    endpoints=_endpoints,
    background=_background,
    settings=_settings,
    model_config=_model_config,
)
