"""Calls of other functions of the same file: ``await other(value)``, as a request to the model that runs the function.

A function that yields is called with ``async for part in other(value)``, a class with ``await Other().predict(value)``.

In the worker of one function the names of the others stand for such calls. The server makes a request of each, which
waits, is batched and counted as a client's, and sends back what came of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import itertools
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import aclosing
from contextvars import ContextVar
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

from ts.connection.frontend_connection import FrontendConnection
from ts.contracts.served_functions.call_bodies import accepted_for, body_of, parts_of, result_of
from ts.contracts.served_functions.call_values import CallValues
from ts.protocol.messages import CALL, CALLS_AT_ONCE, DROP_CALL, MAX_OPEN_CALLS, NEXT_PART
from ts.serve_decorator import METHOD, CallFailed, ServeOptions


class Answer(NamedTuple):
    """What came of a call, or a part of it, as in `ts.protocol.messages.CALLED`; ``error`` is None if there is none."""

    status: int
    content_type: str
    body: bytes
    error: str | None
    more: bool


class Calls:
    """The calls that this worker's function has open."""

    def __init__(self) -> None:
        #: The id of the job in whose task, or in a task of whose, the code runs.
        self._job: ContextVar[str] = ContextVar("calling job")
        self._numbers = itertools.count()
        self._open: dict[int, asyncio.Future[Answer]] = {}
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
        asyncio.get_running_loop().call_soon(self._settle, number, Answer(*answer))

    def _settle(self, number: int, answer: Answer) -> None:
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

    async def make(self, name: str, content_type: str, accept: str, body: bytes) -> AsyncGenerator[Answer]:
        """Call a function and yield what comes of it, each part once the one before it was used.

        Raises CallFailed: it has no result, or not all of it.
        """
        assert self._connection is not None, "`check` comes first"
        if len(body) > self._max_size:
            raise CallFailed(413, f"{name}: the values have {len(body)} bytes; a call may have {self._max_size}")
        if len(self._open) >= MAX_OPEN_CALLS:
            raise CallFailed(503, f"{name}: this worker has {MAX_OPEN_CALLS} calls open, which is the most")
        async with contextlib.nullcontext() if self._is_called.get() else self._room:
            number, more = next(self._numbers), True
            message = [CALL, self._job.get(), number, name, content_type, accept, body]
            try:
                while more:
                    waiting: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
                    self._open[number] = waiting
                    self._connection.send(message)
                    answer = await waiting
                    more = answer.more
                    if answer.error is not None:
                        raise CallFailed(answer.status, f"{name}: {answer.error}")
                    yield answer
                    message = [NEXT_PART, number]
            finally:
                del self._open[number]
                if more:
                    self._connection.send([DROP_CALL, number])


class _Other:
    """Another function of the file, or the method of a class, as the one that runs here calls it."""

    def __init__(self, name: str, function: Callable[..., Any], options: ServeOptions, calls: Calls) -> None:
        self._name = name
        self._function = function
        self._options = options
        self._calls = calls

    @functools.cached_property
    def _values(self) -> CallValues:
        """What it takes and gives. Raises TypeError: it cannot be called."""
        values = CallValues(self._function, batched=self._options.batch_size is not None)
        if values.new_state is not None:
            raise TypeError(f"{self._name} has a state, so that other functions cannot call it")
        return values

    def __call__(self, *given: Any, **named: Any) -> Coroutine[Any, Any, Any] | AsyncGenerator[Any]:
        self._calls.check(self._name)
        values = self._values
        try:
            arguments = inspect.signature(self._function).bind(*given, **named).arguments
        except TypeError as error:
            raise TypeError(f"{self._name}: {error}") from None
        call = self._calls.make(self._name, *_request(values, arguments))
        return self._parts(values, call) if values.streams else self._result(values, call)

    async def _result(self, values: CallValues, call: AsyncGenerator[Answer]) -> Any:
        async with aclosing(call):
            answer = await anext(call)
        if answer.more:
            raise CallFailed(500, f"{self._name}: it streams its result, which it did not when this worker started")
        with self._failing():
            return result_of(values, answer.content_type, answer.body)

    async def _parts(self, values: CallValues, call: AsyncGenerator[Answer]) -> AsyncGenerator[Any]:
        async with aclosing(call):
            async for answer in call:
                with self._failing():
                    parts = parts_of(values, answer.content_type, answer.body)
                for part in parts:
                    yield part

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except ValueError as error:
            raise CallFailed(500, f"{self._name}: {error}") from error


def _request(values: CallValues, arguments: Mapping[str, Any]) -> tuple[str, str, bytes]:
    """Return the content type, what is accepted, and the body. Raises ValueError, TypeError: see `body_of`."""
    content_type, body = body_of(values, arguments)
    return content_type, accepted_for(values), body


def call_instead(module: ModuleType, others: Iterable[tuple[Callable[..., Any], ServeOptions]], calls: Calls) -> None:
    """Let the names of functions and classes in their module call the models that run them."""
    callers = {id(target): _caller(target, options, calls) for target, options in others}
    for name, value in list(vars(module).items()):
        if id(value) in callers:
            setattr(module, name, callers[id(value)])


def _caller(target: Callable[..., Any], options: ServeOptions, calls: Calls) -> Callable[..., Any]:
    if not isinstance(target, type):
        return functools.wraps(target, updated=())(_calling(target.__name__, target, options, calls))
    method = getattr(object.__new__(target), METHOD)  # bound to an instance for its signature, which is never used
    instance = SimpleNamespace(**{METHOD: _calling(target.__name__, method, options, calls)})
    return functools.wraps(target, updated=())(lambda: instance)


def _calling(name: str, function: Callable[..., Any], options: ServeOptions, calls: Calls) -> Callable[..., Any]:
    other = _Other(name, function, options, calls)

    def call(*given: Any, **named: Any) -> Coroutine[Any, Any, Any] | AsyncGenerator[Any]:
        return other(*given, **named)

    return call
