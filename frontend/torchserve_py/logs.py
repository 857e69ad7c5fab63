"""Logging: which logger goes to which file, in TorchServe's file names and line formats (specification 11.8).

The operator may replace all of it with a configuration of Python's own (`--log-config`), see docs/logging.md.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Final

from torchserve_py.log_config import apply_log_config, is_log4j
from torchserve_py.metrics import metric_log
from torchserve_py.settings import Settings

MODEL_LOGGER = "MODEL_LOG"
ACCESS_LOGGER = "ACCESS_LOG"

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

    Where the third word is the thread; of what a worker prints it is the worker: ``W-9000-mnist_1.0-stdout``.
    """

    def __init__(self, fmt: str = "%(asctime)s [%(level)-5s] %(thread_label)s %(name)s - %(message)s") -> None:
        super().__init__(fmt, validate=False)

    def format(self, record: logging.LogRecord) -> str:
        record.level = _LEVELS.get(record.levelname, record.levelname)
        thread = "main" if record.threadName in _MAIN_THREADS else record.threadName
        record.thread_label = getattr(record, "worker", thread)
        return super().format(record)

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
        time_ = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        entry = {
            "time": time_.replace("+00:00", "Z"),
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


def configure_logging(settings: Settings) -> None:
    """Send every logger to standard output and ``ts_log.log``, and models, accesses and metrics to files of their own.

    The operator's configuration stands in for all of that but the metric logs, which only stop where it names their
    loggers.

    Raises:
        LogConfigError: The operator's configuration is wrong.
        OSError: A log file cannot be written.
    """
    settings.log_location.mkdir(parents=True, exist_ok=True)
    named: frozenset[str] = frozenset()
    if settings.log_config is not None and not is_log4j(settings.log_config):
        named = apply_log_config(settings.log_config)
    else:
        json_lines = JsonFormatter() if settings.log_format == "json" else None
        _configure_files(settings.log_location, json_lines, access_log=settings.access_log)
    if settings.metrics_mode != "prometheus":
        settings.metrics_location.mkdir(parents=True, exist_ok=True)
        for name, file in _METRIC_FILES.items():
            if name not in named:
                _configure_metric_log(name, settings.metrics_location / file)


def _configure_files(log_location: Path, json_lines: JsonFormatter | None, *, access_log: bool) -> None:
    lines = json_lines or LineFormatter()
    console = logging.StreamHandler(sys.stdout)
    console.setFormatter(lines)
    root = logging.getLogger()
    root.setLevel(logging.INFO)
    root.handlers = [console, _file(log_location / "ts_log.log", lines)]
    logging.getLogger(MODEL_LOGGER).handlers = [_file(log_location / "model_log.log", lines)]
    if access_log:
        access = _file(log_location / "access_log.log", json_lines or LineFormatter(_BARE_LINE))
        logging.getLogger(ACCESS_LOGGER).handlers = [access]


def _configure_metric_log(name: str, path: Path) -> None:
    """Its records are whole lines with their time, many in one: they go to the file as they are, and nowhere else."""
    logger = logging.getLogger(name)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.handlers = [_file(path, logging.Formatter("%(message)s"))]


def _file(path: Path, formatter: logging.Formatter) -> logging.Handler:
    handler = RotatingFileHandler(path, maxBytes=_MAX_BYTES, backupCount=_KEPT_FILES, encoding="utf-8", delay=True)
    handler.setFormatter(formatter)
    return handler
