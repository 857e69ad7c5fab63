"""The threads in which a model's plain functions run, so that these may block.

``predict`` has as many threads as slots; the other steps (preprocess, postprocess, aliases) have as many threads as
there can be requests. So no step waits for a thread that another kind of step has taken. Threads start on demand.
"""

import asyncio
import contextlib
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, Generic, ParamSpec, TypeVar

#: The number of requests that a worker has at once with the default concurrency target.
MOST_THREADS: Final = 1024

P = ParamSpec("P")
T = TypeVar("T")


class ThreadCall(Generic[T]):
    """One call of a plain function that may block, with a copy of its creator's context variables.

    A thread runs the call and then notifies the event loop; until then only that thread knows the outcome.
    """

    def __init__(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> None:
        self._loop = asyncio.get_running_loop()
        self._call = partial(contextvars.copy_context().run, function, *args, **kwargs)
        self._value: T
        self._error: BaseException | None = asyncio.CancelledError("its threads were closed before it ran")
        self._ended = False
        self._waiting: asyncio.Future[None] | None = None

    def run(self) -> None:
        """Call the function, in a thread; an exception becomes the outcome."""
        try:
            self._value = self._call()
            self._error = None
        except BaseException as error:
            self._error = error

    def publish(self, *others: Callable[[], None]) -> None:
        """Let the event loop publish the outcome and then call ``others``; any thread may call this."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: this process ends
            self._loop.call_soon_threadsafe(self._end, others)

    def run_and_publish(self) -> None:
        self.run()
        self.publish()

    def outcome(self) -> T:
        """Return the function's result or raise its exception; the function must have ended."""
        if self._error is None:
            return self._value
        try:
            raise self._error
        finally:
            self._error = None  # it refers to this frame, which refers to it

    async def ended(self) -> None:
        """Wait until the function has ended. If this is cancelled, the function goes on."""
        while not self._ended:
            self._waiting = self._loop.create_future()
            await self._waiting

    async def result(self) -> T:
        """Wait until the function has ended and return its result.

        If the caller is cancelled, that takes effect when the function has ended: a thread cannot be stopped, and other
        calls must not get its slot before.
        """
        cancelled = False
        while not self._ended:
            try:
                await self.ended()
            except asyncio.CancelledError:
                cancelled = True
        if cancelled:
            raise asyncio.CancelledError
        return self.outcome()

    def _end(self, others: tuple[Callable[[], None], ...]) -> None:
        self._ended = True
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)
        for call in others:
            call()


class Threads:
    """A pool of threads for one kind of step."""

    def __init__(self, name: str, count: int) -> None:
        self._pool = ThreadPoolExecutor(count, thread_name_prefix=name)

    def start(self, work: ThreadCall[Any], run: Callable[[], None] | None = None) -> None:
        """Have a thread run some work, or call ``run``, which runs and publishes the work."""
        running = self._pool.submit(run or work.run_and_publish)
        running.add_done_callback(lambda running: work.publish() if running.cancelled() else None)

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call ``function`` in a thread and return its result; see `ThreadCall.result` about cancellation."""
        work = ThreadCall(function, *args, **kwargs)
        self.start(work)
        return await work.result()

    def close(self) -> None:
        """Start no further work; running work continues to its end."""
        self._pool.shutdown(wait=False, cancel_futures=True)
