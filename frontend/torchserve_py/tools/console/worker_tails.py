"""The last lines of each worker: what it has printed, and what the server has said about it. Bounded in size."""

import logging
from collections import OrderedDict, deque
from typing import Final, NamedTuple

from torchserve_py.base.logs import MODEL_LOGGER

#: What is kept: lines of a worker, characters of a line, workers. Above the last, the longest silent one is forgotten.
MOST_LINES: Final = 400
MOST_CHARACTERS: Final = 1000
MOST_WORKERS: Final = 256
#: The loggers whose records tell of workers.
LOGGERS: Final = (MODEL_LOGGER, "torchserve_py.core.workers.supervisor")


class TailLine(NamedTuple):
    """One line; its number is greater than those of the lines before."""

    number: int
    at: float  # seconds since 1970
    level: str
    source: str  # stdout, stderr or server
    text: str


class WorkerTails(logging.Handler):
    """Keeps the last lines of each worker, by the worker's id."""

    def __init__(self) -> None:
        super().__init__()
        self._tails: OrderedDict[str, deque[TailLine]] = OrderedDict()

    def attach(self) -> None:
        """Take records from now on."""
        for name in LOGGERS:
            logging.getLogger(name).addHandler(self)

    def detach(self) -> None:
        """Take no more records."""
        for name in LOGGERS:
            logging.getLogger(name).removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record that tells of a worker: of the one that its ``of_worker`` names."""
        worker_id = getattr(record, "of_worker", "")
        if not worker_id:
            return
        tail = self._tails.setdefault(worker_id, deque(maxlen=MOST_LINES))
        self._tails.move_to_end(worker_id)
        if len(self._tails) > MOST_WORKERS:
            self._tails.popitem(last=False)
        text = record.getMessage()
        exception = getattr(record, "exception", None)
        if isinstance(exception, str):
            text = f"{text}\n{exception}"
        source = getattr(record, "source", "server")
        number = tail[-1].number + 1 if tail else 1
        tail.append(TailLine(number, record.created, record.levelname, source, text[-MOST_CHARACTERS:]))

    def since(self, worker_id: str, number: int) -> list[TailLine]:
        """Return the lines of a worker behind the line of this number, oldest first."""
        with self.lock:  # type: ignore[union-attr]
            return [each for each in self._tails.get(worker_id, ()) if each.number > number]
