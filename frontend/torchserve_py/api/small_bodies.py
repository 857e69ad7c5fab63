"""Bodies of calls that need but a few parameters: small ones, which doors parse themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import hdrs

from torchserve_py.api.errors import BodyTooLargeError, bad_request
from torchserve_py.api.open_inference.compression import decompressed
from torchserve_py.api.requests import read_body
from torchserve_py.bounded_json import MAX_PARSED

if TYPE_CHECKING:
    from aiohttp import web


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
