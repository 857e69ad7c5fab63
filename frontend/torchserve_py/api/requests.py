"""What doors read from an HTTP request: its head, the segments of its path, and its body."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import unquote

from aiohttp import web

from torchserve_py.api.errors import BodyTooLargeError, request_timeout

if TYPE_CHECKING:
    from aiohttp.abc import AbstractStreamWriter
    from aiohttp.http import HttpVersion

#: Bytes per second that a body must bring in the mean, or one byte a minute would hold a connection for ever.
_MIN_RATE: Final = 500.0


class HttpRequest(Protocol):
    """A request as far as it matters whoever has parsed it: aiohttp's, or a `whole_requests.WholeRequest`."""

    @property
    def method(self) -> str:
        """``GET``, …"""

    @property
    def raw_path(self) -> str:
        """The target as it was sent."""

    @property
    def version(self) -> HttpVersion:
        """Of HTTP."""

    @property
    def headers(self) -> Mapping[str, str]:
        """By their names, whose case does not matter."""

    @property
    def raw_headers(self) -> tuple[tuple[bytes, bytes], ...]:
        """As they were sent."""

    @property
    def keep_alive(self) -> bool:
        """Whether the connection stays open after the answer, as far as the client goes."""

    @property
    def protocol(self) -> web.RequestHandler:
        """The connection."""

    @property
    def transport(self) -> asyncio.Transport | None:
        """Where the answer is written; None once the client is gone."""

    @property
    def writer(self) -> AbstractStreamWriter:
        """What waits for the client to read."""

    def __setitem__(self, key: Any, value: Any, /) -> None:
        """Note something about the request."""

    def get(self, key: Any, default: Any, /) -> Any:
        """What was noted about it."""


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


async def read_body(request: web.BaseRequest, max_size: int, stall_limit: float) -> bytes:
    """The whole body.

    Args:
        request: Whose body.
        max_size: Bytes allowed. A larger body is refused at its ``Content-Length`` or at the first byte too many.
        stall_limit: Seconds without a byte after which the client is given up, or one that is slow beyond patience.

    Raises:
        BodyTooLargeError: The body is too large.
        DoorError: The client stalled.
    """
    content = request.content
    if content.is_eof():  # it came together with the head, as small ones do
        body = content.read_nowait()
        if len(body) > max_size:
            raise BodyTooLargeError(max_size)
        return body
    announced = request.content_length
    if announced is not None and announced > max_size:
        raise BodyTooLargeError(max_size)
    if request.headers.get("Expect", "").lower() == "100-continue" and request.transport is not None:
        request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    content.set_read_chunk_size(max_size)
    chunks: list[bytes] = []
    size = 0
    loop = asyncio.get_running_loop()
    started = loop.time()
    try:
        async with asyncio.timeout(stall_limit) as stalled:
            while chunk := await content.readany():
                size += len(chunk)
                if size > max_size:
                    raise BodyTooLargeError(max_size)
                chunks.append(chunk)
                stalled.reschedule(min(loop.time(), started + size / _MIN_RATE) + stall_limit)
    except TimeoutError:
        message = (
            f"The request body arrives too slowly: {size} bytes in {loop.time() - started:.0f} seconds. Its bytes may"
            f" pause for {stall_limit:g} seconds and must come at {_MIN_RATE:g} bytes per second or more in the mean."
        )
        raise request_timeout(message) from None
    return b"".join(chunks)
