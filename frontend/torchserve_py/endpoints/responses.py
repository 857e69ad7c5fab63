"""Gives HTTP answers TorchServe's headers, and counts those that are not counted with their requests.

Unlike TorchServe, the server keeps the connection open after an error, so that clients in trouble do not also pay for
new connections. The transport closes a connection only if the rest of the request is unusable or will not be read.
"""

import functools
import json
import time
import uuid
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple

from torchserve_py.base.metrics.server_metrics import ServerMetrics
from torchserve_py.base.settings.table import Settings
from torchserve_py.endpoints.failures import Failure
from torchserve_py.net.http1.request import Buffer, Request, header_line, response_head
from ts.protocol.media_types import EVENTS, JSON
from ts.protocol.request_names import REQUEST_NAME, usable_name

Headers = Iterable[Sequence[str]]

JSON_TYPE: Final = ("content-type", JSON)
EVENTS_TYPE: Final = ("content-type", EVENTS)

_ID_KEY: Final = REQUEST_NAME.encode()
#: Headers that the server sets in every answer; a handler's headers of these names are left out.
_STANDARD_HEADERS: Final = frozenset({"cache-control", "expires", "pragma", REQUEST_NAME})
#: Headers of every answer where one origin has models and management. What a model answers is not a page of that
#: origin, so that its scripts can neither use the management API nor read the key that the console keeps. A handler,
#: or another endpoint, may set its own instead.
_CONFINING: Final = (
    ("content-security-policy", "Content-Security-Policy: sandbox\r\n"),
    ("x-content-type-options", "X-Content-Type-Options: nosniff\r\n"),
)

#: Proxies that collect answers, such as nginx by default, pass on each piece of one with this header as it comes.
_BUFFERING: Final = "x-accel-buffering"
_NOT_BUFFERED: Final = ((_BUFFERING, "no"),)

#: What pages of other origins may do where only their origin is configured. An asterisk alone excludes Authorization.
_METHODS: Final = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"
_ANY_HEADER: Final = "*, Authorization"


class Answer(NamedTuple):
    """A whole answer, or the head of a stream."""

    status: int
    body: Buffer = b""
    headers: Headers = ()
    reason: str = ""


class AlreadySent(Enum):
    """The type of `ALREADY_SENT`."""

    already_sent = "already sent"


#: The reply of what has sent its answer itself.
ALREADY_SENT: Final = AlreadySent.already_sent


def to_json(value: Any) -> bytes:
    """Return JSON as TorchServe writes it: indented by two spaces, with a newline at the end."""
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode("utf-8", "replace")


def json_answer(value: Any, status: int = 200) -> Answer:
    """Return an answer with JSON of the server's own."""
    return Answer(status, to_json(value), (JSON_TYPE,))


class Responses:
    """The headers of answers, and the beginnings of streams."""

    def __init__(self, settings: Settings, metrics: ServerMetrics) -> None:
        self._answered = metrics.answered
        self._is_confining = settings.inference_address.shares_listener(settings.management_address)
        self._standard = (
            "Pragma: no-cache\r\nCache-Control: no-cache; no-store, must-revalidate, private\r\n"
            "Expires: Thu, 01 Jan 1970 00:00:00 UTC\r\n" + _cross_origin_lines(settings) + "x-request-id: "
        )

    def start_stream(self, request: Request, head: Answer, request_id: str = "") -> None:
        """Begin an answer that is sent in pieces; see `Request.send`.

        Raises BadResponse: the status or a header is not one that HTTP allows; nothing was written.
        """
        status, _, headers, reason = head
        headers = tuple(headers)
        if not any(name.lower() == _BUFFERING for name, _ in headers):
            headers += _NOT_BUFFERED
        request.start_stream(status, self.lines(request, headers, request_id), reason=reason)
        self._answered(time.time(), status)

    def whole_failure(self, failure: Failure) -> bytes:
        """Return the whole answer to a connection that is closed afterwards."""
        body, headers = failure_body(failure)
        framing = f"content-length: {len(body)}\r\n"
        self._answered(time.time(), failure.status)
        lines = self._named_lines((*failure.headers, *headers), str(uuid.uuid4()))
        return response_head(failure.status, "", False, framing, lines) + body

    def lines(self, request: Request, headers: Headers, request_id: str) -> str:
        """Return the lines of an answer's headers; those that only the server may set are its own.

        Note the id that the client is told: its own, else that of the request's job, else a new one. Raises
        BadResponse: a header is not one that HTTP allows.
        """
        sent = request.headers.raw.get(_ID_KEY)
        request.id = name = (sent and usable_name(sent)) or request_id or str(uuid.uuid4())
        return self._named_lines(headers, name) if headers or self._is_confining else f"{self._standard}{name}\r\n"

    def _named_lines(self, headers: Headers, request_id: str) -> str:
        lines = f"{self._standard}{request_id}\r\n"
        if self._is_confining:
            headers = tuple(headers)
            given = {name.lower() for name, _ in headers}
            lines += "".join(line for name, line in _CONFINING if name not in given)
        for name, value in headers:
            if not _is_standard(name):
                lines += header_line(name, value)
        return lines


@functools.lru_cache(maxsize=256)
def _is_standard(name: str) -> bool:
    return name.lower() in _STANDARD_HEADERS


def failure_body(failure: Failure) -> tuple[bytes, Headers]:
    """Return the body of an error in TorchServe's shape, and its content type."""
    if failure.status == 413:  # TorchServe sends no body
        return b"", ()
    return to_json({"code": failure.status, "type": failure.type, "message": failure.message}), (JSON_TYPE,)


def allows_other_origins(settings: Settings) -> bool:
    """Return whether pages of other origins may call the server."""
    return bool(settings.cors_allowed_origin)


def _cross_origin_lines(settings: Settings) -> str:
    if not allows_other_origins(settings):
        return ""
    methods, headers = settings.cors_allowed_methods or _METHODS, settings.cors_allowed_headers or _ANY_HEADER
    values = (settings.cors_allowed_origin, methods, headers)
    names = ("access-control-allow-origin", "access-control-allow-methods", "access-control-allow-headers")
    return "".join(f"{name}: {value}\r\n" for name, value in zip(names, values, strict=True))
