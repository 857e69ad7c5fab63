"""The threads of `asyncio.to_thread`: daemons, so that work which hangs does not keep the process alive.

A disk that is gone (NFS, a FIFO) may let a thread wait for ever, and nothing can end it. Python's own executor, and the
interpreter at its exit, would wait for it; these threads have a few seconds to finish what they do.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

#: How many threads there are at most. Each thing that the server does in threads waits for its own; some may hang.
_MOST: Final = 64
#: How long `shutdown` waits for work that is under way (seconds).
_END_LIMIT: Final = 2.0

_Call = tuple[Future[Any], Callable[[], Any]]


class DaemonThreads(ThreadPoolExecutor):
    """An executor of daemon threads, which derives from Python's because event loops take no other."""

    def __init__(self, most: int = _MOST, end_limit: float = _END_LIMIT) -> None:
        super().__init__(most)
        self._most = most
        self._end_limit = end_limit
        self._calls = queue.SimpleQueue[_Call | None]()
        self._idle = threading.Semaphore(0)
        self._daemons: list[threading.Thread] = []
        self._state = threading.Lock()
        self._ended = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run a function in a thread. Raises RuntimeError: the executor was shut down."""
        future = Future[T]()
        with self._state:
            if self._ended:
                raise RuntimeError("cannot schedule new futures after shutdown")
            self._calls.put((future, partial(fn, *args, **kwargs)))
            if not self._idle.acquire(blocking=False) and len(self._daemons) < self._most:
                thread = threading.Thread(target=self._run, name=f"blocking work {len(self._daemons)}", daemon=True)
                self._daemons.append(thread)
                thread.start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more work; with ``wait``, give what is under way a few seconds, and leave it then."""
        with self._state:
            self._ended = True
            if cancel_futures:
                while not self._calls.empty():
                    if (call := self._calls.get()) is not None:
                        call[0].cancel()
            for _ in self._daemons:
                self._calls.put(None)
        end = time.monotonic() + self._end_limit
        for thread in self._daemons if wait else ():
            thread.join(max(0.0, end - time.monotonic()))

    def _run(self) -> None:
        while True:
            try:
                call = self._calls.get_nowait()
            except queue.Empty:
                self._idle.release()
                call = self._calls.get()
            if call is None:
                return
            future, work = call
            if future.set_running_or_notify_cancel():
                try:
                    result = work()
                except BaseException as error:
                    future.set_exception(error)
                else:
                    future.set_result(result)
            del call, future, work  # what they hold is not kept while the thread waits
