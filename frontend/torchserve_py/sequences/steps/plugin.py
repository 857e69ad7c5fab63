"""Steps of sequences count once, and states are kept as `handler.cache` says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchserve_py.plugin_api import Plugin

if TYPE_CHECKING:
    from torchserve_py.base.settings.schemas.plugin_keys import ModelConfigKeys


def _model_config() -> type[ModelConfigKeys]:
    from torchserve_py.sequences.steps.handler_keys import HandlerKeys

    return HandlerKeys


PLUGIN = Plugin(name="sequence_steps", model_config=_model_config)
