"""The number of workers follows the load."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchserve_py.plugin_api import Plugin

if TYPE_CHECKING:
    from torchserve_py.base.settings.schemas.plugin_keys import ModelConfigKeys


def _model_config() -> type[ModelConfigKeys]:
    from torchserve_py.fleet.scaling.scaling_keys import ScalingKeys

    return ScalingKeys


PLUGIN = Plugin(name="scaling", model_config=_model_config)
