"""JSON that doors read themselves: small bodies whole, and of large ones the one member that routing needs.

The event loop waits while JSON is parsed, and a client decides how large it is and what it holds: six megabytes of
empty lists keep `json.loads` busy for more than a second. So what is parsed here is bounded. msgspec finds a member
of a large body without making anything of what stands beside it: 600 MB a second and more, whatever it is.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import msgspec
from aiohttp import hdrs

from torchserve_py.api.errors import BodyTooLargeError, bad_request
from torchserve_py.api.open_inference.compression import decompressed
from torchserve_py.api.requests import read_body

if TYPE_CHECKING:
    from aiohttp import web

#: Bytes of a body that is parsed whole, and of a member.
MAX_PARSED: Final = 64 * 1024
#: Bytes of a body that a member is looked for in.
MAX_SEARCHED: Final = 64 << 20


class UnreadableJson(ValueError):
    """Text that is no JSON object or is over a limit; the message says which."""


async def read_small_body(request: web.BaseRequest, max_size: int, stall_limit: float) -> bytes:
    """Return the body of a call that needs but a few parameters, without its ``Content-Encoding``.

    Args:
        request: Whose body.
        max_size: What the server allows for any body, in bytes.
        stall_limit: See `requests.read_body`.

    Raises:
        DoorError: It has more than `MAX_PARSED` bytes, does not arrive, or is not encoded as it says.
    """
    limit = min(max_size, MAX_PARSED)
    try:
        body = await read_body(request, limit, stall_limit)
        return await decompressed(body, request.headers.get(hdrs.CONTENT_ENCODING, ""), limit)
    except BodyTooLargeError as error:
        if limit == max_size:
            raise
        raise bad_request(f"The body of a call of this kind may have {limit} bytes, this one has more.") from error


def read_member(text: bytes | memoryview, name: str) -> Any:
    """Return the value of one member of a JSON object; None if it has no such member.

    Small text may hold NaN and infinities, as Python writes them; large text may not.

    Raises:
        UnreadableJson: It is no JSON object, or the text or the member is too large.
    """
    if len(text) > MAX_SEARCHED:
        raise UnreadableJson(f'it has more than {MAX_SEARCHED} bytes, too many to look for "{name}" in')
    try:
        raw = bytes(_decoder(name).decode(text).value)
    except (msgspec.MsgspecError, RecursionError) as error:
        if len(text) > MAX_PARSED:
            raise UnreadableJson(str(error)) from error
        return _member_of_small(bytes(text), name)
    if len(raw) > MAX_PARSED:
        raise UnreadableJson(f'its member "{name}" has {len(raw)} bytes, more than {MAX_PARSED}')
    try:
        return json.loads(raw) if raw else None
    except (ValueError, RecursionError) as error:
        raise UnreadableJson(str(error)) from error


def _member_of_small(text: bytes, name: str) -> Any:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnreadableJson(str(error)) from error
    if not isinstance(document, dict):
        raise UnreadableJson(f"it is of type {type(document).__name__}, not an object")
    return document.get(name)


@lru_cache(maxsize=16)
def _decoder(name: str) -> msgspec.json.Decoder[Any]:
    value = msgspec.field(name=name, default=msgspec.Raw())
    return msgspec.json.Decoder(msgspec.defstruct("Member", [("value", msgspec.Raw, value)]))
