"""The settings of a conversation: what the user's audio is like, and how responses are made.

What the server does not do, and what would not change an answer, is null in the session that clients see: noise
reduction, tracing, log probabilities. What would change it is refused by its name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Self

import msgspec

from torchserve_py.apis.openai.openai_keys import ANY_NAME
from torchserve_py.apis.realtime.client_events import BadEvent
from torchserve_py.apis.realtime.conversation_items import Item, read_item
from torchserve_py.apis.realtime.realtime_pipeline import Pipeline
from torchserve_py.apis.realtime.session_config import (
    MOST_HINTS,
    OPENAI_FORMAT,
    AudioFormat,
    FormatGiven,
    described_format,
    format_of,
)
from torchserve_py.apis.realtime.turn_detection import TurnDetection

Unset = msgspec.UnsetType
_UNSET: Final = msgspec.UNSET
_AUDIO: Final = "audio"
_TEXT: Final = "text"
_MOST_TOKENS: Final = 4096
#: Milliseconds that a client can ask for: of padding, which the server keeps, and of silence.
_MOST_PADDING: Final = 10_000
_MOST_SILENCE: Final = 60_000
#: The silence (milliseconds) by which `semantic_vad` is replaced.
_EAGERNESS: Final = {"low": 2000, "medium": 1000, "high": 500, "auto": 1000}
_CHOICES: Final = ("auto", "none", "required")
_MOST_METADATA: Final = 16
_AUTO: Final = "auto"
_RETENTION: Final = "retention_ratio"
#: The share of a conversation that is too long which is kept with `auto`.
_RETAINED: Final = 0.8
#: What a client can call a voice.
_MOST_VOICE: Final = 100


class _Vad(msgspec.Struct, forbid_unknown_fields=True):
    type: str
    threshold: float | None = None
    prefix_padding_ms: int | None = None
    silence_duration_ms: int | None = None
    create_response: bool | None = None
    interrupt_response: bool | None = None
    idle_timeout_ms: int | None = None
    eagerness: str | None = None


class _Input(msgspec.Struct, forbid_unknown_fields=True):
    format: FormatGiven | Unset | None = _UNSET
    transcription: dict[str, Any] | Unset | None = _UNSET
    turn_detection: _Vad | Unset | None = _UNSET
    noise_reduction: Any = None


class _VoiceId(msgspec.Struct):
    id: str


class _Output(msgspec.Struct, forbid_unknown_fields=True):
    format: FormatGiven | Unset | None = _UNSET
    voice: str | _VoiceId | Unset | None = _UNSET
    speed: float | None = None


class _Audio(msgspec.Struct, forbid_unknown_fields=True):
    input: _Input | None = None
    output: _Output | None = None


class _Answer(msgspec.Struct, forbid_unknown_fields=True):
    """What a session and a response have in common."""

    instructions: str | Unset | None = _UNSET
    output_modalities: list[str] | Unset | None = _UNSET
    audio: _Audio | None = None
    tools: list[dict[str, Any]] | Unset | None = _UNSET
    tool_choice: str | dict[str, Any] | Unset | None = _UNSET
    max_output_tokens: int | str | Unset | None = _UNSET
    parallel_tool_calls: bool | Unset | None = _UNSET
    reasoning: dict[str, Any] | Unset | None = _UNSET
    prompt: Any = None


class _Retention(msgspec.Struct, forbid_unknown_fields=True):
    type: str
    retention_ratio: float
    token_limits: Any = None


class _Session(_Answer, forbid_unknown_fields=True):
    type: str = "realtime"
    model: Any = None
    include: Any = None
    tracing: Any = None
    truncation: str | _Retention | Unset | None = _UNSET
    id: Any = None
    object: Any = None
    expires_at: Any = None
    client_secret: Any = None


class _Response(_Answer, forbid_unknown_fields=True):
    conversation: str | None = None
    input: list[dict[str, Any]] | None = None
    metadata: dict[str, str] | None = None


class AnswerConfig(NamedTuple):
    """How a response is made; ``voice`` is None for the synthesizer's own, ``most_tokens`` for no limit."""

    instructions: str = ""
    speaks: bool = False
    format: AudioFormat = OPENAI_FORMAT
    voice: str | None = None
    tools: Sequence[Mapping[str, Any]] = ()
    tool_choice: str | Mapping[str, Any] = "auto"
    most_tokens: int | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None

    def updated(self, given: _Answer, pipeline: Pipeline, place: str) -> Self:
        """Return these settings with those that a client gives. Raises BadEvent: a setting is wrong."""
        if given.prompt is not None:
            raise _unsupported(f"{place}.prompt", "this server keeps no prompts; send their text as instructions")
        changed = self
        if given.instructions is not _UNSET:
            changed = changed._replace(instructions=given.instructions or "")
        if given.output_modalities is not _UNSET:
            changed = changed._replace(speaks=_speaks(given.output_modalities, pipeline, f"{place}.output_modalities"))
        if given.audio is not None and given.audio.output is not None:
            changed = changed._with_output(given.audio.output, pipeline, f"{place}.audio.output")
        if given.tools is not _UNSET:
            changed = changed._replace(tools=_tools(given.tools or [], f"{place}.tools"))
        if given.tool_choice is not _UNSET:
            changed = changed._replace(tool_choice=_tool_choice(given.tool_choice, f"{place}.tool_choice"))
        if given.max_output_tokens is not _UNSET:
            most = _most_tokens(given.max_output_tokens, f"{place}.max_output_tokens")
            changed = changed._replace(most_tokens=most)
        if given.parallel_tool_calls is not _UNSET:
            changed = changed._replace(parallel_tool_calls=given.parallel_tool_calls)
        if given.reasoning is not _UNSET:
            changed = changed._replace(reasoning_effort=_effort(given.reasoning, f"{place}.reasoning"))
        return changed

    def _with_output(self, given: _Output, pipeline: Pipeline, place: str) -> Self:
        changed = self
        if given.speed not in (None, 1.0):
            raise _unsupported(f"{place}.speed", "the synthesizer has one speed; use 1")
        if given.format is not _UNSET:
            changed = changed._replace(format=format_of(given.format))
        if given.voice is not _UNSET:
            voice = given.voice.id if isinstance(given.voice, _VoiceId) else given.voice
            changed = changed._replace(voice=_voice(voice, pipeline, f"{place}.voice"))
        return changed

    @property
    def modalities(self) -> list[str]:
        """The modalities as the API names them."""
        return [_AUDIO if self.speaks else _TEXT]

    def described_output(self) -> dict[str, Any]:
        """Return ``audio.output`` as clients see it."""
        return {"format": described_format(self.format), "voice": self.voice, "speed": 1.0}

    def options(self) -> dict[str, Any]:
        """Return what the body of the chat completion has besides the model and the messages."""
        options: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
        if self.tools:
            options["tools"] = [{"type": "function", "function": _without(tool, "type")} for tool in self.tools]
            options["tool_choice"] = self.tool_choice
            if isinstance(self.tool_choice, Mapping):
                options["tool_choice"] = {"type": "function", "function": {"name": self.tool_choice["name"]}}
            if self.parallel_tool_calls is not None:
                options["parallel_tool_calls"] = self.parallel_tool_calls
        if self.most_tokens is not None:
            options["max_completion_tokens"] = self.most_tokens
        if self.reasoning_effort is not None:
            options["reasoning_effort"] = self.reasoning_effort
        return options


class ConversationConfig(NamedTuple):
    """The settings of a session; ``hints`` is what the client says of the transcription, None to get no transcripts.

    ``truncation``: what happens once the conversation is too long for the chat model, as clients see it.
    """

    answer: AnswerConfig
    format: AudioFormat = OPENAI_FORMAT
    turns: TurnDetection | None = None
    hints: Mapping[str, Any] | None = None
    truncation: str | Mapping[str, Any] = _AUTO

    @classmethod
    def of(cls, pipeline: Pipeline) -> Self:
        """Return what holds until the client sets something else: all that the models can do."""
        turns = None if pipeline.voice_activity is None else TurnDetection()
        return cls(AnswerConfig(speaks=pipeline.synthesizer is not None), turns=turns)

    def updated(self, given: msgspec.Raw, pipeline: Pipeline) -> Self:
        """Return these settings with those that a client gives. Raises BadEvent: a setting is wrong."""
        try:
            session = msgspec.json.decode(given, type=_Session)
        except (msgspec.ValidationError, UnicodeDecodeError) as error:
            raise BadEvent(f"session: {error}", "invalid_value", "session") from error
        if session.type != "realtime":
            message = f"session.type: {session.type[:100]!a}; this session is of the type realtime."
            raise BadEvent(message, "invalid_value", "session.type")
        changed = self._replace(answer=self.answer.updated(session, pipeline, "session"))
        if session.truncation is not _UNSET:
            changed = changed._replace(truncation=_truncation(session.truncation, "session.truncation"))
        heard = session.audio.input if session.audio is not None else None
        return changed if heard is None else changed._with_input(heard, pipeline)

    def _with_input(self, given: _Input, pipeline: Pipeline) -> Self:
        changed, place = self, "session.audio.input"
        if given.format is not _UNSET:
            changed = changed._replace(format=format_of(given.format))
        if given.transcription is not _UNSET:
            changed = changed._replace(hints=_hints(given.transcription, pipeline, f"{place}.transcription"))
        if given.turn_detection is not _UNSET:
            turns = _turns(given.turn_detection, pipeline, f"{place}.turn_detection")
            changed = changed._replace(turns=turns)
        return changed

    @property
    def retained(self) -> float | None:
        """The share of a conversation that is too long which the chat model gets; None: the response fails instead."""
        if isinstance(self.truncation, str):
            return _RETAINED if self.truncation == _AUTO else None
        return float(self.truncation["retention_ratio"])

    def described(self, session_id: str, pipeline: Pipeline) -> dict[str, Any]:
        """Return the session as clients see it."""
        answer = self.answer
        shown = self.hints is not None and pipeline.transcriber is not None
        heard = {
            "format": described_format(self.format),
            "transcription": {"model": pipeline.transcriber.name, **(self.hints or {})} if shown else None,  # type: ignore[union-attr]
            "noise_reduction": None,
            "turn_detection": self.turns and self.turns.described(),
        }
        return {
            "type": "realtime",
            "object": "realtime.session",
            "id": session_id,
            "model": pipeline.name,
            "instructions": answer.instructions,
            "output_modalities": answer.modalities,
            "audio": {"input": heard, "output": answer.described_output()},
            "tools": list(answer.tools),
            "tool_choice": answer.tool_choice,
            "max_output_tokens": answer.most_tokens or "inf",
            "truncation": self.truncation,
            "tracing": None,
            "prompt": None,
            "include": None,
            "expires_at": 0,
        }


class ResponseRequest(NamedTuple):
    """What a ``response.create`` asks for; ``items``: instead of the conversation; ``joins``: whether that gets it."""

    answer: AnswerConfig
    joins: bool = True
    items: Sequence[Item | str] | None = None
    metadata: Mapping[str, str] | None = None


def read_response(given: msgspec.Raw | Unset, answer: AnswerConfig, pipeline: Pipeline) -> ResponseRequest:
    """Return what a client asks for; of its items, a reference is the id. Raises BadEvent: it is wrong."""
    if given is _UNSET:
        return ResponseRequest(answer)
    try:
        read = msgspec.json.decode(given, type=_Response)
    except (msgspec.ValidationError, UnicodeDecodeError) as error:
        raise BadEvent(f"response: {error}", "invalid_value", "response") from error
    if read.conversation not in (None, "auto", "none"):
        message = f"response.conversation: {read.conversation[:100]!a}; there are auto and none."
        raise BadEvent(message, "invalid_value", "response.conversation")
    if read.audio is not None and read.audio.input is not None:
        raise _unsupported("response.audio.input", "the session has it")
    if len(read.metadata or ()) > _MOST_METADATA:
        message = f"response.metadata: up to {_MOST_METADATA} pairs."
        raise BadEvent(message, "invalid_value", "response.metadata")
    items = None if read.input is None else [_item_or_reference(each) for each in read.input]
    changed = answer.updated(read, pipeline, "response")
    return ResponseRequest(changed, read.conversation != "none", items, read.metadata)


def _item_or_reference(given: dict[str, Any]) -> Item | str:
    if given.get("type") == "item_reference":
        return str(given.get("id"))
    return read_item(given)


def _speaks(given: list[str] | Unset | None, pipeline: Pipeline, param: str) -> bool:
    if given is None:
        return pipeline.synthesizer is not None
    if given == [_TEXT]:
        return False
    if given != [_AUDIO]:
        raise BadEvent(f'{param}: {given!a}; ["audio"] or ["text"] is right.', "invalid_value", param)
    if pipeline.synthesizer is None:
        raise _unsupported(param, f"the model {pipeline.name} has no synthesizer in its pipeline; use text")
    return True


def _voice(given: str | None, pipeline: Pipeline, param: str) -> str | None:
    if given is None:
        return None
    voices = pipeline.voices
    if len(given) > _MOST_VOICE or (voices and given not in voices and ANY_NAME not in voices):
        known = f"; there are {', '.join(voices)}" if voices else ""
        raise BadEvent(f"{param}: there is no voice {given[:_MOST_VOICE]!a}{known}.", "invalid_value", param)
    return given


def _tools(given: list[dict[str, Any]], param: str) -> list[dict[str, Any]]:
    for place, tool in enumerate(given):
        if tool.get("type", "function") != "function":
            kind = tool["type"]
            raise _unsupported(f"{param}[{place}].type", f"{kind!a} is not supported; there is function")
        if not isinstance(tool.get("name"), str) or not tool["name"]:
            name = f"{param}[{place}].name"
            raise BadEvent(f"{name} is missing: the name of the function.", "missing_required_parameter", name)
    return [{"type": "function", **tool} for tool in given]


def _tool_choice(given: str | dict[str, Any] | Unset | None, param: str) -> str | dict[str, Any]:
    if given is None:
        return "auto"
    is_function = isinstance(given, dict) and given.get("type") == "function" and isinstance(given.get("name"), str)
    if not is_function and given not in _CHOICES:
        right = f"{', '.join(_CHOICES)}, or an object with type function and a name"
        raise BadEvent(f"{param}: {given!a}; right is {right}.", "invalid_value", param)
    return given  # type: ignore[return-value]  # it was checked


def _most_tokens(given: int | str | Unset | None, param: str) -> int | None:
    if given in (None, "inf"):
        return None
    if not isinstance(given, int) or isinstance(given, bool) or not 1 <= given <= _MOST_TOKENS:
        raise BadEvent(f"{param}: {given!a}; 1 to {_MOST_TOKENS} or inf is right.", "invalid_value", param)
    return given


def _effort(given: dict[str, Any] | Unset | None, param: str) -> str | None:
    effort = given.get("effort") if isinstance(given, dict) else None
    if effort is not None and not isinstance(effort, str):
        raise BadEvent(f"{param}.effort is {effort!a}; it is a text.", "invalid_value", f"{param}.effort")
    return effort


def _hints(given: dict[str, Any] | Unset | None, pipeline: Pipeline, param: str) -> dict[str, Any] | None:
    if not isinstance(given, dict):
        return None
    if pipeline.transcriber is None:
        raise _unsupported(param, f"the model {pipeline.name} has no transcriber in its pipeline")
    hints = {name: value for name, value in given.items() if value is not None and name != "model"}
    if len(msgspec.json.encode(hints)) > MOST_HINTS:
        raise BadEvent(f"{param}: up to {MOST_HINTS} bytes in all.", "invalid_value", param)
    return hints


def _turns(given: _Vad | Unset | None, pipeline: Pipeline, param: str) -> TurnDetection | None:
    if not isinstance(given, _Vad):
        return None
    if pipeline.voice_activity is None:
        why = f"the model {pipeline.name} has no voiceActivity in its pipeline; use null, and commit"
        raise _unsupported(param, why)
    if given.idle_timeout_ms is not None:
        raise _unsupported(f"{param}.idle_timeout_ms", "use null")
    default = TurnDetection()
    silence = given.silence_duration_ms
    if given.type == "semantic_vad":
        if (given.eagerness or "auto") not in _EAGERNESS:
            message = f"{param}.eagerness: {given.eagerness!a}; there are {', '.join(_EAGERNESS)}."
            raise BadEvent(message, "invalid_value", f"{param}.eagerness")
        silence = _EAGERNESS[given.eagerness or "auto"]
    elif given.type != "server_vad":
        message = f"{param}.type: {given.type[:100]!a}; there are server_vad and semantic_vad."
        raise BadEvent(message, "invalid_value", f"{param}.type")
    wanted = default._replace(
        threshold=_within(given.threshold, default.threshold, 1, f"{param}.threshold"),
        prefix_padding_ms=_within(
            given.prefix_padding_ms, default.prefix_padding_ms, _MOST_PADDING, f"{param}.prefix_padding_ms"
        ),
        silence_duration_ms=_within(
            silence, default.silence_duration_ms, _MOST_SILENCE, f"{param}.silence_duration_ms"
        ),
    )
    return wanted._replace(
        create_response=given.create_response is not False, interrupt_response=given.interrupt_response is not False
    )


def _truncation(given: str | _Retention | Unset | None, param: str) -> str | Mapping[str, Any]:
    if given is None:
        return _AUTO
    if isinstance(given, _Retention) and given.type == _RETENTION:
        if given.token_limits is not None:
            raise _unsupported(f"{param}.token_limits", "the chat model's own limit holds")
        ratio = _within(given.retention_ratio, _RETAINED, 1, f"{param}.retention_ratio")
        return {"type": _RETENTION, "retention_ratio": ratio}
    if given not in (_AUTO, "disabled"):
        right = f"auto, disabled or an object of type {_RETENTION}"
        raise BadEvent(f"{param}: {str(given)[:100]!a}; right is {right}.", "invalid_value", param)
    return str(given)


def _within(given: Any, otherwise: Any, most: float, param: str) -> Any:
    if given is None:
        return otherwise
    if not 0 <= given <= most:
        raise BadEvent(f"{param}: {given}; 0 to {most} is right.", "invalid_value", param)
    return given


def _without(given: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in given.items() if key != name}


def _unsupported(param: str, why: str) -> BadEvent:
    return BadEvent(f"{param} is not supported: {why}.", "unsupported_parameter", param)
