"""The keys of `model-config.yaml` for models with OpenAI's interface."""

from typing import Annotated, Any, ClassVar, Final

from pydantic import model_validator

from torchserve_py.base.settings.schemas.plugin_keys import ModelConfigKeys
from torchserve_py.base.settings.schemas.schema import key
from torchserve_py.base.settings.schemas.values import TEXTS, Flag
from torchserve_py.core.serving.serving import ServedModel

#: Among the names of a model: all that no other model has.
ANY_NAME: Final = "*"


class OpenAIKeys(ModelConfigKeys):
    """`model-config.yaml`, as far as it is about OpenAI's interface."""

    handlers_only: ClassVar[str] = "a Truss answers OpenAI's paths by methods of their names, and other code not at all"
    prepares: ClassVar[str] = "ts.apis.openai.conversation_log"

    openai: Flag = key(
        "openai",
        "serve the model under [OpenAI paths](rest-api.md#openai-paths)",
        "whether `handler` has `vllm_engine_config`",
    )

    openai_models: Annotated[list[str] | None, TEXTS] = key(
        "openaiModels",
        "further names for OpenAI clients; `*`: all that no other model has",
        "the names that `handler.vllm_engine_config` and `handler.adapters` have",
    )

    @model_validator(mode="before")
    @classmethod
    def _as_vllm_answers(cls, given: Any) -> Any:
        """A handler that runs vLLM answers as OpenAI does, unless the file says otherwise."""
        if not isinstance(given, dict):
            return given
        handler = given.get("handler")
        if not isinstance(handler, dict) or not isinstance(engine := handler.get("vllm_engine_config"), dict):
            return given
        defaults = {"openai": True, "openaiModels": _names_of_vllm(engine, handler.get("adapters"))}
        return {**given, **{name: value for name, value in defaults.items() if given.get(name) is None}}

    def for_worker(self, batch_size: int) -> Any:
        return True if self.openai else None


def answers_openai(model: ServedModel) -> bool:
    """Return whether a model answers OpenAI's requests."""
    return bool(model.config.plugin_keys.of(OpenAIKeys).openai)


def names_of(model: ServedModel) -> list[str]:
    """Return the names by which OpenAI's clients may ask for a model; empty if it does not answer them."""
    keys = model.config.plugin_keys.of(OpenAIKeys)
    return list(dict.fromkeys((model.name, *(keys.openai_models or ())))) if answers_openai(model) else []


def _names_of_vllm(engine: dict[Any, Any], adapters: Any) -> list[str]:
    served = engine.get("served_model_name") or ()
    names = [served] if isinstance(served, str) else [*served] if isinstance(served, list | tuple) else []
    return [name for name in (*names, *(adapters if isinstance(adapters, dict) else ())) if isinstance(name, str)]
