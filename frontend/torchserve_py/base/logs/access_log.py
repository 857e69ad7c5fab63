"""The access log: one line for each request and gRPC call, in TorchServe's format, on the logger ``ACCESS_LOG``.

A server calls `note` when it has written an answer; soon after, the event loop formats the line (`line_logs`).
"""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from torchserve_py.base.logs.line_logs import LineLog
from torchserve_py.base.logs.unfit_characters import fit

LOGGER_NAME: Final = "ACCESS_LOG"

#: Names of parameters with a secret, such as the signature of a presigned URL.
_SECRET: Final = re.compile(
    r"(?i)signature|credential|token|passw|pwd|secret|bearer|jwt|access.?key|\bsig"
    r"|(?:^|[^a-z])(?:key|auth|pass|authorization|resume|sas)(?:$|[^a-z_-])|apikey(?:$|\W)"
    r"|^(?:(?:auth|authorization|oauth|device|user)_)?code$|^(?:assertion|hmac|otp|sid|session|session_?id|ticket)$"
)
#: Parameters end at ``&``; for some servers, and so for some clients, at ``;`` too.
_PARAMETER: Final = re.compile("[^&;]+")
_NO_SECRETS: Final = frozenset(("next_page_token",))
#: Of so many clients it is kept how a line names them.
_KEPT_PEERS: Final = 1024

#: Client, method, target, protocol, status, seconds, ids, route.
Entry = tuple[object, str, str, str, int, float, Mapping[str, str | None], str]

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
    """Record a request that has just been answered.

    Args:
        client: The address of the client, as the ``peername`` of a transport or as text; None or empty for a client
            of a Unix socket.
        method: For example ``POST``; ``gRPC`` for a gRPC call.
        target: The target with its query; the full name of the method for a gRPC call.
        seconds: From the arrival of the request to the end of the answer.
        ids: ``request_id``, ``sequence_id``, ``trace_id``, ``model``, ``model_version`` and ``cause``, for lines in
            JSON; those that are unknown are left out or None.
        route: The pattern of the target's path, for lines in JSON; empty where the target has none.
    """
    log.note((client, method, target, protocol, status, seconds, ids, route))


def flush() -> None:
    """Hand the recorded requests to the thread that writes them."""
    log.flush()


def _texts_of(entries: Sequence[Entry], start: str, second: int) -> list[str]:
    return [
        f'{start}/{_client(peer)} "{method} {_shown(target)} {protocol}" {status} {round(seconds * 1000)}'
        for peer, method, target, protocol, status, seconds, _, _ in entries
    ]


def _shown(target: str) -> str:
    """Return a target as lines show it: in ASCII, without secrets, and without what would end it there."""
    if "?" in target:
        target = without_secrets(target)
    if not (target.isascii() and target.isprintable()):
        target = fit(target.encode("ascii", "backslashreplace").decode("ascii"))
    if '"' in target:  # httptools takes it, though a URL has it as this
        target = target.replace('"', "%22")
    return target


def without_secrets(target: str) -> str:
    """Return a request's target with ``***`` for what the names of its parameters say to be secret."""
    path, mark, query = target.partition("?")
    if not mark:
        return target
    return f"{path}?{_PARAMETER.sub(lambda found: _without_secret(found[0]), query)}"


def _more_of(entry: Entry) -> Mapping[str, Any]:
    peer, _, _, _, status, seconds, ids, route = entry
    named = {"route": route} if route else {}
    return {"client": _client(peer), "status": status, "milliseconds": round(seconds * 1000), **named, **ids}


def _without_secret(parameter: str) -> str:
    """Return a parameter with ``***`` for a secret, and for the secrets in a URL."""
    written, _, value = parameter.partition("=")
    name = unquote(written)
    if not value:
        return parameter
    if name not in _NO_SECRETS and _SECRET.search(name):
        return f"{written}=***"
    may_name_user = "@" in unquote(value).partition("//")[2]
    return f"{written}={_location(value)}" if may_name_user or name.lower() == "url" else parameter


def _location(url: str) -> str:
    """Return a URL without user, password and query, which may hold a signature."""
    try:
        parts = urlsplit(unquote(url))
    except ValueError:
        return "***"
    if "@" not in parts.netloc and not parts.query:
        return url
    host = parts.netloc.rpartition("@")[2]
    shown = urlunsplit((parts.scheme, f"***@{host}" if host != parts.netloc else host, parts.path, "", ""))
    return quote(shown + ("?***" if parts.query else ""), safe=":/@*?")


@lru_cache(maxsize=_KEPT_PEERS)
def _client(peer: object) -> str:
    if not isinstance(peer, tuple):
        return str(peer or "unix")
    host, port = peer[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


#: Takes the arguments of `note` as one entry.
log: Final = LineLog(LOGGER_NAME, _texts_of, _more_of)
