"""The Open Inference Protocol over REST."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from torchserve_py.plugin_api import EndpointsOffer, Plugin

if TYPE_CHECKING:
    from torchserve_py.base.settings.schemas.plugin_keys import ModelConfigKeys
    from torchserve_py.base.settings.table import SettingsSection


def _endpoints() -> Iterable[EndpointsOffer]:
    from torchserve_py.apis.open_inference.open_inference_endpoints import OpenInferenceEndpoints

    return [EndpointsOffer("inference_address", OpenInferenceEndpoints)]


def _settings() -> type[SettingsSection]:
    from torchserve_py.apis.open_inference.open_inference_settings import OpenInferenceSettings

    return OpenInferenceSettings


def _model_config() -> type[ModelConfigKeys]:
    from torchserve_py.apis.open_inference.open_inference_keys import OpenInferenceKeys

    return OpenInferenceKeys


PLUGIN = Plugin(
    name="open_inference",
    endpoints=_endpoints,
    settings=_settings,
    model_config=_model_config,
)
