"""Models sleep where they would have to be unloaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchserve_py.plugin_api import Plugin

if TYPE_CHECKING:
    from torchserve_py.base.settings.schemas.plugin_keys import ModelConfigKeys


def _model_config() -> type[ModelConfigKeys]:
    from torchserve_py.fleet.sleeping.sleeping_keys import SleepingKeys

    return SleepingKeys


PLUGIN = Plugin(name="sleeping", model_config=_model_config)
