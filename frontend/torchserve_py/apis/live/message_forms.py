"""The two forms of a live session's messages; a client chooses one by the WebSocket's subprotocol.

``sequences.json.v1`` has text messages of JSON; ``sequences.binary.v1`` has binary messages that begin with a header of
eight bytes. ``docs/live-sessions.md`` describes both.
"""

import struct
from collections.abc import Mapping
from typing import Annotated, Any, Final, NamedTuple

import msgspec

from torchserve_py.apis.live.session_ends import INVALID_DATA, UNSUPPORTED_DATA, SessionOver
from torchserve_py.core.jobs.parts import Part
from torchserve_py.endpoints.failures import Failure
from torchserve_py.endpoints.time_limits import MOST_MILLISECONDS
from torchserve_py.net.websocket import Kind, Message

LAST_STEP: Final = 2**32 - 1
#: A longer text cannot be a resume token.
_MAX_TOKEN: Final = 200


class LiveStep(NamedTuple):
    """A step as a client sends it.

    Number 0 stands for the next step, None for the session's content type, and for the session's deadline (seconds).
    """

    number: int
    body: bytes
    content_type: str | None = None
    ends: bool = False
    deadline: float | None = None


_Number = Annotated[int, msgspec.Meta(ge=0, le=LAST_STEP)]


class Resume(msgspec.Struct, forbid_unknown_fields=True):
    """A client's request to resume an earlier session.

    ``after`` is the last applied step whose answer the client has, or 0; ``unanswered`` lists the steps, in order, that
    the client has sent without getting an answer.
    """

    resume: Annotated[str, msgspec.Meta(min_length=1, max_length=_MAX_TOKEN)]
    after: _Number = 0
    unanswered: list[_Number] = []


class _Base64(msgspec.Struct, forbid_unknown_fields=True):
    base64: bytes


class _JsonStep(msgspec.Struct, forbid_unknown_fields=True):
    body: str | _Base64 = ""
    step: _Number = 0
    content_type: Annotated[str, msgspec.Meta(pattern=r"^[ -~]*\Z")] | None = None
    end: bool = False
    deadline_ms: Annotated[float, msgspec.Meta(gt=0, lt=MOST_MILLISECONDS)] | None = None
    resume: msgspec.UnsetType | msgspec.Raw = msgspec.UNSET
    after: msgspec.UnsetType | msgspec.Raw = msgspec.UNSET
    unanswered: msgspec.UnsetType | msgspec.Raw = msgspec.UNSET


#: The form that browsers speak.
FOR_PAGES: Final = "sequences.json.v1"


class _JsonForm:
    """Text messages of JSON."""

    name = FOR_PAGES
    is_text = True

    def decode(self, data: bytes) -> LiveStep | Resume:
        read = _JSON_STEP.decode(data)
        if read.resume is not msgspec.UNSET:
            return _RESUME.decode(data)
        body = read.body.encode() if isinstance(read.body, str) else read.body.base64
        deadline = None if read.deadline_ms is None else read.deadline_ms / 1e3
        return LiveStep(read.step, body, read.content_type, read.end, deadline)

    def session(self, session: Mapping[str, Any]) -> bytes:
        return msgspec.json.encode(session)

    def part(self, number: int, part: Part) -> tuple[bytes, ...]:
        body: str | dict[str, bytes | bytearray]
        try:
            body = part.body.decode()
        except UnicodeDecodeError:
            body = {"base64": part.body}
        said = {"step": number, "more": part.more, "status": part.status, "headers": _joined(part), "body": body}
        return (msgspec.json.encode(said),)

    def failure(self, number: int, failure: Failure) -> bytes:
        return msgspec.json.encode({"step": number, "error": _error(failure)})


def refusal(failure: Failure) -> bytes:
    """Return the message to a page whose session is refused."""
    return msgspec.json.encode({"error": _error(failure)})


#: The kind, the flags, the status and the number of the step.
_HEADER: Final = struct.Struct(">BBHI")
_STEP = _PART = 1
_RESUMES = _SESSION = 2
_HEADERS: Final = 3
_ERROR: Final = 4
#: The flag of a step that ends its sequence, and of a part that is followed by others.
_ENDS = _MORE = 1


class _BinaryForm:
    """Binary messages behind a header of eight bytes."""

    name = "sequences.binary.v1"
    is_text = False

    def decode(self, data: bytes) -> LiveStep | Resume:
        if len(data) < _HEADER.size:
            raise msgspec.DecodeError(f"it has {len(data)} bytes, and its header {_HEADER.size}")
        kind, flags, _, number = _HEADER.unpack_from(data)
        body = data[_HEADER.size :]
        if kind == _RESUMES:
            return _RESUME.decode(body)
        if kind != _STEP or flags & ~_ENDS:
            raise msgspec.DecodeError(f"kind {kind} with flags {flags}; a step is kind 1 with flags 0 or 1")
        return LiveStep(number, body, None, bool(flags & _ENDS))

    def session(self, session: Mapping[str, Any]) -> bytes:
        return _HEADER.pack(_SESSION, 0, 0, 0) + msgspec.json.encode(session)

    def part(self, number: int, part: Part) -> tuple[bytes, ...]:
        body = _HEADER.pack(_PART, _MORE if part.more else 0, part.status, number) + part.body
        if not part.headers:
            return (body,)
        return (_HEADER.pack(_HEADERS, _MORE, part.status, number) + msgspec.json.encode(_joined(part)), body)

    def failure(self, number: int, failure: Failure) -> bytes:
        return _HEADER.pack(_ERROR, 0, failure.status, number) + msgspec.json.encode(_error(failure))


def _joined(part: Part) -> dict[str, str]:
    """Return the headers of a part by name; the values of a repeated header are joined by commas, as in HTTP."""
    joined: dict[str, str] = {}
    for name, value in part.headers:
        joined[name] = f"{joined[name]}, {value}" if name in joined else value
    return joined


def _error(failure: Failure) -> dict[str, Any]:
    return {"status": failure.status, "cause": failure.cause, "message": failure.message}


_JSON_STEP: Final = msgspec.json.Decoder(_JsonStep)
_RESUME: Final = msgspec.json.Decoder(Resume)

Form = _JsonForm | _BinaryForm
#: The forms by subprotocol; a client that names none gets the first.
FORMS: Final[Mapping[str, Form]] = {form.name: form for form in (_JsonForm(), _BinaryForm())}


def read_message(form: Form, message: Message) -> LiveStep | Resume:
    """Return the step, or the request to resume, in a message. Raises SessionOver: the message is of another form."""
    if (message.kind is Kind.text) is not form.is_text:
        kind = "text" if form.is_text else "binary"
        raise SessionOver(UNSUPPORTED_DATA, f"The messages of {form.name} are {kind} messages.")
    try:
        return form.decode(message.data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise SessionOver(INVALID_DATA, f"No message of {form.name}: {error}") from error
