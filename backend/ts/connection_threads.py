"""Threads that read from and write to the frontend while the handler runs.

Without them the thread that runs the handler also moves the bytes, which is cheapest for small messages and short
steps. `Overlap` finds out by measuring whether the threads pay.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from ts.protocol.frames import Buffer

#: Writes that may wait for the sending thread, so that answers do not pile up behind a frontend that reads slowly.
_MOST_UNSENT: Final = 2
#: Steps that are measured at a time.
_MEASURED_STEPS: Final = 16
#: The threads pay if steps leave them this time to work in, and if there is this much to do (seconds per step).
SHORTEST_RUN: Final = 0.5e-3
_LEAST_TRANSFER: Final = 0.2e-3


class ConnectionThreads:
    """A thread that receives and one that sends.

    Args:
        read: Waits for bytes from the frontend, without holding a lock.
        take_in: Takes in what has arrived; called with the lock held.
        write: Writes the buffers of a message.
    """

    def __init__(
        self, read: Callable[[], object], take_in: Callable[[], None], write: Callable[[Sequence[Buffer]], None]
    ) -> None:
        self._changed = threading.Condition()
        self._error: BaseException | None = None
        self._unsent: deque[Sequence[Buffer]] = deque()
        self._read, self._take_in, self._write = read, take_in, write
        for run in (self._receive, self._send):
            threading.Thread(target=self._until_error, args=(run,), name=run.__name__, daemon=True).start()

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition that the threads bring about is true; raise the error that ended a thread."""
        with self._changed:
            while not condition() and self._error is None:
                self._changed.wait()
        self.raise_error()

    def raise_error(self) -> None:
        """Raise the error that ended a thread, if one did."""
        if self._error is not None:
            raise self._error

    def send(self, buffers: Sequence[Buffer]) -> None:
        """Have a message written, once there is room for it."""
        self.wait_until(lambda: len(self._unsent) < _MOST_UNSENT)
        with self._changed:
            self._unsent.append(buffers)
            self._changed.notify_all()

    @property
    def has_unsent(self) -> bool:
        """Whether a message is being written, or waits for that."""
        return bool(self._unsent)

    def _until_error(self, run: Callable[[], None]) -> None:
        try:
            while True:
                run()
        except BaseException as error:  # the thread that runs the handler raises it
            with self._changed:
                self._error = self._error or error
                self._changed.notify_all()

    def _receive(self) -> None:
        self._read()
        with self._changed:
            self._take_in()
            self._changed.notify_all()

    def _send(self) -> None:
        with self._changed:
            while not self._unsent:
                self._changed.wait()
            buffers = self._unsent[0]
        self._write(buffers)
        with self._changed:
            self._unsent.popleft()
            self._changed.notify_all()


class Overlap:
    """Measures steps that are long enough, and tells when threads would make them follow each other more closely."""

    def __init__(self) -> None:
        self._steps = 0
        self._transfer = 0.0

    def pays(self, seconds: float, transfer: float) -> bool:
        """Note a step: how long the handler took, and how long its rows and answers took on the connection."""
        if seconds < SHORTEST_RUN:
            return False
        self._steps += 1
        self._transfer += transfer
        if self._steps < _MEASURED_STEPS:
            return False
        pays = self._transfer >= _LEAST_TRANSFER * self._steps
        self._steps, self._transfer = 0, 0.0
        return pays
