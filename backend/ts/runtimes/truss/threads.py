"""The threads that a model's plain functions run in, so that they may block.

``predict`` has as many threads as it has slots, everything else (preprocess, postprocess, aliases) as many as there can
be requests: nothing waits for a thread that another kind of step has taken. Threads are started when they are needed.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, ParamSpec, TypeVar

#: As many as a worker has requests at once, unless its concurrency target is higher than the default.
MOST_THREADS: Final = 1024

P = ParamSpec("P")
T = TypeVar("T")


class Threads:
    """A pool of threads for one kind of step.

    Args:
        name: What they are for.
        count: The most there are.
    """

    def __init__(self, name: str, count: int) -> None:
        self._pool = ThreadPoolExecutor(count, thread_name_prefix=name)

    def start(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        """Call ``function`` in a thread, with the context variables of the caller."""
        context = contextvars.copy_context()
        return asyncio.get_running_loop().run_in_executor(self._pool, lambda: context.run(function, *args, **kwargs))

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call ``function`` in a thread and return what it returns.

        If the caller is cancelled, that takes effect when the function has ended: a thread cannot be stopped, and what
        it holds must not be given to others before.
        """
        running = self.start(function, *args, **kwargs)
        cancelled = False
        while not running.done():
            try:
                await asyncio.wait((running,))
            except asyncio.CancelledError:
                cancelled = True
        if cancelled:
            if not running.cancelled():
                running.exception()  # nobody is to be told of it
            raise asyncio.CancelledError
        return running.result()

    def close(self) -> None:
        """Start nothing more; what runs goes on to its end."""
        self._pool.shutdown(wait=False, cancel_futures=True)
