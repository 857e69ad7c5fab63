"""Logs with a line for every request: entries are collected, and soon after formatted together; a thread writes them.

A request must not wait for its line. `LineLog.note` only stores an entry; soon after, all stored entries are logged as
one record, whose message is a `LineBatch`. The formatters in `formatters` make its lines. A logger that does not take
batches, such as one that the operator has configured, gets one record per line.

They are formatted in the event loop, a few at a time: a thread that does more than write would take the interpreter's
lock for 5 ms whenever the loop calls the system.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property, lru_cache
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

T = TypeVar("T")

#: Seconds that an entry waits for others that are logged with it.
FLUSH_DELAY: Final = 0.02

#: Names of the loggers whose handlers can all write batches.
TAKES_BATCHES: Final[set[str]] = set()
#: Names of those that write nothing of an entry but its text.
TEXT_ONLY: Final[set[str]] = set()

#: So many entries are logged together.
_MOST_WAITING: Final = 256
#: The moment of an entry.
_moment_of: Final = itemgetter(0)
#: Stands for the head of a line; no text has this character.
_HEAD: Final = "\0"


class Line(NamedTuple):
    """One line: its time in seconds since 1970, its text, and the further members of a line in JSON."""

    at: float
    text: str
    more: Mapping[str, Any]


#: Returns the texts of entries of one millisecond. A text may have several lines; each begins with the text given (a
#: time, or nothing). The number is the entries' second since 1970.
TextsOf: TypeAlias = Callable[[Sequence[T], str, int], Sequence[str]]


@dataclass(eq=False)
class LineBatch(Generic[T]):
    """The message of a record that stands for many lines; see `LineLog`."""

    entries: Sequence[tuple[float, T]]
    texts_of: TextsOf[T]
    more_of: Callable[[T], Mapping[str, Any]]

    @property
    def lines(self) -> list[Line]:
        """The lines in order."""
        return [
            Line(at, text, self.more_of(entry))
            for at, entry in self.entries
            for text in self.texts_of((entry,), "", int(at))[0].split("\n")
        ]

    def text(self, head: str) -> str:
        """Return all lines: local time (``2024-05-30T21:46:03,625``), ``head`` and text."""
        return head.join(self._between_heads)

    def __str__(self) -> str:
        return self.text(" - ")

    @cached_property
    def _between_heads(self) -> list[str]:
        texts: list[str] = []
        for tick, alike in groupby(self.entries, tick_of):
            second, millisecond = divmod(tick, 1000)
            texts += self.texts_of([entry for _, entry in alike], f"{_clock(second)},{millisecond:03d}{_HEAD}", second)
        return "\n".join(texts).split(_HEAD)


def tick_of(entry: tuple[float, Any]) -> int:
    """Return the millisecond of an entry, since 1970."""
    return int(entry[0] * 1000)


@lru_cache(maxsize=4)
def _clock(second: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(second))


class LineLog(Generic[T]):
    """Entries that wait to be written to a logger.

    ``texts_of`` returns the lines of entries, ``more_of`` their further members in JSON.
    """

    def __init__(
        self,
        logger_name: str,
        texts_of: TextsOf[T],
        more_of: Callable[[T], Mapping[str, Any]] = lambda _: {},
    ) -> None:
        self._logger = logging.getLogger(logger_name)
        self._texts_of = texts_of
        self._more_of = more_of
        self._waiting: list[tuple[float, T]] = []
        #: What notes further entries once the present ones are to be logged.
        self._sources: list[Callable[[], None]] = []
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_text_only(self) -> bool:
        """Whether the further members of entries are not written."""
        return self._logger.name in TEXT_ONLY

    def note(self, entry: T, at: float | None = None) -> None:
        """Store an entry of that moment (seconds since 1970), or of now. Outside an event loop it waits for `flush`."""
        self._waiting.append((time.time() if at is None else at, entry))
        if len(self._waiting) >= _MOST_WAITING:
            self.flush()
        elif self._timer is None:
            self._flush_soon()

    def note_all(self, entries: Iterable[tuple[float, T]]) -> None:
        """Store entries with their moments; what is too much for one record is logged at once."""
        self._waiting += entries
        if len(self._waiting) >= _MOST_WAITING:
            self.flush()
        elif self._timer is None:
            self._flush_soon()

    def awaits(self, source: Callable[[], None]) -> None:
        """Soon log what ``source`` notes, which is called once before that; it must not raise anything."""
        self._sources.append(source)
        if self._timer is None:
            self._flush_soon()

    def write(self, entries: Iterable[tuple[float, T]]) -> None:
        """Log entries with their moments, behind those that are stored."""
        self._waiting += entries
        self.flush()

    def flush(self) -> None:
        """Log the stored entries."""
        if self._sources:
            sources, self._sources = self._sources, []
            for note in sources:
                note()
            self._waiting.sort(key=_moment_of)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._waiting:
            return
        batch = LineBatch(self._waiting, self._texts_of, self._more_of)
        self._waiting = []
        if not self._logger.isEnabledFor(logging.INFO):
            return
        if self._logger.name in TAKES_BATCHES:
            self._logger.handle(_record(self._logger, batch, None))
            return
        for line in batch.lines:
            self._logger.handle(_record(self._logger, line.text, line))

    def _flush_soon(self) -> None:
        try:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_DELAY, self.flush)
        except RuntimeError:
            return  # there is no event loop


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
