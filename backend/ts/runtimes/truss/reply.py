"""Sends the answer of one job to the frontend: a single row, or several parts and a last row."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from ts.protocol.frames import Buffer
from ts.protocol.messages import STATUS_CANCELLED, ResultRow
from ts.runtimes.outbox import Outbox
from ts.runtimes.responses import error_row
from ts.runtimes.truss.answers import SERVER_ERROR, Answer, Headers, Problem

#: Creates the row of a job that failed before its first row was sent.
ProblemRow = Callable[[str, Problem], ResultRow]

_NO_HEADERS: Final[Headers] = ()


class Reply:
    """The answer of one job.

    Args:
        problem_row: Creates the row of an error in the protocol of the job.

    Attributes:
        begun: Whether the head of the response was sent.
        done: Whether the last row was sent.
    """

    __slots__ = ("_job_id", "_outbox", "_problem_row", "_started", "begun", "done")

    def __init__(self, outbox: Outbox, job_id: str, problem_row: ProblemRow) -> None:
        self._outbox = outbox
        self._job_id = job_id
        self._problem_row = problem_row
        self._started = time.perf_counter()
        self.begun = False
        self.done = False

    def whole(self, answer: Answer) -> None:
        """Send a complete response; one that exceeds the limit is replaced by an error."""
        size = len(answer.body)
        if size > self._outbox.max_size:
            self.problem(Problem(500, SERVER_ERROR, self._too_large(size)))
            return
        self._send((self._job_id, False, answer.status, "", answer.headers, answer.body, None))

    def part(self, status: int, headers: Headers, body: Buffer) -> None:
        """Send a part of the response; the first part uses ``status`` and ``headers``, later empty parts are ignored.

        Raises:
            Problem: The body is larger than a row may be.
        """
        if self.begun and not len(body):
            return
        if len(body) > self._outbox.max_size:
            raise Problem(500, SERVER_ERROR, self._too_large(len(body)))
        self._send((self._job_id, True, status, "", _NO_HEADERS if self.begun else headers, body, None))
        self.begun = True

    def end(self, status: int, headers: Headers) -> None:
        """End the response successfully; ``status`` and ``headers`` are used only if no part was sent."""
        self._send((self._job_id, False, status, "", _NO_HEADERS if self.begun else headers, b"", None))

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
        """End a job whose client has left."""
        self._send(error_row(self._job_id, STATUS_CANCELLED, "cancelled"))

    def _send(self, row: ResultRow) -> None:
        if self.done:
            return
        self.done = not row[1]
        self._outbox.put(row, time.perf_counter() - self._started if self.done else 0.0)

    def _too_large(self, size: int) -> str:
        return f"The response has {size} bytes; max_response_size is {self._outbox.max_size}."
