"""Handlers of the log that say in one line that they cannot write, and not with a traceback for each record."""

from __future__ import annotations

import logging
import sys
import time
from logging.handlers import RotatingFileHandler
from typing import Any, Final

#: Seconds until it is said again that records are lost.
_SAY_AGAIN: Final = 60.0


class QuietErrors(logging.Handler):
    """Counts the records that cannot be written, and says so on standard error, at most once a minute."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._lost = 0
        self._said_at = float("-inf")

    @property
    def target(self) -> str:
        """Where the records go, in words."""
        return "standard output"

    def handleError(self, record: logging.LogRecord) -> None:
        self._lost += 1
        if time.monotonic() - self._said_at < _SAY_AGAIN:
            return
        self._said_at = time.monotonic()
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)  # a defect in the server: with its traceback
            return
        try:
            print(f"Log lines cannot be written to {self.target}: {error}; lost so far: {self._lost}", file=sys.stderr)
        except OSError:
            return  # standard error is on the same full disk: there is nobody left to tell


class LogFile(QuietErrors, RotatingFileHandler):
    """A file of the log."""

    @property
    def target(self) -> str:
        """The file's path."""
        return self.baseFilename


class Console(QuietErrors, logging.StreamHandler[Any]):
    """Standard output."""
