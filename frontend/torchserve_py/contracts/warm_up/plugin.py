"""Requests that each worker runs before it is ready."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchserve_py.plugin_api import Plugin

if TYPE_CHECKING:
    from torchserve_py.base.settings.schemas.plugin_keys import ModelConfigKeys


def _model_config() -> type[ModelConfigKeys]:
    from torchserve_py.contracts.warm_up.warm_up_keys import WarmUpKeys

    return WarmUpKeys


PLUGIN = Plugin(name="warm_up", model_config=_model_config)
