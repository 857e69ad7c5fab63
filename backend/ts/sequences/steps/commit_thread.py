"""The thread that commits a batch and sends its answers while the handler runs the next one.

One commit is under way at a time, and until it is done the store is that thread's: whatever else uses the store gets it
from `StoredSteps.store_when_idle`, which waits. `CommitOverlap` finds out by measuring whether the thread pays.
"""

import threading
from collections.abc import Callable
from queue import SimpleQueue
from statistics import median
from typing import Final

from ts.connection.connection_threads import SHORTEST_RUN

#: Commits that are shorter (seconds) cost less than passing them to the thread.
_LEAST_COMMIT: Final = 0.1e-3
#: What a device may wait between two batches, of what it waits without the thread.
_MOST_WAIT: Final = 0.9
#: A commit while a handler runs may take this many times as long as one alone: the handler may let no other thread run.
_MOST_DELAY: Final = 2
#: How many runs of the handler are measured at a time: at first, and at most. The number is doubled each time that the
#: thread turns out not to pay.
_MEASURED_RUNS: Final = 16
_MOST_MEASURED: Final = 1024


class CommitThread:
    """Runs one piece of work at a time."""

    def __init__(self) -> None:
        self._work: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._is_done = threading.Event()
        self._is_done.set()
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    def start(self, work: Callable[[], None]) -> None:
        """Have work done; call `wait` before giving more."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="commits", daemon=True)
            self._thread.start()
        self._is_done.clear()
        self._work.put(work)

    def wait(self) -> None:
        """Wait for the end of the work; raise the error that ended it, each time."""
        self._is_done.wait()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        while self._error is None:
            try:
                self._work.get()()
            except BaseException as error:  # the thread that waits raises it
                self._error = error
            self._is_done.set()


class CommitOverlap:
    """Measures batches that are followed by others, and tells whether commits are worth being made meanwhile.

    That is so while a device waits less between two batches with it than without.

    Attributes:
        pays: Whether they are, as far as is known.
    """

    def __init__(self) -> None:
        self.pays = False
        self._wait_alone, self._commit_alone = 0.0, 0.0
        self._to_measure = _MEASURED_RUNS
        self._since: float | None = None
        self._runs: list[float] = []
        self._waits: list[float] = []
        self._commits: list[float] = []

    def ran(self, began: float, ended: float, *, is_followed: bool) -> None:
        """Note when the handler has run, and whether another batch waited then."""
        if self._since is not None:
            self._runs.append(ended - began)
            self._waits.append(began - self._since)
            if self._commits and len(self._runs) >= self._to_measure:
                self._decide(median(self._runs), median(self._waits), median(self._commits))
        self._since = ended if is_followed else None

    def committed(self, seconds: float) -> None:
        """Note how long the commit of a batch has taken."""
        if self._since is not None:
            self._commits.append(seconds)

    def _decide(self, run: float, wait: float, commit: float) -> None:
        if not self.pays:
            self._wait_alone, self._commit_alone = wait, commit
            self.pays = run >= SHORTEST_RUN and commit >= _LEAST_COMMIT
        elif run < SHORTEST_RUN or wait > _MOST_WAIT * self._wait_alone or commit > _MOST_DELAY * self._commit_alone:
            self.pays = False
            self._to_measure = min(2 * self._to_measure, _MOST_MEASURED)
        for measured in (self._runs, self._waits, self._commits):
            measured.clear()
