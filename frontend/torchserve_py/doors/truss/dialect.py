"""Truss's interface as a dialect.

Errors are ``{"error": …}`` with two headers: who is to blame (always ``04``, the model's server) and a code that tells
errors of the server, of the model and of the client apart. Answers and streams are what the model makes of them.
"""

from __future__ import annotations

import json
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from torchserve_py.doors.errors import HANDLER_ERROR, Failure
from torchserve_py.doors.pipeline import Answer, Exchange, HttpDialect, HttpExchange
from torchserve_py.doors.responses import JSON_TYPE, RETRY_AFTER_SECONDS
from torchserve_py.scheduling.effects import Cause
from ts.protocol.messages import CAUSE_HEADER

if TYPE_CHECKING:
    from torchserve_py.doors.responses import Headers

_SOURCE: Final = ("X-BASETEN-ERROR-SOURCE", "04")
_CODE_HEADER: Final = "X-BASETEN-ERROR-CODE"


class ErrorCode(StrEnum):
    """Whose mistake it is."""

    server = "500"
    model = "600"
    client = "700"


class TrussDialect(HttpDialect):
    """What Truss's own server says."""

    def failure(self, failure: Failure, exchange: HttpExchange | None = None) -> Answer:
        """The answer that tells of a failure."""
        headers = []
        if failure.cause and failure.cause != HANDLER_ERROR:
            headers.append((CAUSE_HEADER, failure.cause))
        if failure.overloaded:
            headers.append(("Retry-After", RETRY_AFTER_SECONDS))
        code = ErrorCode.model if failure.overloaded else ErrorCode.server
        if failure.status < 500:
            code = ErrorCode.client
        return error_answer(failure.status, failure.message, code, headers)

    def ended(self, exchange: Exchange, cause: Cause) -> Failure:
        """What a client is told about a job that ended without an answer."""
        failure = super().ended(exchange, cause)
        if cause is Cause.queue_full:
            name, waiting = exchange.model.name, exchange.model.config.job_queue_size
            message = f"Model with name {name} has {waiting} requests waiting already (jobQueueSize)."
            return failure._replace(message=message)
        return failure


TRUSS_DIALECT: Final = TrussDialect()


def error_answer(status: int, message: str, code: ErrorCode, headers: Headers = ()) -> Answer:
    """An error."""
    body = json.dumps({"error": message}).encode()
    return Answer(status, body, (JSON_TYPE, _SOURCE, (_CODE_HEADER, code), *headers))
