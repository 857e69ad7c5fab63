"""The answers that do not come from a model, in Truss's shapes: errors, and what its web framework says of paths.

Errors are ``{"error": …}`` with two headers: who is to blame (always ``04``, the model's server) and a code that tells
errors of the server, of the model and of the client apart.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from torchserve_py.api.errors import Failure, failure_of_job
from torchserve_py.api.responses import JSON_TYPE, RETRY_AFTER_SECONDS, Headers, Responses, Sent
from torchserve_py.scheduling.effects import Cause
from torchserve_py.transport.http1.request import Request
from ts.protocol.messages import CAUSE_HEADER

if TYPE_CHECKING:
    from torchserve_py.models.model import Model

#: What a client is told of what went wrong in the model's code.
MODEL_FAILED: Final = "Internal Server Error (in model/chainlet)."

_SOURCE: Final = ("X-BASETEN-ERROR-SOURCE", "04")
_CODE_HEADER: Final = "X-BASETEN-ERROR-CODE"
_NOT_FOUND: Final = b'{"detail":"Not Found"}'
_METHOD_NOT_ALLOWED: Final = b'{"detail":"Method Not Allowed"}'


class ErrorCode(StrEnum):
    """Whose mistake it is."""

    server = "500"
    model = "600"
    client = "700"


def error_headers(code: ErrorCode) -> Headers:
    """The headers of every error."""
    return (JSON_TYPE, _SOURCE, (_CODE_HEADER, code))


class Answers:
    """Writes them."""

    def __init__(self, responses: Responses) -> None:
        self._responses = responses

    def json(self, request: Request, value: Any) -> Sent:
        """Answer with a value."""
        return self._responses.send(request, 200, json.dumps(value).encode(), (JSON_TYPE,))

    def error(
        self,
        request: Request,
        status: int,
        message: str,
        code: ErrorCode,
        headers: Sequence[Sequence[str]] = (),
    ) -> Sent:
        """Answer with an error."""
        body = json.dumps({"error": message}).encode()
        return self._responses.send(request, status, body, (*error_headers(code), *headers))

    def not_ready(self, request: Request, name: str) -> Sent:
        """The model is loading, failed to load, or says that it is not healthy."""
        return self.error(
            request,
            503,
            f"Model with name {name} is not ready.",
            ErrorCode.model,
            (("Retry-After", RETRY_AFTER_SECONDS),),
        )

    def job_failed(self, request: Request, cause: Cause, model: Model) -> Sent:
        """The job ended without an answer from the model."""
        failure = failure_of_job(cause, model.name, None)
        if cause is Cause.queue_full:
            waiting = model.config.job_queue_size
            message = f"Model with name {model.name} has {waiting} requests waiting already (jobQueueSize)."
            failure = failure._replace(message=message)
        return self.failure(request, failure)

    def failure(self, request: Request, failure: Failure) -> Sent:
        """A refusal by the server itself."""
        headers = [(CAUSE_HEADER, failure.cause)] if failure.cause else []
        if failure.overloaded:
            headers.append(("Retry-After", RETRY_AFTER_SECONDS))
        code = ErrorCode.model if failure.overloaded else ErrorCode.server
        if failure.status < 500:
            code = ErrorCode.client
        return self.error(request, failure.status, failure.message, code, headers)

    def not_found(self, request: Request) -> Sent:
        """No such path."""
        return self._responses.send(request, 404, _NOT_FOUND, (JSON_TYPE,))

    def method_not_allowed(self, request: Request, allowed: str) -> Sent:
        """The path is for another method."""
        return self._responses.send(request, 405, _METHOD_NOT_ALLOWED, (JSON_TYPE, ("Allow", allowed)))


def quietly(sent: Sent) -> Sent:
    """The same answer, without a line in the access log: it is to a probe."""
    return sent._replace(is_quiet=True)
