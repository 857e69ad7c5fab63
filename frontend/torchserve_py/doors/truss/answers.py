"""The server's own answers in Truss's shapes: errors, and what Truss's web framework says of paths."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from torchserve_py.doors.responses import JSON_TYPE, RETRY_AFTER_SECONDS, Responses, Sent
from torchserve_py.doors.truss.dialect import ErrorCode, error_answer
from torchserve_py.transport.http1.request import Request

#: What a client is told of what went wrong in the model's code.
MODEL_FAILED: Final = "Internal Server Error (in model/chainlet)."

_NOT_FOUND: Final = b'{"detail":"Not Found"}'
_METHOD_NOT_ALLOWED: Final = b'{"detail":"Method Not Allowed"}'


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
        return self._responses.send_answer(request, error_answer(status, message, code, headers))

    def not_ready(self, request: Request, name: str) -> Sent:
        """The model is loading, failed to load, or says that it is not healthy."""
        return self.error(
            request,
            503,
            f"Model with name {name} is not ready.",
            ErrorCode.model,
            (("Retry-After", RETRY_AFTER_SECONDS),),
        )

    def not_found(self, request: Request) -> Sent:
        """No such path."""
        return self._responses.send(request, 404, _NOT_FOUND, (JSON_TYPE,))

    def method_not_allowed(self, request: Request, allowed: str) -> Sent:
        """The path is for another method."""
        return self._responses.send(request, 405, _METHOD_NOT_ALLOWED, (JSON_TYPE, ("Allow", allowed)))


def quietly(sent: Sent) -> Sent:
    """The same answer, without a line in the access log: it is to a probe."""
    return sent._replace(is_quiet=True)
