"""The thread that writes all logs, so that a slow disk or an unread pipe never stops the event loop.

What is logged is usually written before the server goes on; a server that crashes a moment later has told why. Only
while the thread is behind does what is logged wait in a queue, and what exceeds the queue is dropped, counted and told.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

logger = logging.getLogger(__name__)

#: What may wait for the thread: lines, and characters of those that are formatted already.
MOST_LINES: Final = 250_000
MOST_CHARACTERS: Final = 32 << 20
#: How many formatted lines are written as one piece of work.
_MOST_TOGETHER: Final = 1_000

#: Writes formatted lines.
Writer: TypeAlias = Callable[[str], None]


@dataclass(slots=True)
class _Formatted:
    """Formatted lines, each with its writer.

    Lists of text cost the garbage collector nothing, where an object for each line that waits made it stop the server.
    """

    texts: list[str] = field(default_factory=list)
    writers: list[Writer] = field(default_factory=list)
    lines: int = 0
    characters: int = 0

    def write(self) -> None:
        for write, text in zip(self.writers, self.texts, strict=True):
            write(text)


class LogThread:
    """Calls writers in its thread, in order."""

    def __init__(self) -> None:
        self._queue: deque[_Formatted] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        #: The event loop that will wake the thread.
        self._waker: asyncio.AbstractEventLoop | None = None
        self._put = self._written = self._dropped = 0  # lines
        self._characters = 0

    def put(self, written: Sequence[tuple[Writer, str]], lines: int, patience: float) -> None:
        """Queue lines, formatted for each of their writers, or drop them if too much waits.

        If nothing else waits, wait at most ``patience`` seconds until they are written. With no patience, what else the
        event loop logs in this turn is written with them.
        """
        characters = sum(len(text) for _, text in written)
        with self._changed:
            is_idle = self._put == self._written
            if not self._admit(lines, characters):
                return
            last = self._queue[-1] if self._queue else None
            if last is None or last.lines >= _MOST_TOGETHER:
                last = _Formatted()
                self._queue.append(last)
            last.lines += lines
            last.characters += characters
            for write, text in written:
                last.writers.append(write)
                last.texts.append(text)
            if not patience:
                self._wake_soon()
                return
            self._changed.notify_all()
            if is_idle and threading.current_thread() is not self._thread:
                self._changed.wait_for(lambda: self._put == self._written, patience)

    def wait(self, limit: float) -> bool:
        """Wait until all that is queued is written, at most ``limit`` seconds; return whether it is."""
        with self._changed:
            end = self._put
            self._changed.notify_all()
            return self._changed.wait_for(lambda: self._written >= end, limit)

    def _admit(self, lines: int, characters: int) -> bool:
        """Count lines that are to be queued, unless too much waits; return whether they may be."""
        waiting = self._put - self._written
        if waiting and (waiting + lines > MOST_LINES or self._characters + characters > MOST_CHARACTERS):
            self._dropped += lines
            return False
        self._put += lines
        self._characters += characters
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="logs", daemon=True)
            self._thread.start()
        return True

    def _wake_soon(self) -> None:
        """Wake the thread once the event loop has done this turn: each time it wakes, the loop waits for it."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self._changed.notify_all()
            return
        if self._waker is not loop:
            self._waker = loop
            loop.call_soon(self._wake)

    def _wake(self) -> None:
        with self._changed:
            self._waker = None
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue)
                work = self._queue.popleft()
            try:
                work.write()
            except Exception:
                logger.exception("Lines of a log could not be written")
            with self._changed:
                dropped = 0 if self._queue else self._dropped
                self._dropped -= dropped
            if dropped:
                logger.warning("%d lines of logs were dropped: writing them took too long", dropped)
            with self._changed:
                self._written += work.lines
                self._characters -= work.characters
                self._changed.notify_all()


log_thread: Final = LogThread()


def wait_until_written(limit: float) -> bool:
    """Block until all that was logged is written, at most ``limit`` seconds; return whether it is."""
    return log_thread.wait(limit)
