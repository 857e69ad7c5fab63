"""What HTTP allows in the head of a response, checked at both ends of the socket.

The worker checks what a handler has set before the answer counts; the frontend checks what arrives, because a worker
runs code of others, and a line break in a header would let that code write whole responses of its own.
"""

import functools
import re
from collections.abc import Iterable
from typing import Any, Final

_HEADER_NAME: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
#: Control characters but the tab, and lone surrogates, which no encoding knows.
_FORBIDDEN: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]")
_LINE_BREAK: Final = re.compile(r"[\r\n]")


def status_problem(status: Any) -> str | None:
    """Return why ``status`` cannot be the status of a response; None if it can."""
    if type(status) is int and 200 <= status <= 599:
        return None
    return f"the response status {status!r}; it must be an integer from 200 to 599"


def reason_problem(reason: Any) -> str | None:
    """Return why ``reason`` cannot be the reason phrase of a response; None if it can."""
    return None if _is_line(reason) else f"the reason phrase {_shown(reason)}, which {_fault(reason)}"


def headers_problem(headers: Iterable[tuple[Any, Any]]) -> str | None:
    """Return why pairs of name and value cannot be headers of a response; None if they can."""
    for name, value in headers:
        if type(name) is not str:
            return f"a response header whose name is {_shown(name)}, which is no text"
        if not is_header_name(name):
            return f"the response header name {_shown(name)}, which is empty or holds a character that HTTP forbids"
        if not _is_line(value):
            return f"the response header {name} to {_shown(value)}, which {_fault(value)}"
    return None


@functools.lru_cache(maxsize=256)
def is_header_name(name: str) -> bool:
    """Whether a header may have this name (RFC 9110, section 5.1)."""
    return _HEADER_NAME.fullmatch(name) is not None


def _is_line(text: Any) -> bool:
    return type(text) is str and (text.isprintable() or not _FORBIDDEN.search(text))


def _fault(text: Any) -> str:
    if type(text) is not str:
        return "is no text"
    return "holds a line break" if _LINE_BREAK.search(text) else "holds a character that HTTP forbids"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}…"
