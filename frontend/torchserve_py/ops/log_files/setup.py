"""Sends each logger to its file, with TorchServe's file names and line formats.

The operator may replace this by a configuration of Python's logging (`--log-config`), see docs/logging.md.
"""

import logging
import os
import sys
from pathlib import Path
from typing import Final

from torchserve_py.base.logs import HANDLER_METRICS_LOGGER, METRICS_LOGGER, MODEL_LOGGER, access_log
from torchserve_py.base.logs.line_logs import TAKES_BATCHES, TEXT_ONLY
from torchserve_py.base.settings.log_config import LogConfigError, is_log4j, read_log_config
from torchserve_py.base.settings.table import Settings
from torchserve_py.ops.log_files.formatters import JsonFormatter, LineFormatter
from torchserve_py.ops.log_files.handlers import Console, InThread, LogFile

logger = logging.getLogger(__name__)

_METRIC_FILES: Final = {
    METRICS_LOGGER: "ts_metrics.log",
    HANDLER_METRICS_LOGGER: "model_metrics.log",
}
_MAX_BYTES = 100 * 1024 * 1024
_KEPT_FILES = 5
#: Others cannot list what is in the folder; workers that run as another user reach their states, which are below it.
_FOLDER_MODE: Final = 0o751
#: What a stalled pipe holds of lines of requests, and of what the server tells besides.
_SHARE_OF_REQUESTS: Final = 0.5
_SHARE_OF_SERVER: Final = 0.75
_BARE_LINE = "%(asctime)s - %(message)s"


def configure_logging(settings: Settings) -> None:
    """Send every logger to standard output and ``ts_log.log``, and models, accesses and metrics to files of their own.

    All files exist from then on. Metrics are on standard output, unless it is the terminal of a shell that goes on
    meanwhile, but not in ``ts_log.log``. The operator's configuration replaces all of this except the files of the
    metric logs; a metric log's file is left out only if that configuration names its logger. Raises LogConfigError: the
    operator's configuration is wrong; OSError: a log file cannot be written.
    """
    settings.log_location.mkdir(_FOLDER_MODE, parents=True, exist_ok=True)
    TAKES_BATCHES.clear()
    TEXT_ONLY.clear()
    named: frozenset[str] = frozenset()
    consoles: list[logging.Handler] = []
    if settings.log_config is not None and not is_log4j(settings.log_config):
        named = apply_log_config(settings.log_config)
    else:
        consoles = [Console(sys.stdout, _SHARE_OF_REQUESTS)]
        _configure_files(settings, consoles)
    try:
        settings.metrics_location.mkdir(_FOLDER_MODE, parents=True, exist_ok=True)
        for name, file in _METRIC_FILES.items():
            if name not in named:
                shown = [] if _has_the_terminal_of_a_shell() else consoles
                metrics_file = _file(settings.metrics_location / file, LineFormatter(_BARE_LINE))
                _take_batches(name, [metrics_file, *shown])
    except OSError as error:
        if settings.metrics_mode != "prometheus":
            raise
        logger.warning("There are no metric logs, which the mode prometheus would leave empty anyhow: %s", error)


def _has_the_terminal_of_a_shell() -> bool:
    """Whether standard output is a terminal that is not the one of this process's session, as after `--start`."""
    if not sys.stdout.isatty():
        return False
    try:
        os.tcgetpgrp(sys.stdout.fileno())
    except OSError:
        return True
    return False


def apply_log_config(path: Path) -> frozenset[str]:
    """Apply the configuration in a file; return the names of the loggers that it configures.

    Raises LogConfigError: the file cannot be read, is no such configuration, or names a class that does not exist;
    OSError: a log file cannot be written.
    """
    import logging.config  # 10 ms that most servers need not wait for

    # Loggers exist since their modules were imported: those that the file does not name must go on working.
    config = {"disable_existing_loggers": False, **read_log_config(path)}
    try:
        logging.config.dictConfig(config)
    except (ValueError, TypeError, AttributeError, ImportError) as error:
        if isinstance(error.__cause__, OSError):
            raise error.__cause__ from None
        cause = "" if error.__cause__ is None else f": {error.__cause__}"
        raise LogConfigError(f"--log-config {path}: {error}{cause}") from error
    return frozenset(config.get("loggers") or ())


def _configure_files(settings: Settings, consoles: list[logging.Handler]) -> None:
    json_lines = JsonFormatter() if settings.log_format == "json" else None
    lines = json_lines or LineFormatter()
    console = Console(sys.stdout, _SHARE_OF_SERVER)
    for each in (console, *consoles):
        each.setFormatter(lines)
    server_file = _file(settings.log_location / "ts_log.log", lines)
    root = logging.getLogger()
    root.setLevel(logging.INFO)
    root.handlers = [InThread(console, server_file)]
    of_models = logging.getLogger(MODEL_LOGGER)
    of_models.setLevel(1)  # what a model's own loggers let through is in the log
    of_models.handlers = [InThread(_file(settings.log_location / "model_log.log", lines))]
    if settings.access_log:
        access_file = _file(settings.log_location / "access_log.log", json_lines or LineFormatter(_BARE_LINE))
        _take_batches(access_log.LOGGER_NAME, [access_file, server_file, *consoles])


def _take_batches(name: str, handlers: list[logging.Handler]) -> None:
    """Give a logger with a line per request its own handlers, which write batches."""
    target = logging.getLogger(name)
    target.setLevel(logging.INFO)
    target.propagate = False
    target.handlers = [InThread(*handlers)]
    TAKES_BATCHES.add(name)
    if not any(isinstance(each.formatter, JsonFormatter) for each in handlers):
        TEXT_ONLY.add(name)


def _file(path: Path, formatter: logging.Formatter) -> logging.Handler:
    """Return the handler of a file, which exists from now on: scripts wait for lines in it."""
    handler = LogFile(path, maxBytes=_MAX_BYTES, backupCount=_KEPT_FILES, encoding="utf-8", errors="backslashreplace")
    handler.setFormatter(formatter)
    return handler
