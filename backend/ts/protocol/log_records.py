"""Log records of a worker on their way to the server's log: with their level, and the requests they concern.

With ``TS_LOG_FORMAT`` in the environment, as the server sets it for those that read its workers' output, each record is
one line: `MARK`, then a JSON object with ``level``, ``model_logger`` (the logger's name), ``message``, ``exception`` (a
traceback), and ``request_id`` and ``sequence_id``. A record that a handler logs while it runs a batch of several rows
cannot be attributed to one of them: it has ``request_ids`` and ``sequence_ids``. Printed lines stay unchanged.
"""

import json
import logging
import os
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, Final

#: Its value is the format of the server's logs: ``text`` or `JSON`.
FORMAT_VARIABLE: Final = "TS_LOG_FORMAT"
JSON: Final = "json"
#: The first character of a line with a record: the record separator of RFC 7464, which no text contains.
MARK: Final = "\x1e"

#: The ids of requests, each with that of its sequence, "" if it belongs to none.
Ids = Sequence[tuple[str, str]]


def no_requests() -> Ids:
    """Return no ids, because no request is running."""
    return ()


#: Returns the ids of the requests that run in this thread or task.
running: ContextVar[Callable[[], Ids]] = ContextVar("running", default=no_requests)


#: The server may read a longer line in pieces, which are no records.
_LONGEST_LINE: Final = 60_000
#: The number of characters of a text that fit such a line, even if JSON escapes all of them.
_PIECE: Final = 4_000


class RecordFormatter(logging.Formatter):
    """Writes records as lines that the server reads; one with a text that is too long for a line as several."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, or the lines."""
        own = {name: getattr(record, name) for name in ("request_id", "sequence_id") if hasattr(record, name)}
        named = {"level": record.levelno, "model_logger": record.name}
        about = {**named, **(own or _id_members(running.get()()))}
        texts = {"message": record.getMessage()}
        if record.exc_info:
            texts["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            texts["message"] += "\n" + self.formatStack(record.stack_info)
        line = _line(about, texts)
        if len(line) <= _LONGEST_LINE:
            return line
        pieces = [text[start : start + _PIECE] for text in texts.values() for start in range(0, len(text), _PIECE)]
        return "\n".join(_line(about, {"message": piece}) for piece in pieces)


def write_records(logger: logging.Logger) -> None:
    """Have the handlers of a logger write records, where the server reads what this process writes."""
    if FORMAT_VARIABLE in os.environ:
        for handler in logger.handlers:
            handler.setFormatter(RecordFormatter())


def _line(about: dict[str, Any], texts: dict[str, str]) -> str:
    return MARK + json.dumps({**texts, **about}, default=str)


def _id_members(ids: Ids) -> dict[str, Any]:
    if len(ids) == 1:
        ((request_id, sequence_id),) = ids
        return {"request_id": request_id, "sequence_id": sequence_id}
    return {"request_ids": [each for each, _ in ids], "sequence_ids": [each for _, each in ids if each]}


def record_of(line: str) -> dict[str, Any] | None:
    """Return the record in a line; None for any other line."""
    if not line.startswith(MARK):
        return None
    try:
        entry = json.loads(line[len(MARK) :])
    except (ValueError, RecursionError):  # what a handler prints may come from its clients
        return None
    if not isinstance(entry, dict) or not isinstance(entry.get("level"), int) or "message" not in entry:
        return None
    return entry
