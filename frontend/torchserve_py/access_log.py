"""The access log: one line for each request and gRPC call, in TorchServe's format, on the logger ``ACCESS_LOG``.

An engine calls `note` once it has written an answer; everything else happens elsewhere and later (`line_logs`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from torchserve_py.line_logs import LineLog
from torchserve_py.log_text import fit

LOGGER_NAME: Final = "ACCESS_LOG"

#: Client, method, target, protocol, status, seconds, ids.
_Entry = tuple[object, str, str, str, int, float, Mapping[str, str | None]]

_NO_IDS: Final[Mapping[str, str | None]] = {}


def note(
    client: object,
    method: str,
    target: str,
    protocol: str,
    status: int,
    seconds: float,
    ids: Mapping[str, str | None] = _NO_IDS,
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
    """
    _log.note((client, method, target, protocol, status, seconds, ids))


def flush() -> None:
    """Have what was noted written."""
    _log.flush()


def _text_of(entry: _Entry) -> str:
    peer, method, target, protocol, status, seconds, _ = entry
    if not target.isascii():
        target = target.encode("ascii", "backslashreplace").decode("ascii")
    target = fit(target)
    return f'/{_client(peer)} "{method} {target} {protocol}" {status} {round(seconds * 1000)}'


def _more_of(entry: _Entry) -> Mapping[str, Any]:
    peer, _, _, _, status, seconds, ids = entry
    return {"client": _client(peer), "status": status, "milliseconds": round(seconds * 1000), **ids}


def _client(peer: object) -> str:
    return f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else str(peer or "unix")


_log: Final = LineLog(LOGGER_NAME, _text_of, _more_of)
