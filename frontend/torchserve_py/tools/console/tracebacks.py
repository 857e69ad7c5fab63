"""The last tracebacks of the models' code, by model: what failed, since when, how often, and for which requests."""

import logging
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Final

from torchserve_py.base.logs import MODEL_LOGGER

#: What is kept: different tracebacks, characters of one, request ids of one. Above the first, the oldest is forgotten.
MOST_TRACEBACKS: Final = 50
MOST_CHARACTERS: Final = 4000
MOST_REQUESTS: Final = 5


@dataclass(slots=True)
class Seen:
    """A traceback that models have logged, once or several times. ``number`` grows whenever any is logged."""

    number: int
    worker: str  # such as ``W-9000-resnet_1.0``
    message: str
    traceback: str
    first_at: float  # seconds since 1970
    last_at: float
    count: int
    requests: list[str]  # the latest ids

    @property
    def error(self) -> str:
        """The last line of the traceback: the exception's type and text."""
        return self.traceback.rstrip().rpartition("\n")[2]


class Tracebacks(logging.Handler):
    """Keeps the tracebacks."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: OrderedDict[tuple[str, str], Seen] = OrderedDict()
        #: That of the latest one.
        self.number = 0

    def attach(self) -> None:
        """Take records from now on."""
        logging.getLogger(MODEL_LOGGER).addHandler(self)

    def detach(self) -> None:
        """Take no more records."""
        logging.getLogger(MODEL_LOGGER).removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the traceback of a record, if it has one."""
        traceback = getattr(record, "exception", None)
        if not isinstance(traceback, str) or not traceback.strip():
            return
        source = str(getattr(record, "source", ""))
        worker = str(getattr(record, "worker", "")).removesuffix(f"-{source}")
        model = worker.partition("-")[2].partition("-")[2]
        self.number += 1
        key = (model, traceback[-MOST_CHARACTERS:])
        seen = self._seen.pop(key, None)
        if seen is None:
            seen = Seen(self.number, worker, record.getMessage(), key[1], record.created, record.created, 0, [])
        seen.number, seen.worker, seen.last_at, seen.count = self.number, worker, record.created, seen.count + 1
        seen.requests = [*_requests(record), *seen.requests][:MOST_REQUESTS]
        self._seen[key] = seen
        if len(self._seen) > MOST_TRACEBACKS:
            self._seen.popitem(last=False)

    def latest(self) -> list[dict[str, Any]]:
        """Return the tracebacks, the latest first."""
        with self.lock:  # type: ignore[union-attr]
            return [_shown(model, seen) for (model, _), seen in reversed(self._seen.items())]


def _shown(model: str, seen: Seen) -> dict[str, Any]:
    return {
        "model": model,
        "worker": seen.worker,
        "error": seen.error,
        "message": seen.message,
        "traceback": seen.traceback,
        "first_at": seen.first_at,
        "last_at": seen.last_at,
        "count": seen.count,
        "requests": seen.requests,
    }


def _requests(record: logging.LogRecord) -> list[str]:
    """Return the ids of the requests that a record is about."""
    ids = getattr(record, "request_ids", None) or [getattr(record, "request_id", None)]
    return [str(each) for each in ids if each] if isinstance(ids, list | tuple) else []
