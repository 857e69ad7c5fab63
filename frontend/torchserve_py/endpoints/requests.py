"""What endpoints read from a request: its path, its body, how urgent it is, and what the model's code gets of it."""

from typing import Any, Final
from urllib.parse import quote, unquote

from torchserve_py.base.bounded_json import MAX_PARSED, UnreadableJson, read_member
from torchserve_py.endpoints.body_charset import undo_charset
from torchserve_py.endpoints.content_encodings import decompressed
from torchserve_py.endpoints.failures import EndpointError, bad_request
from torchserve_py.net.http1.errors import BodyTooLarge
from torchserve_py.net.http1.request import Request

#: Characters of a request target that are passed on unchanged; other bytes are percent-encoded.
_TARGET_CHARACTERS: Final = "!#$%&'()*+,/:;=?@[]~"

#: A request's priority: 1 is the most urgent, then 2, and so on. 0 means no priority, and comes last. It is a parameter
#: of the Open Inference Protocol, or a header.
PRIORITY: Final = "priority"
PRIORITY_HEADER: Final = "ts_request_priority"
_PRIORITY_KEY: Final = PRIORITY_HEADER.encode()
_MAX_PRIORITY: Final = 2**64 - 1
_PRIORITY_DIGITS: Final = 20


def split_path(target: str) -> tuple[str, ...]:
    """Return the segments of a request target: percent-decoded, split at ``/``, without query and trailing slashes.

    ``/predictions/noop/1.0/`` gives ``("predictions", "noop", "1.0")``; ``/`` and other targets give ``()``.
    """
    path = target.partition("?")[0].partition("#")[0]
    if not path.startswith("/"):
        _, scheme, rest = path.partition("://")  # the absolute form, as sent to proxies
        path = "/" + rest.partition("/")[2] if scheme else ""
    if not path.isascii():
        path = path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    if "%" in path:
        path = unquote(path)
    return tuple(path.rstrip("/").split("/")[1:])


def content_type_of(request: Request) -> str:
    """Return the header ``Content-Type``, or an empty text.

    Raises EndpointError: the header has characters outside of ASCII.
    """
    sent = request.headers.raw.get(b"content-type")
    if sent is None:
        return ""
    content_type = sent.decode("utf-8", "surrogateescape")
    if not sent.isascii():
        raise bad_request(f"Header Content-Type: {content_type!a} holds characters outside of ASCII.")
    return content_type


def priority_of(request: Request) -> int:
    """Return the priority that the header of a request names. Raises EndpointError: the header is not a priority."""
    value = request.headers.raw.get(_PRIORITY_KEY)
    return 0 if value is None else priority_in_text(value.decode("utf-8", "surrogateescape"), "Header")


def priority_in_text(text: str, place: str) -> int:
    """Return the priority in a text; ``place`` says in messages where the text came from.

    Raises EndpointError: the text is not a priority.
    """
    digits = text.strip()
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= _PRIORITY_DIGITS) or int(digits) > _MAX_PRIORITY:
        raise _not_a_priority(f"{place} {PRIORITY_HEADER}", text)
    return int(digits)


def priority_in_parameter(value: Any) -> int:
    """Return the priority for a value of the parameter. Raises EndpointError: the value is not a priority."""
    if value is None:
        return 0
    if type(value) is not int or not 0 <= value <= _MAX_PRIORITY:
        raise _not_a_priority(f"Parameter {PRIORITY}", value)
    return value


def _not_a_priority(place: str, value: Any) -> EndpointError:
    return bad_request(
        f"{place}: {value!a} is not a priority; it must be a whole number from 0 to {_MAX_PRIORITY}: 1 is the most"
        " urgent, 0 the same as no priority."
    )


def model_in(body: bytes) -> str | None:
    """Return the member ``model`` of a JSON object, as OpenAI's clients send it, or None."""
    try:
        name = read_member(body, "model")
    except UnreadableJson:
        return None
    return name if isinstance(name, str) else None


def asks_for_stream(body: bytes) -> bool:
    """Return whether the member ``stream`` of a JSON object is true, as OpenAI's clients send it."""
    try:
        return read_member(body, "stream") is True
    except UnreadableJson:
        return False


async def read_small_body(request: Request, max_size: int) -> bytes:
    """Return the decompressed body, in UTF-8, of a call that takes only a few parameters.

    Raises EndpointError: it has more than `MAX_PARSED` bytes, or contradicts its ``Content-Encoding`` or its charset;
    BodyError: it is too large, too slow or malformed; NoRoomError: the server lacks memory now.
    """
    limit = min(max_size, MAX_PARSED)
    try:
        return undo_charset(request, await decompressed(request, await request.read(limit), limit))
    except BodyTooLarge as error:
        if limit == max_size:
            raise
        raise bad_request(f"The body of a call of this kind may have {limit} bytes, this one has more.") from error


def request_line(request: Request, endpoint: str, scheme: str = "http") -> tuple[tuple[str, str], ...]:
    """Return pseudo headers such as ``:path``, from which workers make the request that the model's code sees.

    ``scheme`` is ``http`` or ``ws``; an ``s`` is added on an encrypted connection.
    """
    peer = request.connection.peer
    return (
        (":method", request.method),
        (":path", _ascii(request.target)),
        (":scheme", scheme + "s" if request.connection.is_secure else scheme),
        (":authority", _ascii(request.headers.get("Host", ""))),
        (":endpoint", endpoint),
        (":client", f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else ""),
    )


def _ascii(text: str) -> str:
    return text if text.isascii() else quote(text.encode("utf-8", "surrogateescape"), safe=_TARGET_CHARACTERS)
