"""What passes between a job's door and its worker: the parts of the response, and further inputs of some jobs.

A model that is slower than its client slows the client down: only a limited number of inputs may be on their way.

A worker runs the code of its model, which may write any bytes to the worker's socket. A malformed row of a result fails
the job that it names, and no part of the row reaches a client. For a step of a stored sequence the outcome is then
unknown.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol

from torchserve_py.scheduling.effects import Cause
from ts.protocol.messages import SequenceNews
from ts.protocol.response_head import headers_problem, reason_problem, status_problem

logger = logging.getLogger(__name__)

#: Inputs of one job that may wait for the model, in the frontend, in the socket and in the worker together.
MAX_UNTAKEN: Final = 16
#: What they may have together (bytes), unless it is a single one.
MAX_UNTAKEN_BYTES: Final = 32 << 20

#: ``(more, body)``; ``more`` tells whether others follow.
Input = tuple[bool, bytes]


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


#: How long the client of a job that was lost with its worker waits for the reason (seconds).
_END_SECONDS: Final = 0.5
_FIELDS: Final = len(Part._fields)
_NEWS: Final = Part._fields.index("news")
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
    problem = _problem(row)
    if problem is None:
        if row[_NEWS] is not None:
            row[_NEWS] = SequenceNews._make(row[_NEWS])
        return Part._make(row)
    logger.warning("The result of request %s is malformed: %s", row[0], problem, extra={"request_id": row[0]})
    more = len(row) > 1 and row[1] is True
    return Part(row[0], more, 500, "", [], b"", f"The result cannot be sent: {problem}.", _UNKNOWN)


def _problem(row: list[Any]) -> str | None:
    """Why the row is malformed, None if it is not."""
    if len(row) != _FIELDS:
        return f"its row has {len(row)} fields instead of {_FIELDS}"
    _, more, status, reason, headers, body, error, news = row
    if type(more) is not bool:
        return f"whether parts follow is told as {more!r}"
    if type(body) not in (bytes, bytearray):
        return f"the body is of type {type(body).__name__}; it must be bytes"
    if error is not None and (type(error) is not str or more):
        return "its error is not text, or parts are to follow it"
    if type(headers) is not list:
        return "its headers are not a list of pairs"
    for pair in headers:
        if type(pair) is not list or len(pair) != 2:
            return "its headers are not a list of pairs"
    if news is not None and not _is_news(news):
        return "what it tells of sequences is not a list of the fields of `SequenceNews`, such as a cause, ids, a token"
    problem = None
    if type(status) is not int or not (200 <= status <= 599 or (status == _SWITCHING_PROTOCOLS and more)):
        problem = status_problem(status)
    if problem is None and reason != "":
        problem = reason_problem(reason)
    if problem is None and headers:
        problem = headers_problem(headers)
    return None if problem is None else f"the handler set {problem}"


def _is_news(news: Any) -> bool:
    return type(news) is list and [*map(type, news)] == _NEWS_TYPES and {*map(type, news[1])} <= {str}


class JobFailed(Exception):
    """The job has ended without an answer from a handler, for ``cause``."""

    def __init__(self, cause: Cause) -> None:
        super().__init__(cause.value)
        self.cause = cause


class ReaderEvents(Protocol):
    """Takes what the reader of a response does: it has taken a part that was waiting, or has left before the end."""

    def was_read(self, parts: Parts) -> None: ...
    def gave_up(self, parts: Parts) -> None: ...


class Parts:
    """The response of one job, read by one door.

    Every job ends in one of three ways: a part with ``more`` false, `JobFailed`, or `cancel` by the reader.
    """

    __slots__ = (
        *("_buffer", "_copy_to", "_failure", "_reader", "_on_first", "_waiter", "_worker_end"),
        *("buffered_bytes", "ended", "exceeded", "inputs", "job_id", "sequence_id", "trace_id", "version"),
    )

    def __init__(self, job_id: str, sequence_id: str | None, reader: ReaderEvents) -> None:
        self.job_id = job_id
        self.sequence_id = sequence_id
        #: Whether the last part, or a failure, has arrived (it may still wait to be read).
        self.ended = False
        #: What the client is told of the limit for which the job was refused: one of the client, or of its patience.
        self.exceeded: Exceeded | None = None
        #: The trace that has a span for the job, if there is one.
        self.trace_id: str | None = None
        #: The version that has the job, if it is another one than it was submitted to.
        self.version: str | None = None
        #: The further inputs of the job, if it takes several.
        self.inputs: Inputs | None = None
        self._reader = reader
        self._buffer: deque[Part] | None = None
        #: The size of the parts that have arrived and were not read yet.
        self.buffered_bytes = 0
        self._failure: Cause | None = None
        self._worker_end: asyncio.Future[str] | None = None
        self._waiter: asyncio.Future[Part] | None = None
        self._on_first: Callable[[Part | Cause], None] | None = None
        self._copy_to: Callable[[Part | Cause | None], None] | None = None

    @property
    def worker_end(self) -> str:
        """How the worker ended that was lost with the job, as in ``exited with code 1``; empty if that is unknown."""
        end = self._worker_end
        return "" if end is None or not end.done() or end.cancelled() else end.result()

    def lost_with(self, worker_end: asyncio.Future[str]) -> None:
        """Note that a worker was lost with the job, and what tells how it has ended. Called by the dispatcher."""
        self._worker_end = worker_end

    def copy_to(self, take: Callable[[Part | Cause | None], None]) -> None:
        """Call ``take``, too, with each part to come, the cause of a failure, or None if the reader leaves early.

        The call comes while the dispatcher works: ``take`` must raise nothing, submit nothing and cancel nothing.
        """
        self._copy_to = take

    def when_first(self, then: Callable[[Part | Cause], None]) -> None:
        """Call ``then`` with the first part, or with the cause of a failure without parts, as soon as it is known.

        The call may come at once, or while the dispatcher works: ``then`` must raise nothing, submit nothing and cancel
        nothing. `next` returns the parts that follow.
        """
        if self._buffer:
            then(self._take(self._buffer))
        elif self._failure is not None:
            then(self._failure)
        else:
            self._on_first = then

    def next(self) -> Awaitable[Part]:
        """The next part, to be awaited at once. (No coroutine: this is on the path of every request.)

        Raises JobFailed: the job ended without (the rest of) an answer; awaiting the part may raise it, too.
        """
        if self._failure is not None and not self._buffer:
            raise JobFailed(self._failure)
        waiter: asyncio.Future[Part] = asyncio.get_running_loop().create_future()
        if self._buffer:
            waiter.set_result(self._take(self._buffer))
        else:
            self._waiter = waiter
        return waiter

    def take_arrived(self, limit: int) -> Sequence[Part]:
        """Return the parts that have arrived behind the one that `next` gave last, without waiting for any.

        No further part is taken once those taken have ``limit`` bytes.
        """
        if not self._buffer:
            return ()
        arrived: list[Part] = []
        size = 0
        while self._buffer and size < limit:
            arrived.append(self._buffer.popleft())
            size += len(arrived[-1].body)
        self.buffered_bytes -= size
        self._reader.was_read(self)
        return arrived

    def _take(self, buffer: deque[Part]) -> Part:
        part = buffer.popleft()
        self.buffered_bytes -= len(part.body)
        self._reader.was_read(self)
        return part

    async def send_input(self, body: bytes, *, more: bool) -> None:
        """Pass a further input on, once there is room for it; does nothing when the job has ended.

        Raises ValueError: the job was not submitted as one that takes several.
        """
        if self.inputs is None:
            raise ValueError(f"job {self.job_id} takes no further inputs")
        await self.inputs.send(body, more=more)

    def read_by(self, reader: ReaderEvents) -> None:
        """Tell another one from now on what the reader does."""
        self._reader = reader

    def cancel(self) -> None:
        """Give up: the reader is gone. Does nothing once the job has ended."""
        self._on_first = None
        if not self.ended:
            if self._copy_to is not None:
                self._copy_to(None)
            self._reader.gave_up(self)

    def deliver(self, part: Part) -> None:
        """Hand over the next part; called by the dispatcher."""
        self.ended = not part.more
        if self._copy_to is not None:
            self._copy_to(part)
        if self._on_first is not None:  # for a call of HTTP or gRPC, `CallExchange._answer_with`
            on_first, self._on_first = self._on_first, None
            on_first(part)
            return
        # A waiter that were kept would hold a failure, whose traceback holds the frames of the reader, and these this.
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(part)
            return
        if self._buffer is None:
            self._buffer = deque()
        self._buffer.append(part)
        self.buffered_bytes += len(part.body)

    def fail(self, cause: Cause) -> None:
        """End the job without an answer; parts that have arrived can still be read. Called by the dispatcher.

        The reader of a job that was lost with its worker is told a moment later, once it is known how that ended.
        """
        self.ended = True
        if self._copy_to is not None:
            self._copy_to(cause)
        end = self._worker_end
        if cause is not Cause.worker_died or end is None or end.done():
            self._tell(cause)
            return
        end.add_done_callback(lambda _: self._tell(cause))
        asyncio.get_running_loop().call_later(_END_SECONDS, self._tell, cause)

    def _tell(self, cause: Cause) -> None:
        """Let the reader know of a failure, unless it does."""
        if self._failure is not None:
            return
        self._failure = cause
        if self._on_first is not None:
            on_first, self._on_first = self._on_first, None
            on_first(cause)
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_exception(JobFailed(cause))
