"""OpenAI's completions and embeddings, responses and conversations."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from torchserve_py.plugin_api import DoorOffer, Plugin

if TYPE_CHECKING:
    from torchserve_py.base.settings.schemas.plugin_keys import ModelConfigKeys


def _doors() -> Iterable[DoorOffer]:
    from torchserve_py.apis.openai.openai_door import OpenAIDoor
    from torchserve_py.apis.openai.responses_door import ResponsesDoor

    return [DoorOffer("inference_address", OpenAIDoor), DoorOffer("inference_address", ResponsesDoor)]


def _model_config() -> type[ModelConfigKeys]:
    from torchserve_py.apis.openai.openai_keys import OpenAIKeys

    return OpenAIKeys


PLUGIN = Plugin(
    name="openai",
    doors=_doors,
    model_config=_model_config,
)
