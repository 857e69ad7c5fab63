"""The models of a conversation: which one detects speech, writes it down, answers, and speaks.

A chat model names the others in its ``realtimePipeline``; or a workflow has them all, and its graph tells their roles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torchserve_py.apis.openai.openai_keys import ANY_NAME, answers_openai, names_of
from torchserve_py.apis.realtime.realtime_keys import RealtimeKeys, RealtimePipeline, transcribes
from torchserve_py.apis.workflows.registry import Workflow, WorkflowRegistry
from torchserve_py.core.serving.errors import ModelError
from torchserve_py.core.serving.serving import ServedModel, Serving
from torchserve_py.endpoints.failures import UNAVAILABLE, EndpointError, Failure


class Pipeline(NamedTuple):
    """The models by their roles.

    ``voices``: the synthesizer's names of voices by those that clients use. ``workflow``: the name of the workflow
    whose nodes they are, empty if they are models of their own.
    """

    chat: ServedModel
    voice_activity: ServedModel | None = None
    transcriber: ServedModel | None = None
    synthesizer: ServedModel | None = None
    voices: Mapping[str, str] = {}
    workflow: str = ""

    @property
    def name(self) -> str:
        """The name that clients know."""
        return self.workflow or self.chat.name

    @property
    def models(self) -> list[ServedModel]:
        """All models."""
        return [model for model in self[:4] if isinstance(model, ServedModel)]


class Conversing(NamedTuple):
    """What clients converse with: a chat model, and the workflow of which it is a node, if so."""

    chat: ServedModel
    workflow: Workflow | None

    @property
    def name(self) -> str:
        """Its first name; the chat model may have others."""
        return self.chat.name if self.workflow is None else self.workflow.name


def conversing(serving: Serving, workflows: WorkflowRegistry) -> list[Conversing]:
    """Return all that clients can converse with."""
    nodes = workflows.node_models
    models = [Conversing(model, None) for model in serving.models() if _converses(model) and model.name not in nodes]
    found = ((_chat_of(serving, workflow), workflow) for workflow in workflows.workflows())
    return [*(Conversing(chat, workflow) for chat, workflow in found if chat is not None), *models]


def named(everything: Sequence[Conversing], name: str | None) -> Conversing | None:
    """Return what a client means by a name, None if that is nothing.

    The name is the workflow's, or the chat model's, or one of its `openaiModels`; if there is one to converse with, any
    name is.
    """
    for each in everything:
        if each.name == name:
            return each
    for wanted in (name, ANY_NAME):
        for each in everything:
            if wanted in names_of(each.chat):
                return each
    return everything[0] if len(everything) == 1 else None


def pipeline_of(serving: Serving, wanted: Conversing) -> Pipeline:
    """Return the models with which clients converse. Raises EndpointError: one is not there, or does not fit."""
    keys = _declared(wanted.chat) or RealtimePipeline()
    if wanted.workflow is None:
        return _of_names(serving, wanted.chat, keys)
    return _of_graph(serving, wanted.chat, keys, wanted.workflow)


def _of_names(serving: Serving, chat: ServedModel, keys: RealtimePipeline) -> Pipeline:
    place = f'realtimePipeline of the model "{chat.name}"'

    def get(role: str, name: str | None) -> ServedModel | None:
        if name is None:
            return None
        try:
            return serving.get(name)
        except ModelError as error:
            raise _unfit(place, role, name, "is not registered") from error

    hearing, writing = get("voiceActivity", keys.voice_activity), get("transcriber", keys.transcriber)
    found = Pipeline(chat, hearing, writing, get("synthesizer", keys.synthesizer), keys.voices or {})
    _check(found, place)
    return found


def _of_graph(serving: Serving, chat: ServedModel, keys: RealtimePipeline, workflow: Workflow) -> Pipeline:
    place = f'workflow "{workflow.name}"'
    if keys.voice_activity or keys.transcriber or keys.synthesizer:
        why = "names models in its realtimePipeline, which may only have voices: the graph says the rest"
        raise _unfit(place, "model", chat.name, why)
    models = _models_of(serving, workflow)
    at = models.index(chat)
    before, behind = models[:at], models[at + 1 :]
    writing = before.pop() if before and transcribes(before[-1]) else None
    hearing = before.pop() if before else None
    speaking = behind.pop(0) if behind else None
    for other in (*before, *behind):
        why = "has no role in the chain of voiceActivity, transcriber, chat model and synthesizer"
        raise _unfit(place, "model", other.name, why)
    found = Pipeline(chat, hearing, writing, speaking, keys.voices or {}, workflow.name)
    _check(found, place)
    return found


def _check(found: Pipeline, place: str) -> None:
    """Raise EndpointError: a model does not fit its role."""
    hearing, writing, speaking = found.voice_activity, found.transcriber, found.synthesizer
    if hearing is not None and not hearing.is_stateful:
        raise _unfit(place, "voiceActivity", hearing.name, "keeps no sequences (sequenceBatching)")
    if writing is not None and not transcribes(writing):
        raise _unfit(place, "transcriber", writing.name, "does not declare realtime: true")
    if speaking is not None and speaking.is_stateful:
        why = "keeps sequences, and each sentence is a request of its own"
        raise _unfit(place, "synthesizer", speaking.name, why)


def _models_of(serving: Serving, workflow: Workflow) -> list[ServedModel]:
    """Return the models of a workflow in the order of its graph. Raises ModelError: one is not there any more."""
    nodes = (workflow.nodes[name] for name in workflow.files.spec.dag.parents)
    return [serving.get(node.model_name, node.model_version) for node in nodes]


def _chat_of(serving: Serving, workflow: Workflow) -> ServedModel | None:
    """Return the only chat model of a workflow whose nodes follow one another, None for any other workflow."""
    if not workflow.files.spec.dag.is_chain:
        return None
    try:
        chats = [model for model in _models_of(serving, workflow) if answers_openai(model)]
    except ModelError:
        return None
    return chats[0] if len(chats) == 1 else None


def _converses(model: ServedModel) -> bool:
    """Return whether a model declares a pipeline, and answers chat completions."""
    return _declared(model) is not None and answers_openai(model)


def _declared(model: ServedModel) -> RealtimePipeline | None:
    return model.config.plugin_keys.of(RealtimeKeys).realtime_pipeline


def _unfit(place: str, role: str, name: str, why: str) -> EndpointError:
    message = f'The pipeline cannot converse ({place}): the {role} "{name}" {why}.'
    return EndpointError(Failure(503, UNAVAILABLE, message, "realtime_pipeline"))
