"""The answer of one job on its way to the frontend: one row, or parts and a last row."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from ts.protocol.frames import Buffer
from ts.protocol.messages import STATUS_CANCELLED, ResultRow
from ts.runtimes.outbox import Outbox
from ts.runtimes.responses import error_row
from ts.runtimes.truss.answers import SERVER_ERROR, Answer, Headers, Problem

#: Makes the row of a job that failed before anything was sent.
ProblemRow = Callable[[str, Problem], ResultRow]

_NO_HEADERS: Final[Headers] = ()


class Reply:
    """What is sent for one job.

    Args:
        outbox: What sends it.
        job_id: The job.
        problem_row: How an error is told in the protocol of the job.

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
        """Send a response that is complete."""
        size = len(answer.body)
        if size > self._outbox.max_size:
            self.problem(Problem(500, SERVER_ERROR, self._too_large(size)))
            return
        self._send((self._job_id, False, answer.status, "", answer.headers, answer.body, None))

    def part(self, status: int, headers: Headers, body: Buffer) -> None:
        """Send a part; status and headers count for the first. An empty one further on says nothing.

        Raises:
            Problem: It is larger than a row may be.
        """
        if self.begun and not len(body):
            return
        if len(body) > self._outbox.max_size:
            raise Problem(500, SERVER_ERROR, self._too_large(len(body)))
        self._send((self._job_id, True, status, "", _NO_HEADERS if self.begun else headers, body, None))
        self.begun = True

    def end(self, status: int, headers: Headers) -> None:
        """End the parts well; status and headers count if there were none."""
        self._send((self._job_id, False, status, "", _NO_HEADERS if self.begun else headers, b"", None))

    def problem(self, problem: Problem) -> None:
        """Send an error: as the whole response, or in place of the rest of one that has begun."""
        if self.begun:
            self.cut(str(problem.error))
        else:
            self._send(self._problem_row(self._job_id, problem))

    def cut(self, message: str) -> None:
        """End a response that has begun in a way that its client notices."""
        self._send(error_row(self._job_id, 500, message))

    def client_left(self) -> None:
        """End a job that nobody waits for."""
        self._send(error_row(self._job_id, STATUS_CANCELLED, "cancelled"))

    def _send(self, row: ResultRow) -> None:
        if self.done:
            return
        self.done = not row[1]
        self._outbox.put(row, time.perf_counter() - self._started if self.done else 0.0)

    def _too_large(self, size: int) -> str:
        return f"The response has {size} bytes; max_response_size is {self._outbox.max_size}."
