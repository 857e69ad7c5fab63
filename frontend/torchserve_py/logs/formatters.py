"""Formats of log lines: TorchServe's, and JSON."""

import copy
import json
import logging
import time
from typing import Any, Final

from torchserve_py.logs.line_logs import Batch, Line, utc
from torchserve_py.logs.text import exception_text, is_fit, message_of

_LEVELS: Final = {"WARNING": "WARN", "CRITICAL": "FATAL"}
_MAIN_THREADS: Final = ("MainThread", None)


class LineFormatter(logging.Formatter):
    """TorchServe's lines: ``2024-05-30T21:46:03,625 [INFO ] main torchserve_py.server - text``.

    The third word is the thread, or the worker for output of a worker: ``W-9000-mnist_1.0-stdout``. Control characters
    in the text are escaped.
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
        """Return what stands between the time and the text of a line."""
        return self._layout.removeprefix("%(asctime)s").removesuffix("%(message)s") % vars(record)

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(record.created))
        return f"{seconds},{int(record.msecs):03d}"


class JsonFormatter(logging.Formatter):
    """One JSON object for each record: ``time`` (UTC), ``level``, ``logger``, ``message``.

    Further members, where known: ``request_id``, ``sequence_id``, ``client``, ``status``, ``milliseconds`` (access
    log), ``worker`` (output of a worker), ``request_ids``, ``sequence_ids`` (output of a handler about a batch),
    ``thread`` (other than the main thread) and ``exception`` (a traceback).
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
