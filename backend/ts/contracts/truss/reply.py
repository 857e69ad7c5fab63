"""Sends the answer of one job to the frontend: a single row, or several parts and a last row; and Truss's errors."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from ts.contracts.async_calls.async_runtime import Outbox
from ts.contracts.truss.encodings import to_json
from ts.jobs.errors import too_large
from ts.protocol.frames import Buffer
from ts.protocol.messages import STATUS_CANCELLED, ResultRow
from ts.runtime.result_bodies import error_row

Headers = Sequence[tuple[str, str]]

#: The origin of an error, which a header of every error response states: the server, the model, the client.
SERVER_ERROR: Final = "500"
MODEL_ERROR: Final = "600"
CLIENT_ERROR: Final = "700"

#: The error message for clients if the model raises an exception; the log has the details.
MODEL_FAILED: Final = "Internal Server Error (in model/chainlet)."

JSON_HEADERS: Final[Headers] = (("content-type", "application/json"),)
BINARY_HEADERS: Final[Headers] = (("content-type", "application/octet-stream"),)


class TrussAnswer(NamedTuple):
    """A response, or the head and first chunk of one."""

    status: int
    headers: Headers
    body: Buffer


class Problem(Exception):
    """An error with which to answer a call.

    Args:
        code: The origin of the error: `SERVER_ERROR`, `MODEL_ERROR` or `CLIENT_ERROR`.
        error: The message for the client: a text, or the detail of an ``HTTPException``.
        headers: Further headers of the response.
    """

    def __init__(self, status: int, code: str, error: Any, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(error)
        self.status = status
        self.code = code
        self.error = error
        self.headers = headers or {}

    def answer(self) -> TrussAnswer:
        """Return the response in Truss's format. Raises TypeError: the detail has no form in JSON."""
        further = {name.lower(): value for name, value in self.headers.items()}
        headers = tuple({**dict(JSON_HEADERS), **dict(error_headers(self.code)), **further}.items())
        return TrussAnswer(self.status, headers, to_json({"error": self.error}))


def error_headers(code: str) -> Headers:
    """Return the headers that mark a response as an error."""
    return (("x-baseten-error-source", "04"), ("x-baseten-error-code", code))


#: Creates the row of a job that failed before its first row was sent.
ProblemRow = Callable[[str, Problem], ResultRow]


class Reply:
    """The answer of one job; ``begun`` when the head of the response was sent, ``done`` when the last row was."""

    __slots__ = ("_job_id", "_outbox", "_problem_row", "_started", "begun", "done")

    def __init__(self, outbox: Outbox, job_id: str, problem_row: ProblemRow) -> None:
        self._outbox = outbox
        self._job_id = job_id
        self._problem_row = problem_row
        self._started = time.perf_counter()
        self.begun = False
        self.done = False

    def whole(self, answer: TrussAnswer) -> None:
        """Send a complete response; one that exceeds the limit is replaced by an error."""
        try:
            self._check_size(answer.body)
        except Problem as problem:
            self.problem(problem)
        else:
            self._send(ResultRow(self._job_id, False, answer.status, "", answer.headers, answer.body))

    def part(self, status: int, headers: Headers, body: Buffer) -> None:
        """Send a part; the first has the head, later empty ones are ignored. Raises Problem: the body is too large."""
        if self.begun and not len(body):
            return
        self._check_size(body)
        self._send(ResultRow(self._job_id, True, status, "", () if self.begun else headers, body))
        self.begun = True

    def end(self, status: int, headers: Headers) -> None:
        """End the response successfully; ``status`` and ``headers`` are used only if no part was sent."""
        self._send(ResultRow(self._job_id, False, status, "", () if self.begun else headers, b""))

    def problem(self, problem: Problem) -> None:
        """Send an error: as the whole response, or by cutting a response that has begun."""
        if self.begun:
            self.cut(str(problem.error))
        else:
            self._send(self._problem_row(self._job_id, problem))

    def cut(self, message: str) -> None:
        """Break off a response that has begun, so that its client notices the error."""
        self._send(error_row(self._job_id, 500, message))

    def client_left(self) -> None:
        self._send(error_row(self._job_id, STATUS_CANCELLED, "cancelled"))

    def _send(self, row: ResultRow) -> None:
        if not self.done:
            self.done = not row.more
            self._outbox.put(row, time.perf_counter() - self._started if self.done else 0.0)

    def _check_size(self, body: Buffer) -> None:
        if len(body) > self._outbox.max_size:
            raise Problem(500, SERVER_ERROR, too_large(len(body), self._outbox.max_size))
