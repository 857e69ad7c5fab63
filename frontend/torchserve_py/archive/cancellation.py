"""Blocking work that another thread may cancel: the work checks between its steps whether it was cancelled.

It runs in a daemon thread, which does not delay the end of the process. `asyncio.to_thread` keeps the process alive
until its work is done; a download may take hours, and the server would not stop before its end.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

#: Time limit for cancelled work to clean up; after it the work is abandoned (seconds).
_CLEAN_UP_LIMIT = 2.0


class Cancelled(Exception):
    """The work was cancelled, and has removed its files."""


class Cancellation:
    """One piece of work that another thread may cancel."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def cancel(self) -> None:
        """Cancel the work; it ends at its next `check`."""
        self._event.set()

    def check(self) -> None:
        """Raise Cancelled if the work was cancelled."""
        if self._event.is_set():
            raise Cancelled


async def run_in_daemon_thread(work: Callable[[Cancellation], T], discard: Callable[[T], None]) -> T:
    """Run ``work`` in a thread of its own and return its result.

    When the caller is cancelled, the work's `Cancellation` is cancelled; a result that the work still returns goes to
    ``discard``.
    """
    loop = asyncio.get_running_loop()
    outcome = loop.create_future()
    cancellation = Cancellation()

    def tell(result: T | None, error: BaseException | None) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop is closed, and with it the caller has ended
            loop.call_soon_threadsafe(_settle, outcome, result, error)

    def run() -> None:
        try:
            result = work(cancellation)
        except BaseException as error:
            tell(None, error)
        else:
            tell(result, None)

    threading.Thread(target=run, name="model files", daemon=True).start()
    try:
        result: T = await asyncio.shield(outcome)
    except asyncio.CancelledError:
        cancellation.cancel()
        outcome.add_done_callback(lambda done: None if done.exception() else discard(done.result()))
        await asyncio.wait([outcome], timeout=_CLEAN_UP_LIMIT)
        raise
    return result


def _settle(outcome: asyncio.Future[T | None], result: T | None, error: BaseException | None) -> None:
    if error is None:
        outcome.set_result(result)
    else:
        outcome.set_exception(error)
