"""The models of a conversation: which one detects speech, writes it down, answers, and speaks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torchserve_py.apis.openai.openai_keys import ANY_NAME, answers_openai, names_of
from torchserve_py.apis.realtime.realtime_keys import RealtimeKeys, RealtimePipeline, transcribes
from torchserve_py.core.serving.errors import ModelError
from torchserve_py.core.serving.serving import ServedModel, Serving
from torchserve_py.endpoints.failures import UNAVAILABLE, EndpointError, Failure


class Pipeline(NamedTuple):
    """The models by their roles; ``voices``: the synthesizer's names of voices by those that clients use."""

    chat: ServedModel
    voice_activity: ServedModel | None = None
    transcriber: ServedModel | None = None
    synthesizer: ServedModel | None = None
    voices: Mapping[str, str] = {}

    @property
    def models(self) -> list[ServedModel]:
        """All models."""
        return [model for model in self[:4] if isinstance(model, ServedModel)]


def pipeline_of(serving: Serving, chat: ServedModel) -> Pipeline:
    """Return the models with which a chat model converses. Raises EndpointError: one is not there, or does not fit."""
    keys = _declared(chat)
    assert keys is not None, "a model that converses"

    def get(role: str, name: str | None) -> ServedModel | None:
        if name is None:
            return None
        try:
            return serving.get(name)
        except ModelError as error:
            raise _unfit(chat, role, name, "is not registered") from error

    hearing = get("voiceActivity", keys.voice_activity)
    if hearing is not None and not hearing.is_stateful:
        raise _unfit(chat, "voiceActivity", hearing.name, "keeps no sequences (sequenceBatching)")
    writing = get("transcriber", keys.transcriber)
    if writing is not None and not transcribes(writing):
        raise _unfit(chat, "transcriber", writing.name, "does not declare realtime: true")
    speaking = get("synthesizer", keys.synthesizer)
    if speaking is not None and speaking.is_stateful:
        raise _unfit(chat, "synthesizer", speaking.name, "keeps sequences, and each sentence is a request of its own")
    return Pipeline(chat, hearing, writing, speaking, keys.voices or {})


def converses(model: ServedModel) -> bool:
    """Return whether a model declares a pipeline, and answers chat completions."""
    return _declared(model) is not None and answers_openai(model)


def conversing_model(serving: Serving, name: str | None) -> ServedModel | None:
    """Return the model with which a client converses by a name, None if there is none.

    The name is the model's, or one of its `openaiModels`; if one model converses, any name is.
    """
    models = [model for model in serving.models() if converses(model)]
    for model in models:
        if model.name == name:
            return model
    for wanted in (name, ANY_NAME):
        for model in models:
            if wanted in names_of(model):
                return model
    return models[0] if len(models) == 1 else None


def _declared(model: ServedModel) -> RealtimePipeline | None:
    return model.config.plugin_keys.of(RealtimeKeys).realtime_pipeline


def _unfit(chat: ServedModel, role: str, name: str, why: str) -> EndpointError:
    message = f'realtimePipeline.{role} of the model "{chat.name}": the model "{name}" {why}.'
    return EndpointError(Failure(503, UNAVAILABLE, message, "realtime_pipeline"))
