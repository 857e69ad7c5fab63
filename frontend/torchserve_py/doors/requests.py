"""What doors read from an HTTP request beside its head: the segments of its path, and its body."""

from __future__ import annotations

from urllib.parse import unquote

from torchserve_py.doors.errors import BodyTooLargeError, DoorError, invalid_message, request_timeout
from torchserve_py.transport.http1.errors import BodyError, BodyTooLarge, BodyTooSlow
from torchserve_py.transport.http1.request import Request


def split_path(target: str) -> tuple[str, ...]:
    """The segments of a request target: percent-decoded, split at ``/``, without the query and trailing slashes.

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
    """The whole body.

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
    """What the client is told of a body that cannot be had."""
    if isinstance(error, BodyTooLarge):
        return BodyTooLargeError(error.limit)
    if isinstance(error, BodyTooSlow):
        return request_timeout(str(error))
    return DoorError(invalid_message(f"The request body could not be read. {error}"))
