"""Steps of sequences count once, and states are kept as `handler.cache` says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchserve_py.plugin_api import Plugin

if TYPE_CHECKING:
    from torchserve_py.settings.schemas.plugin_keys import ModelConfigKeys


def _model_config() -> type[ModelConfigKeys]:
    from torchserve_py.features.sequence_steps.handler_keys import HandlerKeys

    return HandlerKeys


PLUGIN = Plugin(
    name="sequence_steps",
    steps="ts.features.sequence_steps.opening",
    sequence_states="torchserve_py.features.sequence_steps.kept_states",
    model_config=_model_config,
)
