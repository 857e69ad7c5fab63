"""Complete responses of a Truss (status, headers and body), and errors in Truss's format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from ts.protocol.frames import Buffer
from ts.protocol.messages import ResultRow
from ts.runtimes.errors import wire_text
from ts.runtimes.responses import error_row
from ts.runtimes.truss.json_payload import to_json

Headers = Sequence[tuple[str, str]]

#: The origin of an error, which a header of every error response states: the server, the model, the client.
SERVER_ERROR: Final = "500"
MODEL_ERROR: Final = "600"
CLIENT_ERROR: Final = "700"

#: The error message for clients if the model raises an exception; the log has the details.
MODEL_FAILED: Final = "Internal Server Error (in model/chainlet)."

JSON_HEADERS: Final[Headers] = (("content-type", "application/json"),)
BINARY_HEADERS: Final[Headers] = (("content-type", "application/octet-stream"),)
_SOURCE: Final = ("x-baseten-error-source", "04")


class Answer(NamedTuple):
    """A response, or the head and first chunk of one."""

    status: int
    headers: Headers
    body: Buffer


class Problem(Exception):
    """An error with which to answer a call.

    Args:
        code: The origin of the error: `SERVER_ERROR`, `MODEL_ERROR` or `CLIENT_ERROR`.
        error: The message for the client: a text, or the detail of an ``HTTPException``.
    """

    def __init__(self, status: int, code: str, error: Any, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(error)
        self.status = status
        self.code = code
        self.error = error
        self.headers = headers or {}

    def answer(self) -> Answer:
        """Return the response in Truss's format.

        Raises:
            TypeError: The detail of an ``HTTPException`` cannot be encoded as JSON.
        """
        further = [(name.lower(), value) for name, value in self.headers.items()]
        headers = (*JSON_HEADERS, *error_headers(self.code), *further)
        return Answer(self.status, headers, to_json({"error": self.error}))

    def row(self, job_id: str) -> ResultRow:
        """Return the result row for a protocol other than Truss's; the server writes it in that protocol's form."""
        text = self.error if isinstance(self.error, str) else to_json(self.error).decode()
        return error_row(job_id, self.status, wire_text(text))


def error_headers(code: str) -> Headers:
    """Return the headers that mark a response as an error."""
    return (_SOURCE, ("x-baseten-error-code", code))
