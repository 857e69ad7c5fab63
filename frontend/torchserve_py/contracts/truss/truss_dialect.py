"""Truss's interface as a dialect.

Errors are ``{"error": …}`` with two headers: the source (always ``04``, the model's server) and a code that tells
errors of the server, of the model and of the client apart. The model makes answers and streams.
"""

import json
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Final

from torchserve_py.endpoints.client_call import HttpCall, HttpDialect
from torchserve_py.endpoints.failures import RETRY_AFTER, Failure
from torchserve_py.endpoints.responses import JSON_TYPE, Answer

_SOURCE: Final = ("X-BASETEN-ERROR-SOURCE", "04")
_CODE_HEADER: Final = "X-BASETEN-ERROR-CODE"
#: The message for an error in the model's code.
MODEL_FAILED: Final = "Internal Server Error (in model/chainlet)."
#: The bodies of Truss's web framework for unknown paths and methods, which have none of the headers of errors.
_DETAILS: Final = {
    "ResourceNotFoundException": b'{"detail":"Not Found"}',
    "MethodNotAllowedException": b'{"detail":"Method Not Allowed"}',
}


class TrussErrorCode(StrEnum):
    """The origin of an error."""

    server = "500"
    model = "600"
    client = "700"


class TrussDialect(HttpDialect):
    """Answers as Truss's own server does."""

    def failure(self, failure: Failure, call: HttpCall | None = None) -> Answer:
        if failure.type in _DETAILS:
            return Answer(failure.status, _DETAILS[failure.type], (JSON_TYPE,))
        code = TrussErrorCode.model if failure.overloaded else TrussErrorCode.server
        if failure.status < 500:
            code = TrussErrorCode.client
        return error_answer(failure.status, failure.message, code)


TRUSS_DIALECT: Final = TrussDialect()


def error_answer(status: int, message: str, code: TrussErrorCode, headers: Sequence[tuple[str, str]] = ()) -> Answer:
    return truss_answer({"error": message}, status, (_SOURCE, (_CODE_HEADER, code), *headers))


def not_ready(name: str) -> Answer:
    """Return the error of a model that is loading, failed to load, or says that it is not healthy."""
    return error_answer(503, f"Model with name {name} is not ready.", TrussErrorCode.model, (RETRY_AFTER,))


def truss_answer(value: Any, status: int = 200, headers: Sequence[tuple[str, str]] = ()) -> Answer:
    """Return a value as Truss's own server writes it."""
    return Answer(status, json.dumps(value).encode(), (JSON_TYPE, *headers))
