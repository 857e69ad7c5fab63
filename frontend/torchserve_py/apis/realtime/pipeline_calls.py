"""Calls of the chat model and the synthesizer of a conversation: requests of the session's client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from torchserve_py.apis.live.live_steps import StepTemplate
from torchserve_py.apis.openai.openai_keys import ANY_NAME
from torchserve_py.apis.realtime.session_config import AudioFormat, media_type_of
from torchserve_py.core.serving.errors import ModelError
from torchserve_py.endpoints.client_call import ClientCall, Dialect
from torchserve_py.endpoints.failures import EndpointError, failure_of
from ts.protocol.media_types import JSON

_COMPLETIONS: Final = "v1/chat/completions"
_DIALECT: Final = Dialect()


class PipelineCalls(NamedTuple):
    """What makes the calls; the templates have the client's account, priority and headers."""

    chat: StepTemplate
    synthesizer: StepTemplate | None
    voices: Mapping[str, str]

    def complete(self, body: Mapping[str, Any]) -> ClientCall:
        """Return a chat completion that runs."""
        given = {"model": self.chat.model.name, **body}
        return _submitted(self.chat, given, (("url_path", _COMPLETIONS),))

    def speak(self, text: str, voice: str | None, audio: AudioFormat) -> ClientCall:
        """Return a call that turns a text into audio of a format."""
        assert self.synthesizer is not None, "the settings speak only with one"
        body = {"text": text}
        if voice is not None:
            body["voice"] = self.voices.get(voice) or self.voices.get(ANY_NAME, voice)
        return _submitted(self.synthesizer, body, (("accept", media_type_of(audio)),))


def _submitted(template: StepTemplate, body: Mapping[str, Any], headers: tuple[tuple[str, str], ...]) -> ClientCall:
    """Return a call that runs. Raises EndpointError: the model does not take it."""
    common, model = template.call, template.model_now
    sequence = template.headers.of_values("", None, True) if model.is_stateful else None
    call = ClientCall(
        (*common.headers, *headers, *(() if sequence is None else sequence.headers)),
        msgspec.json.encode(body),
        JSON,
        sequence=sequence,
        by_default=template.version is None,
        priority=common.priority,
        via="websocket",
        client=common.client,
        account=common.account,
    )
    call.dialect, call.model, call.version = _DIALECT, model, template.version
    try:
        template.serving.submit(model, call)
    except ModelError as error:
        raise EndpointError(failure_of(error)) from error
    return call
