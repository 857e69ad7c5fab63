"""What a client of the realtime API sends: JSON objects with a type, read and checked."""

import binascii
from typing import Final

import msgspec

_MAX_ID: Final = 512
#: Bytes of audio in one event, as in OpenAI's API.
_MOST_AUDIO: Final = 15 << 20


class BadEvent(Exception):
    """An event that cannot be carried out; ``param`` is the member of the event that is wrong, if it is one."""

    def __init__(self, message: str, code: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.param = param


class ClientEvent(msgspec.Struct):
    """An event; which members it has depends on its type."""

    type: str
    event_id: str | None = None
    session: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    model: str | msgspec.UnsetType | None = msgspec.UNSET
    response: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    item: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    item_id: str | None = None
    previous_item_id: str | None = None
    response_id: str | None = None
    content_index: int | None = None
    audio_end_ms: int | None = None
    audio: str | None = None
    final: bool | msgspec.UnsetType = msgspec.UNSET


class _Named(msgspec.Struct):
    event_id: str | None = None


_EVENTS: Final = msgspec.json.Decoder(ClientEvent)
_NAMES: Final = msgspec.json.Decoder(_Named)


def read_event(data: bytes) -> ClientEvent:
    """Return the event of a message. Raises BadEvent: the message is none."""
    try:
        event = _EVENTS.decode(data)
    except msgspec.ValidationError as error:
        raise BadEvent(f"The message is no event of this API: {error}", "invalid_event") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadEvent(f"The message is no JSON: {error}", "invalid_json") from error
    if event.event_id is not None and len(event.event_id) > _MAX_ID:
        raise BadEvent(f"An event_id has up to {_MAX_ID} characters.", "invalid_value", "event_id")
    return event


def id_in(data: bytes) -> str | None:
    """Return the id of an event that is wrong otherwise, if it has one."""
    try:
        found = _NAMES.decode(data).event_id
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return None if found is None or len(found) > _MAX_ID else found


def audio_in(event: ClientEvent) -> bytes:
    """Return the audio of an ``input_audio_buffer.append``. Raises BadEvent: it has none."""
    if event.audio is None:
        raise BadEvent("The event has no audio: bytes in base64.", "missing_required_parameter", "audio")
    try:
        audio = binascii.a2b_base64(event.audio, strict_mode=True)
    except (binascii.Error, ValueError) as error:
        raise BadEvent(f"audio: no base64: {error}.", "invalid_audio", "audio") from error
    if len(audio) > _MOST_AUDIO:
        raise BadEvent(f"audio: {len(audio)} bytes; {_MOST_AUDIO} is the most.", "invalid_value", "audio")
    return audio
