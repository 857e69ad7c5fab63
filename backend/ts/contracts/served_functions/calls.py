"""Calls of other functions of the same file: ``await other(value)``, as a request to the model that runs the function.

In the worker of one function the names of the others stand for such calls. The server makes a request of each, which
waits, is batched and counted as a client's, and sends back what came of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import itertools
from collections.abc import Callable, Coroutine, Iterable
from contextvars import ContextVar
from types import ModuleType
from typing import Any, NamedTuple

from ts.connection.frontend_connection import FrontendConnection
from ts.contracts.served_functions.call_bodies import accepted_for, body_of, result_of
from ts.contracts.served_functions.call_values import CallValues
from ts.protocol.messages import CALL, CALLS_AT_ONCE, DROP_CALL, MAX_OPEN_CALLS
from ts.serve_decorator import CallFailed, ServeOptions


class _Answer(NamedTuple):
    """What came of a call, as in `ts.protocol.messages.CALLED`; ``error`` is None if it has a result."""

    status: int
    content_type: str
    body: bytes
    error: str | None


class Calls:
    """The calls that this worker's function has open."""

    def __init__(self) -> None:
        #: The id of the job in whose task, or in a task of whose, the code runs.
        self._job: ContextVar[str] = ContextVar("calling job")
        self._numbers = itertools.count()
        self._open: dict[int, asyncio.Future[_Answer]] = {}
        #: Whether that job is a call itself. Its own calls wait for no room: those that have it may wait for this job.
        self._is_called: ContextVar[bool] = ContextVar("is called")
        self._room = asyncio.Semaphore(CALLS_AT_ONCE)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._connection: FrontendConnection | None = None
        self._max_size = 0

    def open(self, connection: FrontendConnection, max_size: int) -> None:
        """Make calls through a connection; ``max_size`` is that of a body in bytes."""
        self._connection, self._max_size = connection, max_size

    def begin(self, job_id: str, *, is_called: bool = False) -> None:
        """Let the calls of the running task belong to a job, which may be a call itself."""
        self._loop = asyncio.get_running_loop()
        self._job.set(job_id)
        self._is_called.set(is_called)

    def answered(self, number: int, answer: list[Any]) -> None:
        """Take what came of a call, unless nobody waits for it any more."""
        # In the next turn of the loop: calls end with their job, and a handler that is cancelled is to see that first.
        asyncio.get_running_loop().call_soon(self._settle, number, _Answer(*answer))

    def _settle(self, number: int, answer: _Answer) -> None:
        waiting = self._open.get(number)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    def check(self, name: str) -> None:
        """Raise RuntimeError where ``name`` cannot be called; the message says why."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            loop = None
        if loop is None or (self._loop is not None and loop is not self._loop):
            raise RuntimeError(
                f"{name} is a model of its own, and is called with await {name}(…) in a function with async def"
            )
        if not self._job.get(""):
            raise RuntimeError(
                f"{name} is a model of its own, which can be called only while a request runs, and not from a parallel"
                " worker"
            )

    async def make(self, name: str, content_type: str, accept: str, body: bytes) -> _Answer:
        """Call a function and return what came of it. Raises CallFailed: it has no result."""
        assert self._connection is not None, "`check` comes first"
        if len(body) > self._max_size:
            raise CallFailed(413, f"{name}: the values have {len(body)} bytes; a call may have {self._max_size}")
        if len(self._open) >= MAX_OPEN_CALLS:
            raise CallFailed(503, f"{name}: this worker has {MAX_OPEN_CALLS} calls open, which is the most")
        async with contextlib.nullcontext() if self._is_called.get() else self._room:
            number = next(self._numbers)
            waiting: asyncio.Future[_Answer] = asyncio.get_running_loop().create_future()
            self._open[number] = waiting
            try:
                self._connection.send([CALL, self._job.get(), number, name, content_type, accept, body])
                answer = await waiting
            except asyncio.CancelledError:
                self._connection.send([DROP_CALL, number])
                raise
            finally:
                del self._open[number]
        if answer.error is not None:
            raise CallFailed(answer.status, f"{name}: {answer.error}")
        return answer


class _Other:
    """Another function of the file, as the one that runs here calls it."""

    def __init__(self, function: Callable[..., Any], options: ServeOptions, calls: Calls) -> None:
        self._function = function
        self._options = options
        self._calls = calls

    @functools.cached_property
    def _values(self) -> CallValues:
        """What it takes and gives. Raises TypeError: it cannot be called."""
        values = CallValues(self._function, batched=self._options.batch_size is not None)
        why = "streams its result" if values.streams else "has a state" if values.new_state is not None else ""
        if why:
            raise TypeError(f"{values.name} {why}, so that other functions cannot call it")
        return values

    def __call__(self, *given: Any, **named: Any) -> Coroutine[Any, Any, Any]:
        self._calls.check(self._function.__name__)
        values = self._values
        try:
            arguments = inspect.signature(self._function).bind(*given, **named).arguments
        except TypeError as error:
            raise TypeError(f"{values.name}: {error}") from None
        return self._call(values, *body_of(values, arguments))

    async def _call(self, values: CallValues, content_type: str, body: bytes) -> Any:
        answer = await self._calls.make(values.name, content_type, accepted_for(values), body)
        try:
            return result_of(values, answer.content_type, answer.body)
        except ValueError as error:
            raise CallFailed(500, f"{values.name}: {error}") from error


def call_instead(module: ModuleType, others: Iterable[tuple[Callable[..., Any], ServeOptions]], calls: Calls) -> None:
    """Let the names of functions in their module call the models that run them."""
    callers = {id(function): _caller(function, options, calls) for function, options in others}
    for name, value in list(vars(module).items()):
        if id(value) in callers:
            setattr(module, name, callers[id(value)])


def _caller(function: Callable[..., Any], options: ServeOptions, calls: Calls) -> Callable[..., Any]:
    other = _Other(function, options, calls)

    @functools.wraps(function, updated=())
    def call(*given: Any, **named: Any) -> Coroutine[Any, Any, Any]:
        return other(*given, **named)

    return call
