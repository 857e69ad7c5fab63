"""What `torchserve-py serve` shows: what it says itself, and of the logs what models print, requests, what goes wrong.

The log files have all.
"""

import logging
import sys
from typing import Final

from tqdm import tqdm

from torchserve_py.features.log_files.formatters import JsonFormatter, LineFormatter
from torchserve_py.features.log_files.handlers import Console, InThread
from torchserve_py.logs import MODEL_LOGGER, access_log

_MODEL_LINES: Final = "%(message)s"
_OTHER_LINES: Final = "%(level)s %(message)s"
_ACCESS_LINES: Final = "%(asctime)s %(message)s"


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
            tqdm.write(self.format(record), file=sys.stdout)
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
        tqdm.write(line, file=sys.stdout)
    sys.stdout.flush()


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
                each.setFormatter(json_lines or LineFormatter(_ACCESS_LINES))
