"""Log handlers that report a failure to write in one line, instead of a traceback for each record.

That of standard output drops lines while nobody reads them, so that those of the files are still written.
"""

import fcntl
import logging
import os
import select
import stat
import sys
import termios
import time
from collections.abc import Iterator, Sequence
from functools import partial
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any, Final, TextIO

from torchserve_py.base.logs.line_logs import LineBatch
from torchserve_py.base.terminal import tell
from torchserve_py.ops.log_files.formatters import Formatted
from torchserve_py.ops.log_files.log_thread import log_thread, wait_until_written

logger = logging.getLogger(__name__)

#: The mode of new files, which a user of the group may collect: lines name clients and what these have asked for.
_MODE: Final = 0o640
#: Seconds between two looks whether a file is still the one of its name.
_LOOK_INTERVAL: Final = 1.0
#: Seconds between two reports of lost records.
_REPORT_INTERVAL: Final = 60.0
#: Seconds that lines wait for a reader of standard output.
_PATIENCE: Final = 1.0
_LOOK_AGAIN: Final = 0.01
#: Seconds that what the server logs waits to be written if the thread has nothing else to do.
_HURRY: Final = 0.01
#: Seconds that the end of the process waits for the thread.
_LAST_LIMIT: Final = 2.0
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
            tell(f"Log lines cannot be written to {self.target}: {error}; lost so far: {self._lost}", to_stderr=True)
        except OSError:
            return  # standard error is on the same full disk


class LogFile(QuietErrors, RotatingFileHandler):
    """A file of the log. It counts its bytes, and asks the system for its size once a second at most.

    It is opened again if it is not the file of its name any more: another program, such as logrotate, rotates it.
    """

    _size = _counted = 0
    _looks_at = 0.0

    def _open(self) -> TextIOWrapper:
        path = self.baseFilename
        stream = open(path, "a", encoding=self.encoding, errors=self.errors, opener=_only_for_the_server)  # noqa: SIM115
        self._size = os.fstat(stream.fileno()).st_size
        return stream

    def shouldRollover(self, record: logging.LogRecord) -> bool:
        """Count a record that is about to be written; return whether a new file has to begin with it."""
        if self.stream is None:
            self.stream = self._open()
        elif (now := time.monotonic()) >= self._looks_at:
            self._looks_at = now + _LOOK_INTERVAL
            self._look(self.stream)
        text = self.format(record)
        self._counted = (len(text) if text.isascii() else len(text.encode("utf-8", "backslashreplace"))) + 1
        self._size += self._counted
        return 0 < self.maxBytes <= self._size and Path(self.baseFilename).is_file()

    def _look(self, stream: TextIOWrapper) -> None:
        """Open the file again if its name means another one, and count anew what is in it, which may have been cut."""
        here = os.fstat(stream.fileno())
        try:
            named = Path(self.baseFilename).stat()
        except FileNotFoundError:
            named = None
        if named is None or (named.st_dev, named.st_ino) != (here.st_dev, here.st_ino):
            self.stream = None  # it is opened by the next line if that fails now
            stream.close()
            self.stream = self._open()
        else:
            self._size = here.st_size

    def doRollover(self) -> None:
        """Begin a new file with the record that was counted last."""
        super().doRollover()
        self._size += self._counted

    @property
    def target(self) -> str:
        """The file's path."""
        return self.baseFilename


class Console(QuietErrors):
    """Writes to standard output what its reader takes in time; what is dropped is counted, and told once it reads.

    Of a pipe it fills at most ``share``: logs with a line per request must leave room for what the server itself tells.
    """

    def __init__(self, stream: TextIO, share: float) -> None:
        super().__init__()
        self._stream = stream
        try:
            self._file: int | None = stream.fileno()
        except OSError:  # no file, as in tests
            self._file = None
        mode = 0 if self._file is None else os.fstat(self._file).st_mode
        is_pipe = stat.S_ISFIFO(mode)
        self._is_file = stat.S_ISREG(mode)
        self._capacity = _capacity(self._file) if is_pipe and self._file is not None else None
        self._share = share
        self._is_stalled = False
        self._dropped = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Write all lines of a record."""
        try:
            text = self.format(record) + "\n"
            if self._file is None:
                self._stream.write(text)
                return
            data = text.encode("utf-8", "replace")
            if self._is_file:
                _write(self._file, data)
                return
            for piece in _pieces(data):
                if self._has_room(self._file):
                    _write(self._file, piece)
                else:
                    self._dropped += piece.count(b"\n")
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
        if self._dropped:
            dropped, self._dropped = self._dropped, 0
            logger.warning("%d lines were not written to standard output, because nobody read it", dropped)
        return True

    def _is_free(self, file: int) -> bool:
        if self._capacity is not None:
            unread = int.from_bytes(fcntl.ioctl(file, termios.FIONREAD, bytes(_INTEGER)), sys.byteorder)
            return unread <= self._capacity * self._share
        return bool(select.select([], [file], [], 0)[1])


class InThread(QuietErrors):
    """Formats records where they are logged, and has other handlers write them in the thread."""

    def __init__(self, *handlers: logging.Handler) -> None:
        super().__init__()
        self.handlers = handlers

    @property
    def handlers(self) -> Sequence[logging.Handler]:
        """The handlers that write."""
        return self._handlers

    @handlers.setter
    def handlers(self, handlers: Sequence[logging.Handler]) -> None:
        self._handlers = handlers
        self._writers = [partial(_write_line, each) for each in handlers]

    def emit(self, record: logging.LogRecord) -> None:
        """Hand a record to the thread."""
        try:
            formatted = [
                (write, each.format(record))
                for each, write in zip(self._handlers, self._writers, strict=True)
                if record.levelno >= each.level and each.filter(record)
            ]
        except Exception:
            self.handleError(record)
            return
        # Nobody waits for the lines of requests.
        lines, patience = (len(record.msg.entries), 0.0) if isinstance(record.msg, LineBatch) else (1, _HURRY)
        log_thread.put(formatted, lines, patience)

    def flush(self) -> None:
        """Wait a moment until the thread has written all; Python's logging calls this when the process ends."""
        wait_until_written(_LAST_LIMIT)

    def close(self) -> None:
        """Close the handlers, too."""
        for each in self._handlers:
            each.close()
        super().close()


def _only_for_the_server(path: str, flags: int) -> int:
    """Open a file of the log; a new one is for the server's user and its group, one that is there keeps its mode."""
    return os.open(path, flags, _MODE)


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


def _write_line(handler: logging.Handler, text: str) -> None:
    record = logging.makeLogRecord({"msg": Formatted(text)})
    handler.acquire()
    try:
        handler.emit(record)
    except Exception:
        handler.handleError(record)  # one line that fails costs no other line
    finally:
        handler.release()
