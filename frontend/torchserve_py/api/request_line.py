"""The line of a request, for workers that show it to the model's code: pseudo headers such as ``:path``."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from aiohttp import hdrs

from torchserve_py.api.requests import HttpRequest

#: What a request target may hold as it is; a client that sends other bytes gets them percent-encoded.
_TARGET_CHARACTERS: Final = "!#$%&'()*+,/:;=?@[]~"


def request_line(request: HttpRequest, endpoint: str, scheme: str = "http") -> tuple[tuple[str, str], ...]:
    """The pseudo headers of a request.

    Args:
        request: The request.
        endpoint: What the server has found it to be for.
        scheme: ``http`` or ``ws``; it gets an ``s`` where the connection is encrypted.
    """
    transport = request.transport
    secure = transport is not None and transport.get_extra_info("sslcontext") is not None
    peer = transport.get_extra_info("peername") if transport is not None else None
    return (
        (":method", request.method),
        (":path", _ascii(request.raw_path)),
        (":scheme", scheme + "s" if secure else scheme),
        (":authority", _ascii(request.headers.get(hdrs.HOST, ""))),
        (":endpoint", endpoint),
        (":client", f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else ""),
    )


def _ascii(text: str) -> str:
    return text if text.isascii() else quote(text.encode("utf-8", "surrogateescape"), safe=_TARGET_CHARACTERS)
