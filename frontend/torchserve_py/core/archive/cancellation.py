"""Blocking work that its caller may cancel: the work checks between its steps whether it was cancelled.

It runs in a daemon thread, which does not delay the end of the process. `asyncio.to_thread` keeps the process alive
until its work is done; a download may take hours, and the server would not stop before its end.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import ContextVar
from typing import Final, TypeVar

T = TypeVar("T")

#: Set once the work of this thread is cancelled.
CANCELLED: Final = ContextVar[threading.Event]("CANCELLED")
#: Time limit for cancelled work to clean up; after it the work is abandoned (seconds).
_CLEAN_UP_LIMIT = 2.0


class Cancelled(Exception):
    """The work was cancelled, and has removed its files."""


def check_cancelled() -> None:
    """Raise Cancelled if the work of this thread was cancelled."""
    event = CANCELLED.get(None)
    if event is not None and event.is_set():
        raise Cancelled


async def run_in_daemon_thread(work: Callable[[], T], discard: Callable[[T], object]) -> T:
    """Run ``work`` in a thread of its own and return its result.

    When the caller is cancelled, so is the work; a result that the work still returns goes to ``discard``.
    """
    outcome = Future[T]()
    cancelled = threading.Event()

    def run() -> None:
        CANCELLED.set(cancelled)
        try:
            outcome.set_result(work())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=run, name="model files", daemon=True).start()
    waiting = asyncio.wrap_future(outcome)
    try:
        return await asyncio.shield(waiting)
    except asyncio.CancelledError:
        cancelled.set()
        waiting.add_done_callback(lambda done: None if done.exception() else discard(done.result()))
        await asyncio.wait([waiting], timeout=_CLEAN_UP_LIMIT)
        raise
