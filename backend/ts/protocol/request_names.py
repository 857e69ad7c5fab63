"""What a request's headers say of it: the id that its client has given it, by which people find the request in the logs
of every system on its way.

The id is shown and returned, and nothing is decided by it: clients and proxies send one id again and again.
"""

import re
from collections.abc import Iterable
from typing import Any, Final

#: The header, and the key of gRPC's metadata.
REQUEST_NAME: Final = "x-request-id"
#: Visible characters of ASCII, at most 128: a UUID has 36, the id of a load balancer of AWS 64.
_USABLE: Final = re.compile(r"[!-~]{1,128}")
_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}.*")


def usable_name(given: object) -> str | None:
    """Return the id that a client has sent, or None unless it is 1 to 128 visible characters of ASCII."""
    if isinstance(given, bytes):
        given = given.decode("latin-1")
    return given if isinstance(given, str) and _USABLE.fullmatch(given) else None


def header_among(headers: Iterable[tuple[Any, Any]], name: str) -> str | None:
    """Return a header, whose name is given in lower case, among those of a request, or None; the last one counts."""
    found, length = None, len(name)
    for key, value in headers:
        if len(key) == length and _text(key).lower() == name:  # the length first: each request comes here
            found = _text(value)
    return found


def _text(given: bytes | str) -> str:
    return given.decode("latin-1") if isinstance(given, bytes) else given


def name_among(headers: Iterable[tuple[Any, Any]]) -> str | None:
    """Return the usable id among the headers of a request, which are bytes or text, or None; the last one counts."""
    return usable_name(header_among(headers, REQUEST_NAME))


def trace_of(traceparent: str | None) -> str | None:
    """Return the id of the trace in a header ``traceparent`` (W3C), or None if there is none."""
    found = None if traceparent is None else _TRACEPARENT.fullmatch(traceparent)
    return None if found is None else found[1]
