"""The messages of a WebSocket for responses: what the client sends, as requests, and what it gets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import msgspec

from torchserve_py.apis.openai.responses_dialect import bad_field
from torchserve_py.endpoints.responses import Answer

_CREATE: Final = "response.create"
_LONGEST_LANE: Final = 256
_EVENT_END: Final = b"\n\n"
_DATA: Final = b"data: "

_FIELDS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Turn(NamedTuple):
    """One ``response.create``.

    Attributes:
        body: The request that it would be over HTTP.
        lane: Its ``stream_id``: turns of one lane are answered one after another; None if it has none.
        previous: The response that it continues, if it is one.
        generates: Whether the model answers.
        size: How many bytes the message has.
    """

    body: bytes
    lane: str | None
    previous: str | None
    generates: bool
    size: int


class _Envelope(msgspec.Struct):
    """What of a message is not part of the request."""

    type: str
    stream_id: str | None = None
    generate: bool | None = None
    background: bool | None = None
    previous_response_id: str | None = None


_ENVELOPE: Final = msgspec.json.Decoder(_Envelope)


class BadEvent(Exception):
    """A message that is no turn; ``failure`` is why, and ``lane`` its ``stream_id``, if it has one."""

    def __init__(self, message: str, param: str | None, code: str | None, lane: str | None = None) -> None:
        super().__init__(message)
        self.failure = bad_field(message, param, code)
        self.lane = lane


def read_turn(data: bytes) -> Turn:
    """Return the turn of a message. Raises BadEvent: it is none."""
    try:
        envelope = _ENVELOPE.decode(data)
        fields = _FIELDS.decode(data)
    except msgspec.ValidationError as error:
        raise BadEvent(f"The message is no event of this API: {error}", None, "invalid_event") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadEvent(f"The message is no JSON: {error}", None, "invalid_json") from error
    lane = envelope.stream_id
    if envelope.type != _CREATE:
        message = f"The event {envelope.type[:100]!a} is not supported here; {_CREATE} is."
        raise BadEvent(message, "type", "unsupported_event", lane)
    if lane is not None and not 0 < len(lane) <= _LONGEST_LANE:
        message = f"stream_id has {len(lane)} characters; 1 to {_LONGEST_LANE} are right."
        raise BadEvent(message, "stream_id", "invalid_value")
    if envelope.background:
        message = "background is true, which needs POST /v1/responses: over a WebSocket it is not supported."
        raise BadEvent(message, "background", "unsupported_parameter", lane)
    for name in ("type", "stream_id", "generate", "background"):
        fields.pop(name, None)
    generates = envelope.generate is not False
    body: dict[str, Any] = {**fields, "stream": True}
    if not generates:
        body.setdefault("input", [])
    return Turn(msgspec.json.encode(body), lane, envelope.previous_response_id, generates, len(data))


def in_lane(event: bytes, lane: str | None) -> bytes:
    """Return an event, a JSON object, with the ``stream_id`` of its turn."""
    return event if lane is None else b'{"stream_id":%b,%b' % (msgspec.json.encode(lane), event[1:])


def error_event(answer: Answer, lane: str | None = None) -> bytes:
    """Return the event for a turn that has failed, of what would be the answer over HTTP."""
    return in_lane(b'{"type":"error","status":%d,%b' % (answer.status, bytes(answer.body)[1:]), lane)


class EventReader:
    """Finds the events of a stream of server-sent events, which comes in pieces."""

    def __init__(self) -> None:
        self._rest = b""

    def read(self, piece: bytes | bytearray) -> Iterator[tuple[str, bytes]]:
        """Yield the name and the data of each event that is whole now. Comments have neither."""
        *events, self._rest = (self._rest + piece).split(_EVENT_END)
        for event in events:
            name, data = b"", b""
            for line in event.split(b"\n"):
                if line.startswith(b"event: "):
                    name = line.removeprefix(b"event: ")
                elif line.startswith(_DATA):
                    data = line.removeprefix(_DATA)
            if data:
                yield name.decode(), data
