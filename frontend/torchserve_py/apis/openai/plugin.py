"""OpenAI's completions and embeddings, responses and conversations."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from torchserve_py.plugin_api import BackgroundOffer, EndpointsOffer, Plugin

if TYPE_CHECKING:
    from torchserve_py.base.settings.schemas.plugin_keys import ModelConfigKeys


def _endpoints() -> Iterable[EndpointsOffer]:
    from torchserve_py.apis.openai.openai_endpoints import OpenAIEndpoints
    from torchserve_py.apis.openai.responses_endpoints import ResponsesEndpoints

    return [
        EndpointsOffer("inference_address", OpenAIEndpoints),
        EndpointsOffer("inference_address", ResponsesEndpoints),
    ]


def _background() -> Iterable[BackgroundOffer]:
    from torchserve_py.apis.openai.background_runs import continue_runs

    return [BackgroundOffer("going on with responses in the background", continue_runs)]


def _model_config() -> type[ModelConfigKeys]:
    from torchserve_py.apis.openai.openai_keys import OpenAIKeys

    return OpenAIKeys


PLUGIN = Plugin(
    name="openai",
    endpoints=_endpoints,
    background=_background,
    model_config=_model_config,
)
