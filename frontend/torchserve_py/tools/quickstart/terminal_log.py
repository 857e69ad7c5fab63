"""What `torchserve-py serve` shows: what it says itself, and of the logs what models print, requests, what goes wrong.

Probes, scrapes of metrics and the pages of the server itself are left out unless they fail. The log files have all.
"""

import copy
import logging
import sys
from typing import Final

from tqdm import tqdm

from torchserve_py.base.logs import MODEL_LOGGER, access_log
from torchserve_py.base.logs.line_logs import LineBatch
from torchserve_py.ops.log_files.formatters import JsonFormatter, LineFormatter
from torchserve_py.ops.log_files.handlers import Console, InThread

_MODEL_LINES: Final = "%(message)s"
_OTHER_LINES: Final = "%(level)s %(message)s"
_ACCESS_LINES: Final = "%(asctime)s %(message)s"
#: How the routes begin that are no request to a model: of probes, metrics, and the server's own pages.
_OWN_ROUTES: Final = (
    "/ping",
    "/live",
    "/ready",
    "/health",
    "/v2/health",
    "/metrics",
    "/console",
    "/docs",
    "/openapi.json",
)


class _RequestLines(LineFormatter):
    """The lines of requests to models, and of all that failed."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record has such a line."""
        return not isinstance(record.msg, LineBatch) or bool(_shown(record.msg).entries)

    def format(self, record: logging.LogRecord) -> str:
        if not isinstance(record.msg, LineBatch):
            return super().format(record)
        shown = copy.copy(record)
        shown.msg = _shown(record.msg)
        return super().format(shown)


def _shown(batch: LineBatch[access_log.Entry]) -> LineBatch[access_log.Entry]:
    entries = [(at, each) for at, each in batch.entries if each[4] >= 400 or not each[7].startswith(_OWN_ROUTES)]
    return LineBatch(entries, batch.texts_of, batch.more_of)


class _Terminal(logging.Handler):
    """Writes records to standard output, above a progress bar if there is one."""

    def __init__(self, json_lines: logging.Formatter | None) -> None:
        super().__init__()
        self._model_lines = json_lines or LineFormatter(_MODEL_LINES)
        self.setFormatter(json_lines or LineFormatter(_OTHER_LINES))

    def format(self, record: logging.LogRecord) -> str:
        """Return the text of a record; what models print stands alone."""
        return self._model_lines.format(record) if record.name == MODEL_LOGGER else super().format(record)

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record."""
        try:
            _write(self.format(record))
        except Exception:
            self.handleError(record)


def say(*lines: str, log_format: str) -> None:
    """Tell the user something; where the log is JSON, each line that is not empty is a record of it."""
    if log_format == "json":
        level = logging.INFO
        records = (
            {"name": __name__, "levelno": level, "levelname": logging.getLevelName(level), "msg": line}
            for line in lines
            if line
        )
        lines = tuple(map(JsonFormatter().format, map(logging.makeLogRecord, records)))
    for line in lines:
        _write(line)
    sys.stdout.flush()


def _write(line: str) -> None:
    """Write a line, with its end: between two writes another thread could write a line of its own."""
    tqdm.write(f"{line}\n", file=sys.stdout, end="")


def show_less(log_format: str) -> None:
    """Replace what the built-in logging writes to standard output; ``log_format`` is that of the settings."""
    json_lines = JsonFormatter() if log_format == "json" else None
    terminal = _Terminal(json_lines)
    terminal.addFilter(lambda record: record.name == MODEL_LOGGER or record.levelno >= logging.WARNING)
    root = logging.getLogger()
    for handler in root.handlers:
        if isinstance(handler, InThread):
            handler.handlers = [terminal, *(each for each in handler.handlers if not isinstance(each, Console))]
    for handler in logging.getLogger(access_log.LOGGER_NAME).handlers:
        for each in handler.handlers if isinstance(handler, InThread) else ():
            if isinstance(each, Console):
                _show_requests(each, json_lines)


def _show_requests(console: Console, json_lines: logging.Formatter | None) -> None:
    lines = _RequestLines(_ACCESS_LINES)
    console.setFormatter(json_lines or lines)
    if json_lines is None:
        console.addFilter(lines.filter)
