"""Log handlers that report a failure to write in one line, instead of a traceback for each record."""

import logging
import sys
import time
from logging.handlers import RotatingFileHandler
from typing import Any, Final

#: Seconds between two reports of lost records.
_REPORT_INTERVAL: Final = 60.0


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
