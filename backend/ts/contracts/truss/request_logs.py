"""The log of calls: the request that a line belongs to.

Each record that is made while a request runs, in whatever thread, has the attributes ``request_id`` and
``chain_request_id`` if the request came with the headers of these names.
"""

import copy
import logging
from collections.abc import Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, Final

from ts.protocol.messages import InferRow

_HEADERS: Final = {b"x-baseten-request-id": "request_id", b"x-baseten-chain-request-id": "chain_request_id"}
_LENGTHS: Final = frozenset(map(len, _HEADERS))

_ids: ContextVar[Mapping[str, str]] = ContextVar("truss_request_ids", default=MappingProxyType({}))


def enter_request(row: InferRow) -> None:
    """Use the ids of a request for all log records of the current task from now on."""
    ids = None
    for name, value in row.headers:
        if len(name) in _LENGTHS and isinstance(name, bytes) and (key := _HEADERS.get(name.lower())):
            ids = {**(ids or {}), key: value.decode("latin-1")}
    if ids:
        _ids.set(ids)


def log_request_ids() -> None:
    """Add the ids of its request to every log record, and to the lines of the root logger."""
    make_record = logging.getLogRecordFactory()

    def make_record_with_ids(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = make_record(*args, **kwargs)
        record.__dict__.update(_ids.get())
        return record

    logging.setLogRecordFactory(make_record_with_ids)
    for handler in logging.getLogger().handlers:
        handler.setFormatter(_Formatter(handler.formatter or logging.Formatter()))


class _Formatter(logging.Formatter):
    """Writes records with another formatter, with the ids before their messages."""

    def __init__(self, writer: logging.Formatter) -> None:
        super().__init__()
        self._writer = writer

    def format(self, record: logging.LogRecord) -> str:
        ids = {name: record.__dict__[name] for name in _HEADERS.values() if name in record.__dict__}
        if ids:
            text = " ".join(f"{name}={value}" for name, value in ids.items())
            record.message = record.getMessage()  # as every formatter does
            record = copy.copy(record)
            record.msg, record.args = f"[{text}] {record.message}", None
            for name in ids:  # where the server's logs are JSON, the request's id is the server's
                del record.__dict__[name]
        return self._writer.format(record)
