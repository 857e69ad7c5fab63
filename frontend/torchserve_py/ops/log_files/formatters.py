"""Formats of log lines: TorchServe's, and JSON.

Text from clients and handlers is made safe for a log: it cannot start a line of its own or control a terminal.
"""

import copy
import json
import logging
import time
import traceback
from collections.abc import Mapping
from numbers import Number
from types import TracebackType
from typing import Any, Final

from torchserve_py.base.logs.line_logs import Line, LineBatch, utc
from torchserve_py.base.logs.unfit_characters import fit, fit_json, is_fit

_LEVELS: Final = {"WARNING": "WARN", "CRITICAL": "FATAL"}
_MAIN_THREADS: Final = ("MainThread", None)


class Formatted(str):
    """The message of a record that has been formatted."""


class LineFormatter(logging.Formatter):
    """TorchServe's lines: ``2024-05-30T21:46:03,625 [INFO ] main torchserve_py.server - text``.

    The third word is the thread, or the worker for output of a worker: ``W-9000-mnist_1.0-stdout``. Control characters
    in the text are escaped; but each line of what a worker has logged, and of its traceback, is a line of its own.
    """

    def __init__(self, fmt: str = "%(asctime)s [%(level)-5s] %(thread_label)s %(name)s - %(message)s") -> None:
        super().__init__(fmt, validate=False)
        self._layout = fmt

    def format(self, record: logging.LogRecord) -> str:
        if isinstance(record.msg, Formatted):
            return record.msg
        record.level = _LEVELS.get(record.levelname, record.levelname)
        thread = "main" if record.threadName in _MAIN_THREADS else record.threadName
        record.thread_label = fit(getattr(record, "worker", thread))
        if isinstance(record.msg, LineBatch):
            return record.msg.text(self._head(record))
        if hasattr(record, "worker"):
            return "\n".join([self._line(line, record) for line in _lines_of(record)])
        if is_fit(record.getMessage()):
            return super().format(record)
        shown = copy.copy(record)
        shown.msg, shown.args = _message_of(record.msg, record.args), ()
        return super().format(shown)

    def formatException(self, ei: Any) -> str:
        return _exception_text(*ei)

    def _line(self, line: str, record: logging.LogRecord) -> str:
        shown = copy.copy(record)
        shown.msg, shown.args, shown.exc_text = fit(line), (), None
        return super().format(shown)

    def _head(self, record: logging.LogRecord) -> str:
        """Return what stands between the time and the text of a line."""
        return self._layout.removeprefix("%(asctime)s").removesuffix("%(message)s") % vars(record)

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(record.created))
        return f"{seconds},{int(record.msecs):03d}"


class JsonFormatter(logging.Formatter):
    """One JSON object for each record: ``time`` (UTC), ``level``, ``logger``, ``message``.

    Further members, where known: ``request_id``, ``sequence_id``; ``trace_id``, ``client``, ``status``,
    ``milliseconds``, ``route``, ``model``, ``model_version``, ``cause`` (access log); ``worker`` (output of a worker),
    ``model_logger`` (what its code calls the logger), ``request_ids``, ``sequence_ids`` (output of a handler about a
    batch), ``thread`` (other than the main thread) and ``exception`` (a traceback).
    """

    _KNOWN = (
        *("request_id", "sequence_id", "request_ids", "sequence_ids", "trace_id"),
        *("client", "status", "milliseconds", "route", "model", "model_version", "cause"),
        *("worker", "model_logger", "exception"),
    )

    def format(self, record: logging.LogRecord) -> str:
        if isinstance(record.msg, Formatted):
            return record.msg
        if isinstance(record.msg, LineBatch):
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
        return fit_json(json.dumps(entry, ensure_ascii=False, default=str))

    def _line(self, line: Line, record: logging.LogRecord) -> str:
        entry = {"time": utc(line.at), "level": record.levelname, "logger": record.name, "message": line.text}
        more = {name: line.more[name] for name in self._KNOWN if line.more.get(name) not in (None, "", [])}
        return fit_json(json.dumps(entry | more, ensure_ascii=False))


def _lines_of(record: logging.LogRecord) -> list[str]:
    """Return the lines of what a worker has logged: its text, and its traceback with the model and the requests."""
    exception = getattr(record, "exception", None)
    text = record.getMessage()
    if exception:
        ids = getattr(record, "request_id", None) or ", ".join(getattr(record, "request_ids", None) or ())
        about = f" [model {record.model}{ids and f', request {ids}'}]" if hasattr(record, "model") else ""
        text = f"{text}{about}\n{exception}"
    return text.split("\n")


def _message_of(template: Any, arguments: Any) -> str:
    """Return the message of a record as one line; line breaks in the template stay, because the server wrote them."""
    if not arguments:
        return fit(str(template))
    if isinstance(arguments, Mapping):
        return str(template) % {name: _fit_value(value) for name, value in arguments.items()}
    return str(template) % tuple(map(_fit_value, arguments))


def _exception_text(kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> str:
    """Return a traceback; lines of the exception's text are indented, so that they do not look like log lines."""
    chunks = []
    for chunk in traceback.format_exception(kind, error, trace):
        # A stack frame, or the text between two exceptions, has lines of Python's own.
        indent = "" if chunk.startswith(("  ", "\n", "Traceback (")) else "    "
        chunks.append(f"\n{indent}".join(map(fit, chunk.removesuffix("\n").split("\n"))))
    return "\n".join(chunks).rstrip()


class _Fit:
    """A value whose text is safe to log."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __str__(self) -> str:
        return fit(str(self._value))

    def __repr__(self) -> str:
        return fit(repr(self._value))


def _fit_value(value: Any) -> Any:
    return value if value is None or isinstance(value, Number) else _Fit(value)
