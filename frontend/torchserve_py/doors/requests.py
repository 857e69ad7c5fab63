"""What doors read from an HTTP request: the path, the body, and what the model's code gets of it."""

import zlib
from typing import Final
from urllib.parse import quote, unquote

from torchserve_py.bounded_json import MAX_PARSED, UnreadableJson, read_member
from torchserve_py.doors import priorities
from torchserve_py.doors.failures import bad_request
from torchserve_py.jobs.inference_request import InferenceRequest
from torchserve_py.transport.decompression import BARE_WINDOW, GZIP_WINDOW, ZLIB_WINDOW
from torchserve_py.transport.http1.errors import BodyTooLarge
from torchserve_py.transport.http1.request import Request

#: Characters of a request target that are passed on unchanged; other bytes are percent-encoded.
_TARGET_CHARACTERS: Final = "!#$%&'()*+,/:;=?@[]~"
GZIP: Final = "gzip"
DEFLATE: Final = "deflate"
_IDENTITY: Final = ("", "identity")
#: The method of compression in the first byte of zlib's container (RFC 1950, 2.2).
_DEFLATED: Final = 8


def split_path(target: str) -> tuple[str, ...]:
    """Return the segments of a request target: percent-decoded, split at ``/``, without query and trailing slashes.

    ``/predictions/noop/1.0/`` gives ``("predictions", "noop", "1.0")``; ``/`` and a target that is no path give ``()``.
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

    Raises DoorError: the header has characters outside of ASCII.
    """
    content_type = request.headers.get("Content-Type", "")
    if content_type and not content_type.isascii():
        raise bad_request(f"Header Content-Type: {content_type!a} holds characters outside of ASCII.")
    return content_type


def inference_of(
    request: Request, body: bytes, headers: tuple[tuple[str, str], ...] = (), protocol: str | None = None
) -> InferenceRequest:
    """Return what a request asks of the default version of a model; ``headers`` are told the model's code as well.

    Raises DoorError: the header for the priority is invalid.
    """
    return InferenceRequest(
        request.raw_headers + headers,
        body,
        request.headers.get("Content-Type"),
        protocol,
        by_default=True,
        priority=priorities.of_request(request),
    )


def model_in(body: bytes) -> str | None:
    """Return the member ``model`` of a JSON object, as OpenAI's clients send it, or None."""
    try:
        name = read_member(body, "model")
    except UnreadableJson:
        return None
    return name if isinstance(name, str) else None


async def read_small_body(request: Request, max_size: int) -> bytes:
    """Return the decompressed body of a call that takes only a few parameters.

    Raises DoorError: it has more than `MAX_PARSED` bytes, or contradicts its ``Content-Encoding``; BodyError: it is too
    large, too slow or malformed; NoRoomError: the server lacks memory now.
    """
    limit = min(max_size, MAX_PARSED)
    try:
        return await decompressed(request, await request.read(limit), limit)
    except BodyTooLarge as error:
        if limit == max_size:
            raise
        raise bad_request(f"The body of a call of this kind may have {limit} bytes, this one has more.") from error


async def decompressed(request: Request, body: bytes, max_size: int) -> bytes:
    """Return a body without its ``Content-Encoding``.

    Raises DoorError: the encoding is unknown or wrong; BodyError: the decompressed body is larger than ``max_size``
    bytes; NoRoomError: the server lacks memory now.
    """
    encoding = request.headers.get("Content-Encoding", "").strip().lower()
    if encoding in _IDENTITY:
        return body
    if encoding not in (GZIP, "x-gzip", DEFLATE):
        raise bad_request(f"Header Content-Encoding: {encoding!a} is not supported; send gzip, deflate or identity.")
    window = GZIP_WINDOW
    if encoding == DEFLATE:
        has_container = body[:1] and body[0] & 0x0F == _DEFLATED and int.from_bytes(body[:2], "big") % 31 == 0
        window = ZLIB_WINDOW if has_container else BARE_WINDOW  # some clients leave the container of zlib out
    try:
        return await request.decompress(body, window, max_size)
    except zlib.error as error:
        raise bad_request(f"The request body is not what its Content-Encoding says ({encoding}): {error}.") from error


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
