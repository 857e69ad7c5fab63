"""Threads that read from and write to the frontend while the handler runs.

Without them the thread that runs the handler also moves the bytes, which is cheapest for small messages and short
steps. `Overlap` finds out by measuring whether the threads pay, again and again, because sizes and steps may change.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from ts.protocol.frames import Buffer

#: Writes that may wait for the sending thread, so that answers do not pile up behind a frontend that reads slowly.
_MOST_UNSENT: Final = 2
#: Shorter steps (seconds) leave the threads no time to work in.
SHORTEST_RUN: Final = 0.5e-3
#: What steps wait without the threads (seconds, in the mean) so that they are worth a try.
_LEAST_WAIT: Final = 0.1e-3
#: What steps may wait with the threads, of what they wait without them.
_MOST_WAIT: Final = 0.9
#: How many steps are measured at a time; and how many pass at most before it is measured again whether threads pay.
_MEASURED_STEPS: Final = 32
_SETTLED_STEPS: Final = 1024


class ConnectionThreads:
    """A thread that receives, unless it is paused, and one that sends.

    Args:
        read: Waits for bytes from the frontend, without holding a lock.
        take_in: Takes in what has arrived, and returns whether that completed a message; called with the lock held.
        write: Writes the buffers of a message.
    """

    def __init__(
        self, read: Callable[[], object], take_in: Callable[[], bool], write: Callable[[Sequence[Buffer]], None]
    ) -> None:
        self._changed = threading.Condition()
        self._receives = True
        self._error: BaseException | None = None
        self._unsent: deque[Sequence[Buffer]] = deque()
        self._read, self._take_in, self._write = read, take_in, write
        for run in (self._receive, self._send):
            threading.Thread(target=self._until_error, args=(run,), name=run.__name__, daemon=True).start()

    def set_receiving(self, receives: bool) -> None:
        """Have the thread receive from now on, or leave that to the caller."""
        with self._changed:
            self._receives = receives
            self._changed.notify_all()

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
        with self._changed:
            while not self._receives:
                self._changed.wait()
        self._read()
        with self._changed:
            if self._receives and self._take_in():
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
    """Measures what a step waits, without the threads and with them, and tells whether they pay.

    A step waits while the answers of the one before are written, and from its end, but counts at most what it takes
    itself. That is measured as a whole, because on a machine whose cores are busy the threads also take time from those
    whose bytes they read. Where nothing has arrived at the end of most steps, they wait for clients, and the threads
    are not tried.

    Attributes:
        pays: Whether the threads are to be used for the next step.
    """

    def __init__(self) -> None:
        self.pays = False
        self._wait_alone = 0.0
        self._to_measure = _MEASURED_STEPS
        #: How many steps are measured without the threads before they are tried again.
        self._pause = _MEASURED_STEPS
        self._runs: list[float] = []
        self._waits: list[float] = []
        #: When the step before ended, less the time that it wrote; None if the step that follows is not measured.
        self.since: float | None = None
        #: At the end of how many of the measured steps bytes had arrived.
        self._followed = 0

    def ran(self, began: float, ended: float, written: float, *, is_followed: bool) -> None:
        """Note when a step began and ended, how long it wrote meanwhile, and whether bytes had arrived at its end."""
        run = ended - began - written
        if run < SHORTEST_RUN and not self.pays:
            self.since = None
            return
        if self.since is not None:
            self._runs.append(run)
            self._waits.append(min(began - self.since, run))  # else a pause of the clients would decide
            self._followed += is_followed
            if len(self._waits) >= self._to_measure:
                count = len(self._waits)
                is_awaited = 2 * self._followed > count
                self._decide(sum(self._runs) / count, sum(self._waits) / count, is_awaited=is_awaited)
                self._runs.clear()
                self._waits.clear()
                self._followed = 0
        self.since = ended - written

    def _decide(self, run: float, wait: float, *, is_awaited: bool) -> None:
        if not self.pays:
            self._wait_alone = wait
            self.pays, self._to_measure = is_awaited and wait >= _LEAST_WAIT, _MEASURED_STEPS
        elif self._to_measure == _SETTLED_STEPS:
            self.pays, self._to_measure = False, _MEASURED_STEPS
        elif run >= SHORTEST_RUN and wait <= _MOST_WAIT * self._wait_alone:
            self._to_measure, self._pause = _SETTLED_STEPS, _MEASURED_STEPS
        else:
            self._pause = min(2 * self._pause, _SETTLED_STEPS)
            self.pays, self._to_measure = False, self._pause
