"""OpenAI's realtime API."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from torchserve_py.plugin_api import EndpointsOffer, Plugin

if TYPE_CHECKING:
    from torchserve_py.base.settings.schemas.plugin_keys import ModelConfigKeys


def _endpoints() -> Iterable[EndpointsOffer]:
    from torchserve_py.apis.realtime.realtime_endpoints import RealtimeEndpoints

    return [EndpointsOffer("inference_address", RealtimeEndpoints)]


def _model_config() -> type[ModelConfigKeys]:
    from torchserve_py.apis.realtime.realtime_keys import RealtimeKeys

    return RealtimeKeys


PLUGIN = Plugin(name="realtime", endpoints=_endpoints, model_config=_model_config)
