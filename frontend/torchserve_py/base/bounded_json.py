"""JSON that the frontend reads itself, in a time that is bounded: of large text just what it needs.

The event loop waits while JSON is parsed, and a client or a model decides how large it is and what it holds: six
megabytes of empty lists keep `json.loads` busy for more than a second. msgspec finds a member of large text without
making anything of what stands beside it: 600 MB a second and more, whatever it is.
"""

import json
from functools import lru_cache
from typing import Any, Final

import msgspec

from torchserve_py.base.settings.schemas.values import json_object

#: Bytes of text that is parsed whole, and of a member.
MAX_PARSED: Final = 64 * 1024
#: Bytes of text that a member is looked for in.
MAX_SEARCHED: Final = 64 << 20


class UnreadableJson(ValueError):
    """Text that is no JSON object or is over a limit; the message says which."""


def read_member(text: bytes | memoryview, name: str) -> Any:
    """Return the value of one member of a JSON object; None if it has no such member.

    Small text may hold NaN and infinities, as Python writes them; large text may not. Raises UnreadableJson: it is no
    JSON object, or the text or the member is too large.
    """
    if len(text) > MAX_SEARCHED:
        raise UnreadableJson(f'it has more than {MAX_SEARCHED} bytes, too many to look for "{name}" in')
    try:
        raw = bytes(_decoder(name).decode(text).value)
    except (msgspec.MsgspecError, RecursionError) as error:
        if len(text) > MAX_PARSED:
            raise UnreadableJson(str(error)) from error
        return _object(bytes(text)).get(name)
    if len(raw) > MAX_PARSED:
        raise UnreadableJson(f'its member "{name}" has {len(raw)} bytes, more than {MAX_PARSED}')
    try:
        return json.loads(raw) if raw else None
    except (ValueError, RecursionError) as error:
        raise UnreadableJson(str(error)) from error


def check_object(text: bytes) -> None:
    """Let the text of a JSON object pass, however large it is. Raises UnreadableJson: it is something else."""
    try:
        decoded = text.decode()
        try:
            _ANY_OBJECT.decode(text)
        except msgspec.MsgspecError:
            if len(text) > MAX_PARSED:
                raise
            _object(decoded)
    except (ValueError, RecursionError) as error:
        raise UnreadableJson(str(error)) from error


def _object(text: str | bytes) -> dict[str, Any]:
    try:
        return json_object(text)
    except ValueError as error:
        raise UnreadableJson(str(error)) from error


_ANY_OBJECT: Final = msgspec.json.Decoder(msgspec.defstruct("AnyObject", []))


@lru_cache(maxsize=16)
def _decoder(name: str) -> msgspec.json.Decoder[Any]:
    value = msgspec.field(name=name, default=msgspec.Raw())
    return msgspec.json.Decoder(msgspec.defstruct("Member", [("value", msgspec.Raw, value)]))
