"""The line of a request, for workers that show it to the model's code: pseudo headers such as ``:path``."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from torchserve_py.transport.http1.request import Request

#: What a request target may hold as it is; a client that sends other bytes gets them percent-encoded.
_TARGET_CHARACTERS: Final = "!#$%&'()*+,/:;=?@[]~"


def request_line(request: Request, endpoint: str, scheme: str = "http") -> tuple[tuple[str, str], ...]:
    """The pseudo headers of a request.

    Args:
        request: The request.
        endpoint: What the server has found it to be for.
        scheme: ``http`` or ``ws``; it gets an ``s`` where the connection is encrypted.
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
