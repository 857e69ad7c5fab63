"""What passes between a call's reader and its worker: the parts of the answer, and further inputs of some calls.

A model that is slower than its client slows the client down: only a limited number of inputs may be on their way.

A worker runs the code of its model, which may write any bytes to the worker's socket. A malformed row of a result fails
the job that it names, and no part of the row reaches a client. For a step of a stored sequence the outcome is then
unknown.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from types import NoneType
from typing import Any, Final, NamedTuple

from torchserve_py.base.causes import Cause
from ts.protocol.messages import SequenceNews
from ts.protocol.response_head import headers_problem, reason_problem, status_problem

logger = logging.getLogger(__name__)

#: Inputs of one job that may wait for the model, in the frontend, in the socket and in the worker together.
MAX_UNTAKEN: Final = 16
#: What they may have together (bytes), unless it is a single one.
MAX_UNTAKEN_BYTES: Final = 32 << 20

#: ``(more, body)``; ``more`` tells whether others follow.
Input = tuple[bool, bytes]


def _to_nobody(given: Input) -> bool:
    return False


class Inputs:
    """The further inputs of one job; they are held until the job has a worker."""

    def __init__(self, pass_on: Callable[[Input], bool]) -> None:
        self._pass_on = pass_on  # sends one to the worker; returns False while there is no worker
        self._held: list[Input] = []
        self._untaken: deque[int] = deque()  # their sizes
        self._ended = False
        self._room: asyncio.Future[None] | None = None

    async def send(self, body: bytes, *, more: bool) -> None:
        """Pass an input on, once there is room for it; does nothing when the job has ended."""
        while self._is_full and not self._ended:
            self._room = asyncio.get_running_loop().create_future()
            await self._room
        if self._ended:
            return
        self._untaken.append(len(body))
        if self._held or not self._pass_on((more, body)):
            self._held.append((more, body))

    def take_held(self) -> Sequence[Input]:
        """Return the inputs that were held until the job had a worker."""
        held, self._held = self._held, []
        return held

    def taken(self, count: int) -> None:
        """Note that the model has taken ``count`` inputs."""
        for _ in range(min(count, len(self._untaken))):
            self._untaken.popleft()
        self._wake()

    def end(self) -> None:
        """End with the job: later inputs are dropped."""
        self._ended = True
        self._pass_on = _to_nobody  # it refers to the call, which has this
        self._wake()

    @property
    def _is_full(self) -> bool:
        return len(self._untaken) >= MAX_UNTAKEN or sum(self._untaken) >= MAX_UNTAKEN_BYTES

    def _wake(self) -> None:
        if self._room is not None and not self._room.done():
            self._room.set_result(None)


class Exceeded(NamedTuple):
    """What the client is told whose request exceeds what it may have, or may wait; seconds until it may come back."""

    cause: Cause
    message: str
    retry_after: int


class Part(NamedTuple):
    """One piece of a response; the only one of a unary response.

    ``error`` is None or the message of an error that the handler or the worker reported for this row; then ``status``
    is what the client is told, and the body is empty or has details in JSON. ``news`` is what the worker tells of
    sequences. The order of the fields is that of a result row on the socket.
    """

    job_id: str
    more: bool
    status: int
    reason: str
    headers: list[list[str]]
    body: bytes | bytearray
    error: str | None
    news: SequenceNews | None = None


#: Makes a named tuple of its fields: calling its class takes more than twice as long.
_new: Final = tuple.__new__
_FIELDS: Final = len(Part._fields)
_NEWS: Final = Part._fields.index("news")
#: The types that the fields may have.
_TYPES: Final[Mapping[str, Sequence[type]]] = {
    "job_id": (str,),
    "more": (bool,),
    "status": (int,),
    "reason": (str,),
    "headers": (list,),
    "body": (bytes, bytearray),
    "error": (NoneType, str),
    "news": (NoneType, list),
}
#: Those of all rows that are well formed: one look tells more than one at each field.
_SHAPES: Final = frozenset(product(*_TYPES.values()))
_WRONG: Final = {
    "more": "whether parts follow is told as {value!r}",
    "headers": "its headers are not a list of pairs",
    "body": "the body is of type {type}; it must be bytes",
    "error": "its error is not text, or parts are to follow it",
    "news": "what it tells of sequences is not a list of the fields of `SequenceNews`, such as a cause, ids, a token",
}
_NEWS_TYPES: Final = [str, list, str, str, int, str, int]
_UNKNOWN: Final = SequenceNews(Cause.outcome_unknown.value)
#: With this status a worker accepts a WebSocket; what is sent over it follows in further parts.
_SWITCHING_PROTOCOLS: Final = 101


def part_of(row: Any) -> Part:
    """Return the part of a response that a result row is, see `ts.protocol.messages.ResultRow`.

    A malformed row becomes an error of status 500. Its ``more`` is true if the worker may still send parts of the job.
    Raises ValueError: the row names no job.
    """
    if type(row) is not list or not row or type(row[0]) is not str:
        raise ValueError("a result row must be an array that begins with the id of a job")
    if _is_plain(row):
        return _new(Part, row)
    problem = _problem(row) if tuple(map(type, row)) in _SHAPES else _problem_of_shape(row)
    if problem is None:
        if row[_NEWS] is not None:
            row[_NEWS] = _new(SequenceNews, row[_NEWS])
        return _new(Part, row)
    logger.warning("The result of request %s is malformed: %s", row[0], problem, extra={"request_id": row[0]})
    more = len(row) > 1 and row[1] is True
    return Part(row[0], more, 500, "", [], b"", f"The result cannot be sent: {problem}.", _UNKNOWN)


def _is_plain(row: list[Any]) -> bool:
    """Whether a row is a whole answer without anything that has to be read: as nearly all rows are."""
    if len(row) != _FIELDS:
        return False
    _, more, status, reason, headers, body, error, news = row
    if more is not False or error is not None or news is not None or reason != "" or type(body) is not bytes:
        return False
    return type(status) is int and 200 <= status <= 599 and type(headers) is list and not headers


def _problem(row: list[Any]) -> str | None:
    """Why a row whose fields are of the right types is malformed, None if it is not."""
    _, more, status, reason, headers, _, error, news = row
    if more and error is not None:
        return _WRONG["error"]
    for pair in headers:
        if type(pair) is not list or len(pair) != 2:
            return _WRONG["headers"]
    if news is not None and not _is_news(news):
        return _WRONG["news"]
    problem = None
    if not (200 <= status <= 599 or (status == _SWITCHING_PROTOCOLS and more)):
        problem = status_problem(status)
    if reason and problem is None:
        problem = reason_problem(reason)
    if headers and problem is None:
        problem = headers_problem(headers)
    return None if problem is None else f"the handler set {problem}"


def _problem_of_shape(row: list[Any]) -> str:
    """Say which field of a row is of a wrong type, or that their number is wrong."""
    if len(row) != _FIELDS:
        return f"its row has {len(row)} fields instead of {_FIELDS}"
    name, value = next((each, row[i]) for i, (each, types) in enumerate(_TYPES.items()) if type(row[i]) not in types)
    if name == "status":
        return f"the handler set {status_problem(value)}"
    if name == "reason":
        return f"the handler set {reason_problem(value)}"
    return _WRONG[name].format(value=value, type=type(value).__name__)


def _is_news(news: list[Any]) -> bool:
    return [*map(type, news)] == _NEWS_TYPES and (not news[1] or {*map(type, news[1])} == {str})


class JobFailed(Exception):
    """The job has ended without an answer from a handler, for ``cause``."""

    def __init__(self, cause: Cause) -> None:
        super().__init__(cause.value)
        self.cause = cause
