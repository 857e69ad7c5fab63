"""Logging: which logger goes to which file, in TorchServe's file names and line formats (specification 11.8).

The operator may replace all of it with a configuration of Python's own (`--log-config`), see docs/logging.md.
"""

from __future__ import annotations

import copy
import json
import logging
import sys
import time
from pathlib import Path
from typing import Any, Final

from torchserve_py import access_log
from torchserve_py.console import BatchConsole
from torchserve_py.line_logs import TAKES_BATCHES, Batch, Line, utc
from torchserve_py.log_config import apply_log_config, is_log4j
from torchserve_py.log_handlers import Console, LogFile
from torchserve_py.log_text import exception_text, is_fit, message_of
from torchserve_py.metrics import metric_log
from torchserve_py.settings import Settings

MODEL_LOGGER = "MODEL_LOG"

_METRIC_FILES: Final = {
    metric_log.SERVER_LOGGER: "ts_metrics.log",
    metric_log.MODEL_LOGGER: "model_metrics.log",
}
_MAX_BYTES = 100 * 1024 * 1024
_KEPT_FILES = 5
_BARE_LINE = "%(asctime)s - %(message)s"
_LEVELS: Final = {"WARNING": "WARN", "CRITICAL": "FATAL"}
_MAIN_THREADS: Final = ("MainThread", None)


class LineFormatter(logging.Formatter):
    """TorchServe's lines: ``2024-05-30T21:46:03,625 [INFO ] main torchserve_py.server - text``.

    Where the third word is the thread; of what a worker prints it is the worker: ``W-9000-mnist_1.0-stdout``. Control
    characters of the text are escaped.
    """

    def __init__(self, fmt: str = "%(asctime)s [%(level)-5s] %(thread_label)s %(name)s - %(message)s") -> None:
        super().__init__(fmt, validate=False)
        self._layout = fmt

    def format(self, record: logging.LogRecord) -> str:
        record.level = _LEVELS.get(record.levelname, record.levelname)
        thread = "main" if record.threadName in _MAIN_THREADS else record.threadName
        record.thread_label = getattr(record, "worker", thread)
        if isinstance(record.msg, Batch):
            return record.msg.text(self._head(record))
        if is_fit(record.getMessage()):
            return super().format(record)
        shown = copy.copy(record)
        shown.msg, shown.args = message_of(record.msg, record.args), ()
        return super().format(shown)

    def formatException(self, ei: Any) -> str:
        return exception_text(*ei)

    def _head(self, record: logging.LogRecord) -> str:
        """What is between the time and the text of a line."""
        return self._layout.removeprefix("%(asctime)s").removesuffix("%(message)s") % vars(record)

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(record.created))
        return f"{seconds},{int(record.msecs):03d}"


class JsonFormatter(logging.Formatter):
    """One JSON object for each record: ``time`` (UTC), ``level``, ``logger``, ``message``.

    Where they are known also ``request_id``, ``sequence_id``, ``client``, ``status``, ``milliseconds`` (access log),
    ``worker`` (what a worker printed or logged), ``request_ids``, ``sequence_ids`` (what its handler logged about a
    batch), ``thread`` (not the main one) and ``exception`` (a traceback).
    """

    _KNOWN = (
        *("request_id", "sequence_id", "request_ids", "sequence_ids"),
        *("client", "status", "milliseconds", "worker", "exception"),
    )

    def format(self, record: logging.LogRecord) -> str:
        if isinstance(record.msg, Batch):
            return "\n".join([self._line(line, record) for line in record.msg.lines])
        entry = {
            "time": utc(record.created),
            "level": _LEVELS.get(record.levelname, record.levelname),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.threadName not in _MAIN_THREADS:
            entry["thread"] = record.threadName
        for name in self._KNOWN:
            value = getattr(record, name, None)
            if value not in (None, "", []):
                entry[name] = value
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False, default=str)

    def _line(self, line: Line, record: logging.LogRecord) -> str:
        entry = {"time": utc(line.at), "level": record.levelname, "logger": record.name, "message": line.text}
        more = {name: line.more[name] for name in self._KNOWN if line.more.get(name) not in (None, "", [])}
        return json.dumps(entry | more, ensure_ascii=False)


def configure_logging(settings: Settings) -> None:
    """Send every logger to standard output and ``ts_log.log``, and models, accesses and metrics to files of their own.

    Metrics are on standard output, but not in ``ts_log.log``. The operator's configuration stands in for all of that
    but the files of the metric logs, which only stop where it names their loggers.

    Raises:
        LogConfigError: The operator's configuration is wrong.
        OSError: A log file cannot be written.
    """
    settings.log_location.mkdir(parents=True, exist_ok=True)
    TAKES_BATCHES.clear()
    named: frozenset[str] = frozenset()
    consoles: list[logging.Handler] = []
    if settings.log_config is not None and not is_log4j(settings.log_config):
        named = apply_log_config(settings.log_config)
    else:
        json_lines = JsonFormatter() if settings.log_format == "json" else None
        consoles = [_console(json_lines or LineFormatter())]
        _configure_files(settings, json_lines, consoles)
    if settings.metrics_mode != "prometheus":
        settings.metrics_location.mkdir(parents=True, exist_ok=True)
        for name, file in _METRIC_FILES.items():
            if name not in named:
                metrics_file = _file(settings.metrics_location / file, LineFormatter(_BARE_LINE))
                _take_batches(name, [metrics_file, *consoles])


def _configure_files(settings: Settings, json_lines: JsonFormatter | None, consoles: list[logging.Handler]) -> None:
    lines = json_lines or LineFormatter()
    console = Console(sys.stdout)
    console.setFormatter(lines)
    server_file = _file(settings.log_location / "ts_log.log", lines)
    root = logging.getLogger()
    root.setLevel(logging.INFO)
    root.handlers = [console, server_file]
    logging.getLogger(MODEL_LOGGER).handlers = [_file(settings.log_location / "model_log.log", lines)]
    if settings.access_log:
        access_file = _file(settings.log_location / "access_log.log", json_lines or LineFormatter(_BARE_LINE))
        _take_batches(access_log.LOGGER_NAME, [access_file, server_file, *consoles])


def _take_batches(name: str, handlers: list[logging.Handler]) -> None:
    """Let a logger with many lines write them with these handlers alone."""
    logger = logging.getLogger(name)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.handlers = handlers
    TAKES_BATCHES.add(name)


def _console(formatter: logging.Formatter) -> logging.Handler:
    handler = BatchConsole(sys.stdout)
    handler.setFormatter(formatter)
    return handler


def _file(path: Path, formatter: logging.Formatter) -> logging.Handler:
    """A file that is there from now on: scripts wait for lines in it."""
    handler = LogFile(path, maxBytes=_MAX_BYTES, backupCount=_KEPT_FILES, encoding="utf-8", errors="backslashreplace")
    handler.setFormatter(formatter)
    return handler
