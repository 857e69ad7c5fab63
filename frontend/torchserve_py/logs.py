"""Logging: which logger goes to which file, in TorchServe's file names and line formats (specification 11.8)."""

from __future__ import annotations

import logging
import sys
import time
from logging.handlers import RotatingFileHandler
from pathlib import Path

MODEL_LOGGER = "MODEL_LOG"
ACCESS_LOGGER = "ACCESS_LOG"

_MAX_BYTES = 100 * 1024 * 1024
_KEPT_FILES = 5
_LINE = "%(asctime)s [%(levelname)-5s] %(threadName)s %(name)s - %(message)s"
_BARE_LINE = "%(asctime)s - %(message)s"


class _Formatter(logging.Formatter):
    """Writes the time as ``2024-05-30T21:46:03,625``."""

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(record.created))
        return f"{seconds},{int(record.msecs):03d}"


def configure_logging(log_location: Path, *, access_log: bool) -> None:
    """Send every logger to standard output and ``ts_log.log``, the model's and the access log to files of their own.

    Raises:
        OSError: A log file cannot be written.
    """
    log_location.mkdir(parents=True, exist_ok=True)
    console = logging.StreamHandler(sys.stdout)
    console.setFormatter(_Formatter(_LINE))
    root = logging.getLogger()
    root.setLevel(logging.INFO)
    root.handlers = [console, _file(log_location / "ts_log.log", _LINE)]
    logging.getLogger(MODEL_LOGGER).handlers = [_file(log_location / "model_log.log", _LINE)]
    if access_log:
        logging.getLogger(ACCESS_LOGGER).handlers = [_file(log_location / "access_log.log", _BARE_LINE)]


def _file(path: Path, line: str) -> logging.Handler:
    handler = RotatingFileHandler(path, maxBytes=_MAX_BYTES, backupCount=_KEPT_FILES, encoding="utf-8", delay=True)
    handler.setFormatter(_Formatter(line))
    return handler
