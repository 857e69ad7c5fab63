"""Writes HTTP answers with TorchServe's headers, and counts them.

Unlike TorchServe, the server keeps the connection open after an error, so that clients in trouble do not also pay for
new connections. The transport closes a connection only if the rest of the request is unusable or will not be read.
"""

import functools
import json
import uuid
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from torchserve_py.doors.failures import Failure
from torchserve_py.metrics.server_metrics import ServerMetrics
from torchserve_py.settings.table import Settings
from torchserve_py.transport.http1.request import Buffer, Request
from torchserve_py.transport.http1.response import header_line, response_head

Headers = Iterable[Sequence[str]]

JSON_TYPE: Final = ("content-type", "application/json")
EVENTS_TYPE: Final = ("content-type", "text/event-stream; charset=utf-8")

#: Headers that the server sets in every answer; a handler's headers of these names are left out.
_STANDARD_HEADERS: Final = frozenset({"cache-control", "expires", "pragma", "x-request-id"})


class Answer(NamedTuple):
    """A whole answer, or the head of a stream."""

    status: int
    body: Buffer = b""
    headers: Headers = ()
    reason: str = ""


class Sent(NamedTuple):
    """An answer was handed to the transport."""


SENT: Final = Sent()


def to_json(value: Any) -> bytes:
    """Return JSON as TorchServe writes it: indented by two spaces, with a newline at the end."""
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode("utf-8", "replace")


def json_answer(value: Any, status: int = 200) -> Answer:
    """Return an answer with JSON of the server's own."""
    return Answer(status, to_json(value), (JSON_TYPE,))


class Responses:
    """Writes answers and counts them."""

    def __init__(self, settings: Settings, metrics: ServerMetrics) -> None:
        #: By the first digit of the status.
        self._counters = {2: metrics.requests_2xx, 4: metrics.requests_4xx, 5: metrics.requests_5xx}
        self._standard = (
            "Pragma: no-cache\r\nCache-Control: no-cache; no-store, must-revalidate, private\r\n"
            "Expires: Thu, 01 Jan 1970 00:00:00 UTC\r\n" + _cross_origin_lines(settings) + "x-request-id: "
        )

    def send(self, request: Request, answer: Answer, request_id: str = "") -> Sent:
        """Write a whole answer, but for headers that only the server may set. The transport handles a slow reader.

        Raises BadResponse: the status or a header is not one that HTTP allows; nothing was written.
        """
        status, body, headers, reason = answer
        request.respond(status, self._lines(headers, request_id), body, reason=reason)
        self._count(status)
        return SENT

    def start_stream(self, request: Request, head: Answer, request_id: str = "") -> Sent:
        """Begin an answer that is sent in pieces; see `Request.send`.

        Raises BadResponse: the status or a header is not one that HTTP allows; nothing was written.
        """
        status, _, headers, reason = head
        request.start_stream(status, self._lines(headers, request_id), reason=reason)
        self._count(status)
        return SENT

    def whole_failure(self, failure: Failure) -> bytes:
        """Return the whole answer to a connection that is closed afterwards."""
        body, headers = failure_body(failure)
        framing = f"content-length: {len(body)}\r\n"
        self._count(failure.status)
        return response_head(failure.status, "", False, framing, self._lines((*failure.headers, *headers), "")) + body

    def _lines(self, headers: Headers, request_id: str) -> str:
        lines = f"{self._standard}{request_id or uuid.uuid4()}\r\n"
        for name, value in headers:
            if not _is_standard(name):
                lines += header_line(name, value)
        return lines

    def _count(self, status: int) -> None:
        """Count an answer whose head has been written. Like TorchServe, the server has no counter for redirections."""
        counter = self._counters.get(status // 100)
        if counter is not None:
            counter.value += 1


@functools.lru_cache(maxsize=256)
def _is_standard(name: str) -> bool:
    return name.lower() in _STANDARD_HEADERS


def failure_body(failure: Failure) -> tuple[bytes, Headers]:
    """Return the body of an error in TorchServe's shape, and its content type."""
    if failure.status == 413:  # TorchServe sends no body
        return b"", ()
    return to_json({"code": failure.status, "type": failure.type, "message": failure.message}), (JSON_TYPE,)


def allows_other_origins(settings: Settings) -> bool:
    """Return whether pages of other origins may call the server; TorchServe requires all three settings for that."""
    return bool(settings.cors_allowed_origin and settings.cors_allowed_methods and settings.cors_allowed_headers)


def _cross_origin_lines(settings: Settings) -> str:
    if not allows_other_origins(settings):
        return ""
    values = (settings.cors_allowed_origin, settings.cors_allowed_methods, settings.cors_allowed_headers)
    names = ("access-control-allow-origin", "access-control-allow-methods", "access-control-allow-headers")
    return "".join(f"{name}: {value}\r\n" for name, value in zip(names, values, strict=True))
