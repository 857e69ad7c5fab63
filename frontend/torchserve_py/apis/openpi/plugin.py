"""Policies of robots, as clients of openpi call them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from torchserve_py.plugin_api import EndpointsOffer, Plugin

if TYPE_CHECKING:
    from torchserve_py.base.settings.schemas.plugin_keys import ModelConfigKeys


def _endpoints() -> Iterable[EndpointsOffer]:
    from torchserve_py.apis.openpi.openpi_endpoints import OpenpiEndpoints

    return [EndpointsOffer("inference_address", OpenpiEndpoints)]


def _model_config() -> type[ModelConfigKeys]:
    from torchserve_py.apis.openpi.openpi_keys import OpenpiKeys

    return OpenpiKeys


PLUGIN = Plugin(
    name="openpi",
    endpoints=_endpoints,
    model_config=_model_config,
)
