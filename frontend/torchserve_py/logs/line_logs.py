"""Logs with a line for every request: entries are collected in the event loop; one thread formats and writes them.

A request must not pay for its line. `LineLog.note` only stores an entry; `LineLog.flush` hands all stored entries to
the thread as one record, whose message is a `Batch`. The formatters in `formatters` write a line for each entry. A
logger that does not take batches, such as one that the operator has configured, gets one record per entry.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from queue import SimpleQueue
from typing import Any, Final, Generic, NamedTuple, TypeVar

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Seconds between two flushes of the logs by the server.
FLUSH_INTERVAL: Final = 1.0

#: Names of the loggers whose handlers can all write batches.
TAKES_BATCHES: Final[set[str]] = set()

#: So many entries are handed over without waiting for the next flush.
_MOST_WAITING: Final = 256
#: Batches that may wait for the thread; more wait only if the disk or the reader of a pipe is too slow.
_MOST_BATCHES: Final = 1000
#: Stands for the head of a line; no text has this character.
_HEAD: Final = "\0"


class Line(NamedTuple):
    """One line: its time in seconds since 1970, its text, and the further members of a line in JSON."""

    at: float
    text: str
    more: Mapping[str, Any]


@dataclass(eq=False)
class Batch(Generic[T]):
    """The message of a record that stands for many lines, one for each entry; see `LineLog`."""

    entries: Sequence[tuple[float, T]]
    text_of: Callable[[T], str]
    more_of: Callable[[T], Mapping[str, Any]]

    @property
    def lines(self) -> list[Line]:
        """The lines in order."""
        return [Line(at, self.text_of(entry), self.more_of(entry)) for at, entry in self.entries]

    def text(self, head: str) -> str:
        """Return all lines: local time (``2024-05-30T21:46:03,625``), ``head`` and text."""
        return self._without_heads.replace(_HEAD, head)

    def __str__(self) -> str:
        return self.text(" - ")

    @cached_property
    def _without_heads(self) -> str:
        text_of, lines = self.text_of, list[str]()
        second, clock, tick, stamp = -1, "", -1, ""
        for at, entry in self.entries:
            if int(at * 1000) != tick:
                tick = int(at * 1000)
                if tick // 1000 != second:
                    second = tick // 1000
                    clock = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(second))
                stamp = f"{clock},{tick % 1000:03d}{_HEAD}"
            lines.append(stamp + text_of(entry))
        return "\n".join(lines)


class LineLog(Generic[T]):
    """Entries that wait to be written to a logger.

    ``text_of`` returns the text of an entry, ``more_of`` the further members of its line in JSON.
    """

    def __init__(
        self,
        logger_name: str,
        text_of: Callable[[T], str],
        more_of: Callable[[T], Mapping[str, Any]] = lambda _: {},
    ) -> None:
        self._logger = logging.getLogger(logger_name)
        self._text_of = text_of
        self._more_of = more_of
        self._waiting: list[tuple[float, T]] = []

    def note(self, entry: T) -> None:
        """Store an entry with the current time."""
        self._waiting.append((time.time(), entry))
        if len(self._waiting) >= _MOST_WAITING:
            self.flush()

    def flush(self) -> None:
        """Hand the stored entries to the thread."""
        if not self._waiting:
            return
        batch = Batch(self._waiting, self._text_of, self._more_of)
        self._waiting = []
        if not self._logger.isEnabledFor(logging.INFO):
            return
        if self._logger.name in TAKES_BATCHES:
            _writer.put(self._logger, batch)
            return
        for line in batch.lines:
            self._logger.handle(_record(self._logger, line.text, line))


class _Writer:
    def __init__(self) -> None:
        self._batches: SimpleQueue[tuple[logging.Logger, Batch[Any]] | threading.Event] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._dropped = 0

    def put(self, target: logging.Logger, batch: Batch[Any]) -> None:
        """Queue a batch; drop it if too many wait."""
        if self._batches.qsize() >= _MOST_BATCHES:
            self._dropped += len(batch.entries)
            return
        self._start()
        self._batches.put((target, batch))

    def wait(self, limit: float) -> bool:
        """Wait until all queued batches are written, at most ``limit`` seconds; return whether they are."""
        if self._thread is None:
            return True
        written = threading.Event()
        self._batches.put(written)
        return written.wait(limit)

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._write, name="line-logs", daemon=True)
            self._thread.start()

    def _write(self) -> None:
        while True:
            item = self._batches.get()
            if isinstance(item, threading.Event):
                item.set()
                continue
            target, batch = item
            try:
                target.handle(_record(target, batch, None))
            except Exception:
                logger.exception("Lines of the log %s could not be written", target.name)
            if self._dropped and self._batches.empty():
                dropped, self._dropped = self._dropped, 0
                logger.warning("%d lines of access and metric logs were dropped: writing them took too long", dropped)


_writer: Final = _Writer()


def wait_until_written(limit: float) -> bool:
    """Block until all flushed entries are written, at most ``limit`` seconds; return whether they are."""
    return _writer.wait(limit)


def utc(at: float) -> str:
    """Return a time in the format of lines in JSON: ``2024-05-30T21:46:03.625Z``."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _record(target: logging.Logger, message: object, line: Line | None) -> logging.LogRecord:
    extra = None if line is None else {key: value for key, value in line.more.items() if value is not None}
    record = target.makeRecord(target.name, logging.INFO, "", 0, message, (), None, extra=extra)
    record.threadName = threading.main_thread().name  # not the thread that writes
    if line is not None:
        record.created, record.msecs = line.at, line.at % 1 * 1000
    return record
