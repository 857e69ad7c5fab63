"""The access log: one line for each request and gRPC call, in TorchServe's format, on the logger ``ACCESS_LOG``.

An engine calls `note` once it has written an answer; everything else happens elsewhere and later (`line_logs`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from torchserve_py.logs.line_logs import LineLog
from torchserve_py.logs.text import fit

LOGGER_NAME: Final = "ACCESS_LOG"

#: A parameter with the URL of an archive.
_URL: Final = re.compile(r"(?i)([?&]url=)([^&]+)")
#: Parameters that keep a request secret, as those of URLs that a store has signed.
_SECRET: Final = re.compile(
    r"(?i)([?&](?!next_page_token=)[^=&]*(?:signature|credential|token|password|secret|\bsig)[^=&]*=)[^&]+"
)

#: Client, method, target, protocol, status, seconds, ids, route.
_Entry = tuple[object, str, str, str, int, float, Mapping[str, str | None], str]

_NO_IDS: Final[Mapping[str, str | None]] = {}


def note(
    client: object,
    method: str,
    target: str,
    protocol: str,
    status: int,
    seconds: float,
    ids: Mapping[str, str | None] = _NO_IDS,
    route: str = "",
) -> None:
    """A request has been answered, now.

    Args:
        client: The socket's address of the client, as a transport's ``peername`` has it, or as text; what is neither is
            a client on this machine's Unix socket.
        method: ``POST``; of gRPC ``gRPC``.
        target: The request's target with its query; of gRPC the full name of the method.
        protocol: ``HTTP/1.1``.
        status: Of HTTP, or of gRPC.
        seconds: From the request's arrival to the end of its answer.
        ids: ``request_id`` and ``sequence_id``, for lines in JSON.
        route: The pattern of the target's path, for lines in JSON; empty where the target has none.
    """
    _log.note((client, method, target, protocol, status, seconds, ids, route))


def flush() -> None:
    """Have what was noted written."""
    _log.flush()


def _text_of(entry: _Entry) -> str:
    peer, method, target, protocol, status, seconds, _, _ = entry
    if "?" in target:
        target = _SECRET.sub(r"\1***", _URL.sub(_without_secrets, target))
    if not target.isascii():
        target = target.encode("ascii", "backslashreplace").decode("ascii")
    target = fit(target)
    return f'/{_client(peer)} "{method} {target} {protocol}" {status} {round(seconds * 1000)}'


def _more_of(entry: _Entry) -> Mapping[str, Any]:
    peer, _, _, _, status, seconds, ids, route = entry
    named = {"route": route} if route else {}
    return {"client": _client(peer), "status": status, "milliseconds": round(seconds * 1000), **named, **ids}


def _without_secrets(url: re.Match[str]) -> str:
    """The parameter with the URL of an archive, without its user, its password and its query, which may be signed."""
    try:
        parts = urlsplit(unquote(url[2]))
    except ValueError:
        return f"{url[1]}***"
    if "@" not in parts.netloc and not parts.query:
        return url[0]
    host = parts.netloc.rpartition("@")[2]
    shown = urlunsplit((parts.scheme, f"***@{host}" if host != parts.netloc else host, parts.path, "", ""))
    return url[1] + quote(shown + ("?***" if parts.query else ""), safe=":/@*?")


def _client(peer: object) -> str:
    return f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else str(peer or "unix")


_log: Final = LineLog(LOGGER_NAME, _text_of, _more_of)
