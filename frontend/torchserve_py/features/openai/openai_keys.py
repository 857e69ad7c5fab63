"""The key of `model-config.yaml` for models with OpenAI's interface."""

from typing import Any, ClassVar

from pydantic import model_validator

from torchserve_py.serving.serving import ServedModel
from torchserve_py.settings.schemas.plugin_keys import ModelConfigKeys
from torchserve_py.settings.schemas.schema import key
from torchserve_py.settings.schemas.values import Flag


class OpenAIKeys(ModelConfigKeys):
    """`model-config.yaml`, of which this feature has one key."""

    handlers_only: ClassVar[str] = "a Truss answers OpenAI's paths by methods of their names, and other code not at all"

    openai: Flag = key(
        "openai",
        "serve the model under [OpenAI's paths](rest-api.md#openais-paths), too: its handler gets the "
        "path as `url_path` and answers as OpenAI does",
        "whether `handler` has `vllm_engine_config`",
    )

    @model_validator(mode="before")
    @classmethod
    def _as_vllm_answers(cls, given: Any) -> Any:
        """A handler that runs vLLM answers as OpenAI does, unless the file says otherwise."""
        if isinstance(given, dict) and given.get("openai") is None:
            handler = given.get("handler")
            if isinstance(handler, dict) and "vllm_engine_config" in handler:
                return {**given, "openai": True}
        return given


def answers_openai(model: ServedModel) -> bool:
    """Return whether a model answers OpenAI's requests."""
    return bool(model.config.plugin_keys.of(OpenAIKeys).openai)
