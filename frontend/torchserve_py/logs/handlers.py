"""Log handlers that report a failure to write in one line, instead of a traceback for each record.

The handler of batches drops lines if standard output is a pipe whose reader stalls: if the pipe filled up, the next
message of the server itself would block the server.
"""

import fcntl
import logging
import os
import select
import stat
import sys
import termios
import time
from collections.abc import Iterator
from logging.handlers import RotatingFileHandler
from typing import Any, Final, TextIO

#: Seconds between two reports of lost records.
_REPORT_INTERVAL: Final = 60.0
#: Seconds that a batch waits for a reader.
_PATIENCE: Final = 1.0
_LOOK_AGAIN: Final = 0.01
#: Bytes that are written to a pipe at once: the system does not mix these with the output of other processes.
_PIECE: Final = select.PIPE_BUF
_INTEGER: Final = 4


class QuietErrors(logging.Handler):
    """Counts the records that cannot be written and reports them on standard error, at most once a minute."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._lost = 0
        self._reported_at = float("-inf")

    @property
    def target(self) -> str:
        """The destination of the records, in words."""
        return "standard output"

    def handleError(self, record: logging.LogRecord) -> None:
        self._lost += 1
        if time.monotonic() - self._reported_at < _REPORT_INTERVAL:
            return
        self._reported_at = time.monotonic()
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)  # a defect in the server: with its traceback
            return
        try:
            print(f"Log lines cannot be written to {self.target}: {error}; lost so far: {self._lost}", file=sys.stderr)
        except OSError:
            return  # standard error is on the same full disk


class LogFile(QuietErrors, RotatingFileHandler):
    """A file of the log."""

    @property
    def target(self) -> str:
        """The file's path."""
        return self.baseFilename


class Console(QuietErrors, logging.StreamHandler[Any]):
    """Standard output."""


class BatchConsole(QuietErrors):
    """Writes records whose message is a `Batch` to standard output; to a pipe only while half of it is free."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream
        try:
            self._file: int | None = stream.fileno()
        except OSError:  # no file, as in tests
            self._file = None
        is_pipe = self._file is not None and stat.S_ISFIFO(os.fstat(self._file).st_mode)
        self._capacity = _capacity(self._file) if is_pipe and self._file is not None else None
        self._is_stalled = False

    def emit(self, record: logging.LogRecord) -> None:
        """Write all lines; drop those that the reader of the pipe does not read in time."""
        try:
            text = self.format(record) + "\n"
            if self._file is None:
                self._stream.write(text)
                return
            for piece in _pieces(text.encode("utf-8", "replace")):
                if not self._has_room(self._file):
                    return
                _write(self._file, piece)
        except Exception:
            self.handleError(record)

    def _has_room(self, file: int) -> bool:
        end = time.monotonic() + (0.0 if self._is_stalled else _PATIENCE)
        while not self._is_free(file):
            if time.monotonic() >= end:
                self._is_stalled = True
                return False
            time.sleep(_LOOK_AGAIN)
        self._is_stalled = False
        return True

    def _is_free(self, file: int) -> bool:
        if self._capacity is not None:
            unread = int.from_bytes(fcntl.ioctl(file, termios.FIONREAD, bytes(_INTEGER)), sys.byteorder)
            return unread <= self._capacity // 2
        return bool(select.select([], [file], [], 0)[1])


def _capacity(file: int) -> int | None:
    """Return how many bytes a pipe holds, or None if the system does not tell."""
    command = getattr(fcntl, "F_GETPIPE_SZ", None)
    return None if command is None else fcntl.fcntl(file, command)


def _pieces(data: bytes) -> Iterator[bytes]:
    """Yield pieces of whole lines, of at most `_PIECE` bytes unless a line is longer."""
    start = 0
    while start < len(data):
        end = data.rfind(b"\n", start, start + _PIECE) + 1
        end = end or data.index(b"\n", start) + 1
        yield data[start:end]
        start = end


def _write(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]
