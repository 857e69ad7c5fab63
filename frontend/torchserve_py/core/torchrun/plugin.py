"""torchrun, which starts the processes of parallel workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchserve_py.plugin_api import Plugin

if TYPE_CHECKING:
    from torchserve_py.base.settings.schemas.plugin_keys import ModelConfigKeys


def _model_config() -> type[ModelConfigKeys]:
    from torchserve_py.core.torchrun.torchrun_keys import TorchrunKeys

    return TorchrunKeys


PLUGIN = Plugin(name="torchrun", model_config=_model_config)
