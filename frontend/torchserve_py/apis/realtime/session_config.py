"""The settings of a realtime session, in the shapes that OpenAI's API has for them: the present one and the beta's.

What the server does not do is null in the session that it tells: noise reduction, log probabilities. To ask for turn
detection is an error, because the client would wait for transcripts that never come.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from torchserve_py.apis.realtime.client_events import BadEvent
from ts.protocol.messages import AUDIO_RATES

_OBJECT: Final = "realtime.transcription_session"
_G711_RATE: Final = 8_000
_OPENAI_RATE: Final = 24_000
_VLLM_RATE: Final = 16_000
#: Bytes of JSON that what the client says about the transcription may have; every step carries it.
MOST_HINTS: Final = 10_000


class AudioFormat(NamedTuple):
    """How audio is encoded: the name that handlers and the beta use, and samples per second. One channel."""

    encoding: str
    rate: int

    @property
    def sample_size(self) -> int:
        return 2 if self.encoding == "pcm16" else 1

    def seconds(self, size: int) -> float:
        """Return how long ``size`` bytes are."""
        return size / (self.sample_size * self.rate)


#: That of OpenAI's API where a client names none.
OPENAI_FORMAT: Final = AudioFormat("pcm16", _OPENAI_RATE)
_MEDIA_TYPES: Final = {"pcm16": "audio/pcm", "g711_ulaw": "audio/pcmu", "g711_alaw": "audio/pcma"}
_ENCODINGS: Final = {media_type: encoding for encoding, media_type in _MEDIA_TYPES.items()}


class FormatGiven(msgspec.Struct):
    """A format of audio as a client gives it."""

    type: str
    rate: int | None = None


class _Input(msgspec.Struct):
    format: FormatGiven | msgspec.UnsetType | None = msgspec.UNSET
    transcription: dict[str, Any] | msgspec.UnsetType | None = msgspec.UNSET
    turn_detection: Any = None


class _Audio(msgspec.Struct):
    input: _Input | None = None


class _Session(msgspec.Struct):
    type: str = "transcription"
    audio: _Audio | None = None


class _BetaSession(msgspec.Struct):
    input_audio_format: str | msgspec.UnsetType | None = msgspec.UNSET
    input_audio_transcription: dict[str, Any] | msgspec.UnsetType | None = msgspec.UNSET
    turn_detection: Any = None


class SessionConfig(NamedTuple):
    """The settings of a session; ``hints`` is what the client says of the transcription, such as its language."""

    model: str
    format: AudioFormat = OPENAI_FORMAT
    hints: Mapping[str, Any] = {}

    def updated(self, given: msgspec.Raw, *, beta: bool, named: Callable[[str], str]) -> SessionConfig:
        """Return these settings with those that a client gives; what it does not give stays as it is.

        ``named`` returns the model that the client means by a name. Raises BadEvent: a setting is wrong.
        """
        try:
            return self._updated(given, beta=beta, named=named)
        except (msgspec.ValidationError, UnicodeDecodeError) as error:
            raise BadEvent(f"session: {error}", "invalid_value", "session") from error

    def _updated(self, given: msgspec.Raw, *, beta: bool, named: Callable[[str], str]) -> SessionConfig:
        if beta:
            flat = msgspec.json.decode(given, type=_BetaSession)
            wanted: FormatGiven | msgspec.UnsetType | None = msgspec.UNSET
            if flat.input_audio_format is not msgspec.UNSET:
                name = flat.input_audio_format
                wanted = None if name is None else FormatGiven(_MEDIA_TYPES.get(name, name))
            given_input = _Input(wanted, flat.input_audio_transcription, flat.turn_detection)
        else:
            session = msgspec.json.decode(given, type=_Session)
            if session.type != "transcription":
                message = f"session.type: {session.type!a}; this server has sessions of type transcription."
                raise BadEvent(message, "invalid_value", "session.type")
            given_input = (session.audio and session.audio.input) or _Input()
        if given_input.turn_detection is not None:
            message = "turn_detection must be null: the client says with input_audio_buffer.commit where speech ends."
            raise BadEvent(message, "invalid_value", "turn_detection")
        config = self
        if given_input.format is not msgspec.UNSET:
            config = config._replace(format=format_of(given_input.format))
        if given_input.transcription is not msgspec.UNSET:
            config = config._hinted(dict(given_input.transcription or {}), named)
        return config

    def _hinted(self, hints: dict[str, Any], named: Callable[[str], str]) -> SessionConfig:
        name = hints.pop("model", None)
        if name is not None and not isinstance(name, str):
            raise BadEvent(f"transcription.model: {name!r} is no text.", "invalid_value", "transcription.model")
        hints = {key: value for key, value in hints.items() if value is not None}
        if len(msgspec.json.encode(hints)) > MOST_HINTS:
            message = f"transcription: may have {MOST_HINTS} bytes in all."
            raise BadEvent(message, "invalid_value", "transcription")
        return self._replace(model=self.model if name is None else named(name), hints=hints)

    def for_vllm(self, model: str) -> SessionConfig:
        """Return the settings of a session of vLLM's variant, whose audio has one format."""
        return SessionConfig(model, AudioFormat("pcm16", _VLLM_RATE))

    def described(self, session_id: str, *, beta: bool) -> dict[str, Any]:
        """Return the session as it is told to the client."""
        transcription = {"model": self.model, **self.hints}
        about = {"id": session_id, "object": _OBJECT, "expires_at": 0, "include": None}
        if beta:
            return {
                **about,
                "input_audio_format": self.format.encoding,
                "input_audio_transcription": transcription,
                "input_audio_noise_reduction": None,
                "turn_detection": None,
            }
        shown = described_format(self.format)
        heard = {"format": shown, "transcription": transcription, "noise_reduction": None, "turn_detection": None}
        return {**about, "type": "transcription", "audio": {"input": heard}}


def media_type_of(audio: AudioFormat) -> str:
    """Return the media type that asks a model for audio in a format."""
    return f"{_MEDIA_TYPES[audio.encoding]};rate={audio.rate}"


def described_format(audio: AudioFormat) -> dict[str, Any]:
    """Return a format as clients see it."""
    media_type = _MEDIA_TYPES[audio.encoding]
    return {"type": media_type, "rate": audio.rate} if audio.encoding == "pcm16" else {"type": media_type}


def format_of(given: FormatGiven | msgspec.UnsetType | None) -> AudioFormat:
    """Return the format that a client gives, OpenAI's own for None. Raises BadEvent: it is unknown."""
    if not isinstance(given, FormatGiven):
        return OPENAI_FORMAT
    encoding = _ENCODINGS.get(given.type)
    if encoding is None:
        known = ", ".join(f"{media_type} ({name})" for media_type, name in _MEDIA_TYPES.items())
        raise BadEvent(f"The format {given.type!a} is none of {known}.", "invalid_value", "format")
    rate = given.rate
    if rate is None:
        rate = _OPENAI_RATE if encoding == "pcm16" else _G711_RATE
    if rate not in AUDIO_RATES or (encoding != "pcm16" and rate != _G711_RATE):
        rates = f"G.711 has {_G711_RATE}, pcm {AUDIO_RATES[0]} to {AUDIO_RATES[-1]}"
        message = f"The format {given.type} with {rate} samples per second is unknown; {rates}."
        raise BadEvent(message, "invalid_value", "format.rate")
    return AudioFormat(encoding, rate)
