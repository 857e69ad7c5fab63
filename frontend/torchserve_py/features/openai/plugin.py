"""OpenAI's completions and embeddings."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from torchserve_py.plugin_api import DoorOffer, Plugin

if TYPE_CHECKING:
    from torchserve_py.settings.schemas.plugin_keys import ModelConfigKeys


def _doors() -> Iterable[DoorOffer]:
    from torchserve_py.features.openai.openai_door import OpenAIDoor

    return [DoorOffer("inference_address", OpenAIDoor)]


def _model_config() -> type[ModelConfigKeys]:
    from torchserve_py.features.openai.openai_keys import OpenAIKeys

    return OpenAIKeys


PLUGIN = Plugin(name="openai", doors=_doors, model_config=_model_config)
