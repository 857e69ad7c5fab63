"""What doors read from an HTTP request: the segments of its path, its body, and its line as a model's code sees it."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote, unquote

from torchserve_py.doors.errors import BodyTooLargeError, DoorError, invalid_message, no_room, request_timeout
from torchserve_py.transport.http1.errors import BodyError, BodyHasNoRoom, BodyTooLarge, BodyTooSlow
from torchserve_py.transport.http1.request import Request

#: What a request target may hold as it is; a client that sends other bytes gets them percent-encoded.
_TARGET_CHARACTERS: Final = "!#$%&'()*+,/:;=?@[]~"


def split_path(target: str) -> tuple[str, ...]:
    """Return the segments of a request target: percent-decoded, split at ``/``, without query and trailing slashes.

    ``/predictions/noop/1.0/`` gives ``("predictions", "noop", "1.0")``; ``/`` and what is no path give ``()``.
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


async def read_body(request: Request, max_size: int) -> bytes:
    """Return the whole body.

    Args:
        request: Whose body.
        max_size: Bytes allowed. A larger body is refused at its ``Content-Length`` or at the first byte too many.

    Raises:
        DoorError: The body is too large, too slow, or malformed.
    """
    try:
        return await request.read(max_size)
    except BodyError as error:
        raise body_refusal(error) from error


def body_refusal(error: BodyError) -> DoorError:
    """Return what the client is told of a body that is too large, too slow or malformed."""
    if isinstance(error, BodyTooLarge):
        return BodyTooLargeError(error.limit)
    if isinstance(error, BodyTooSlow):
        return request_timeout(str(error))
    if isinstance(error, BodyHasNoRoom):
        return no_room(str(error))
    return DoorError(invalid_message(f"The request body could not be read. {error}"))


def request_line(request: Request, endpoint: str, scheme: str = "http") -> tuple[tuple[str, str], ...]:
    """Return pseudo headers such as ``:path``, for workers that show the line of a request to the model's code.

    Args:
        request: The request.
        endpoint: What the server has found the request to be for.
        scheme: ``http`` or ``ws``; an ``s`` is added where the connection is encrypted.
    """
    peer = request.peer
    return (
        (":method", request.method),
        (":path", _ascii(request.target)),
        (":scheme", scheme + "s" if request.is_secure else scheme),
        (":authority", _ascii(request.headers.get("Host", ""))),
        (":endpoint", endpoint),
        (":client", f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else ""),
    )


def _ascii(text: str) -> str:
    return text if text.isascii() else quote(text.encode("utf-8", "surrogateescape"), safe=_TARGET_CHARACTERS)
