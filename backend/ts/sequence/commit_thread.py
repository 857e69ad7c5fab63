"""The thread that commits a batch and sends its answers while the handler runs the next one.

One commit is under way at a time, and until it is done the store is that thread's: whatever else uses the store goes
through `StoreAfterCommit`, which waits. `CommitOverlap` finds out by measuring whether the thread pays.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Final

from ts.connection_threads import SHORTEST_STEP
from ts.sequence.stores.store import Store

#: Commits that are shorter (seconds) cost less than passing them to the thread.
_LEAST_COMMIT: Final = 0.1e-3
#: A commit beside a handler may take so many times as long as one alone: the handler may let no other thread run.
_MOST_DELAY: Final = 2
#: How many steps are measured at a time: at first, and at most. Each time that the thread turns out not to pay, the
#: number is doubled.
_MEASURED_STEPS: Final = 16
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


class StoreAfterCommit:
    """A `Store` whose every use first waits for the commit that is under way.

    Args:
        wait: Returns when no commit is under way.
    """

    def __init__(self, store: Store, wait: Callable[[], None]) -> None:
        self._store = store
        self._wait = wait

    def __getattr__(self, name: str) -> Any:
        self._wait()
        return getattr(self._store, name)


class CommitOverlap:
    """Measures steps and their commits, and tells whether commits are worth being made while the next batch runs.

    Attributes:
        pays: Whether they are, as far as is known.
    """

    def __init__(self) -> None:
        self.pays = False
        self._alone = 0.0
        self._to_measure = _MEASURED_STEPS
        self._restart()

    def _restart(self) -> None:
        self._steps, self._step_seconds, self._commit_seconds = 0, 0.0, 0.0

    def note(self, step: float, commit: float) -> None:
        """Note how long a step has taken, and how long its commit (seconds)."""
        self._steps += 1
        self._step_seconds += step
        self._commit_seconds += commit
        if self._steps < self._to_measure:
            return
        step, commit = self._step_seconds / self._steps, self._commit_seconds / self._steps
        if not self.pays:
            self._alone = commit
            self.pays = step >= SHORTEST_STEP and commit >= _LEAST_COMMIT
        elif step < SHORTEST_STEP or commit > _MOST_DELAY * self._alone:
            self.pays = False
            self._to_measure = min(2 * self._to_measure, _MOST_MEASURED)
        self._restart()
