"""How handlers built on `BaseHandler` compute."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchserve_py.plugin_api import Plugin

if TYPE_CHECKING:
    from torchserve_py.base.settings.schemas.plugin_keys import ModelConfigKeys


def _model_config() -> type[ModelConfigKeys]:
    from torchserve_py.contracts.computing.computing_keys import ComputingKeys

    return ComputingKeys


PLUGIN = Plugin(name="computing", model_config=_model_config)
