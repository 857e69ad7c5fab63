"""A limit to how long code of the handler's may take that nothing else can end, in the process's main thread."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn


class _Over(BaseException):
    """The time is over; no `except Exception` of the handler's code catches it."""


@contextmanager
def limited_to(seconds: float) -> Iterator[None]:
    """Raise TimeoutError where the code in the ``with`` block is, once it has taken so long.

    What never comes back to Python, such as a call of C code that hangs, is not ended. In other threads than the main
    one nothing is. A timer that somebody else has set goes on afterwards.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(signum: int, frame: FrameType | None) -> NoReturn:
        raise _Over

    began, handler = time.monotonic(), signal.signal(signal.SIGALRM, ring)
    left, interval = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
    except _Over:  # the timer rings once, wherever that is
        raise TimeoutError(f"it has taken {seconds:g} seconds") from None
    finally:
        signal.signal(signal.SIGALRM, handler)
        if left:
            signal.setitimer(signal.ITIMER_REAL, max(left - (time.monotonic() - began), 1e-3), interval)
