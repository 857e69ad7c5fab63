"""The charset of a body of JSON that the frontend reads: the rule is that of workers, `ts.jobs.charsets`."""

from typing import Final

from torchserve_py.endpoints.failures import EndpointError, Failure
from torchserve_py.net.http1.parser import Headers
from torchserve_py.net.http1.request import Request

_CONTENT_TYPE: Final = b"content-type"
#: Bytes of a body in another charset than UTF-8, which the event loop decodes: a tenth of a second.
MAX_RECODED: Final = 8 << 20


def undo_charset(request: Request, body: bytes) -> bytes:
    """Return a body of JSON in UTF-8; the request names no other charset from then on.

    Raises EndpointError: the charset is not known (415), the body is not text in it (400), or is too large (413).
    """
    content_type = request.headers.raw.get(_CONTENT_TYPE)
    if content_type is None or b";" not in content_type:
        return body
    recoded = _in_utf8(body, content_type.decode("latin-1"))
    if recoded is body:
        return body
    kind = content_type.partition(b";")[0].strip()
    request.headers = Headers({**request.headers.raw, _CONTENT_TYPE: kind})
    request.raw_headers = tuple(
        (name, kind if name.lower() == _CONTENT_TYPE else value) for name, value in request.raw_headers
    )
    return recoded


def _in_utf8(body: bytes, content_type: str) -> bytes:
    """Return a body in UTF-8, as it is if that is its charset. Raises EndpointError."""
    from ts.jobs.charsets import UTF_8, charset_of, in_utf8  # few requests need it
    from ts.jobs.errors import RowFailure

    if len(body) > MAX_RECODED and charset_of(content_type) not in (None, UTF_8):
        message = f"The body has {len(body)} bytes; in another charset than UTF-8 it may have {MAX_RECODED} here."
        raise EndpointError(Failure(413, "BadRequestException", message))
    try:
        return in_utf8(body, content_type)
    except RowFailure as failure:
        raise EndpointError(Failure(failure.status, failure.kind, failure.message)) from failure
