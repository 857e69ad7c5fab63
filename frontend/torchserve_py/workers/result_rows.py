"""Result rows as they arrive from a worker.

A worker runs the code of its model, which may write any bytes to the worker's socket. A malformed row fails the job
that it names, and no part of the row reaches a client. For a step of a stored sequence the outcome is then unknown.
"""

import logging
from typing import Any, Final

from torchserve_py.jobs.parts import Part
from torchserve_py.scheduling.effects import Cause
from ts.protocol.messages import CAUSE_HEADER
from ts.protocol.response_head import headers_problem, reason_problem, status_problem

logger = logging.getLogger(__name__)

_FIELDS: Final = len(Part._fields)
_UNKNOWN: Final = [[CAUSE_HEADER, Cause.outcome_unknown.value]]
#: With this status a worker accepts a WebSocket; what is sent over it follows in further parts.
_SWITCHING_PROTOCOLS: Final = 101


def part_of(row: Any) -> Part:
    """Return the part of a response that a result row is, see `ts.protocol.messages.ResultRow`.

    A malformed row becomes an error of status 500. Its ``more`` is true if the worker may still send parts of the job.
    Raises ValueError: the row names no job.
    """
    if type(row) is not list or not row or type(row[0]) is not str:
        raise ValueError("a result row must be an array that begins with the id of a job")
    problem = _problem(row)
    if problem is None:
        return Part._make(row)
    logger.warning("The result of request %s is malformed: %s", row[0], problem, extra={"request_id": row[0]})
    goes_on = len(row) > 1 and row[1] is True
    return Part(row[0], goes_on, 500, "", _UNKNOWN, b"", f"The result cannot be sent: {problem}.")


def _problem(row: list[Any]) -> str | None:
    """Why the row is malformed, None if it is not."""
    if len(row) != _FIELDS:
        return f"its row has {len(row)} fields instead of {_FIELDS}"
    _, more, status, reason, headers, body, error = row
    if type(more) is not bool:
        return f"whether parts follow is told as {more!r}"
    if type(body) not in (bytes, bytearray):
        return f"the body is of type {type(body).__name__}; it must be bytes"
    if error is not None and (type(error) is not str or more):
        return "its error is no text, or parts are to follow it"
    if type(headers) is not list:
        return "its headers are no list of pairs"
    for pair in headers:
        if type(pair) is not list or len(pair) != 2:
            return "its headers are no list of pairs"
    if type(status) is int and status == _SWITCHING_PROTOCOLS and more:
        status = 200
    problem = status_problem(status)
    if problem is None and reason != "":
        problem = reason_problem(reason)
    if problem is None and headers:
        problem = headers_problem(headers)
    return None if problem is None else f"the handler set {problem}"
