"""Bodies of calls that need but a few parameters: small ones, which doors parse themselves."""

from __future__ import annotations

from torchserve_py.bounded_json import MAX_PARSED
from torchserve_py.doors.errors import BodyTooLargeError, bad_request
from torchserve_py.doors.open_inference.answers import decompressed
from torchserve_py.doors.requests import read_body
from torchserve_py.transport.http1.request import Request


async def read_small_body(request: Request, max_size: int) -> bytes:
    """Return the body of a call that needs but a few parameters, without its ``Content-Encoding``.

    Args:
        request: Whose body.
        max_size: What the server allows for any body, in bytes.

    Raises:
        DoorError: It has more than `MAX_PARSED` bytes, does not arrive, or is not encoded as it says.
    """
    limit = min(max_size, MAX_PARSED)
    try:
        body = await read_body(request, limit)
        return await decompressed(request, body, limit)
    except BodyTooLargeError as error:
        if limit == max_size:
            raise
        raise bad_request(f"The body of a call of this kind may have {limit} bytes, this one has more.") from error
