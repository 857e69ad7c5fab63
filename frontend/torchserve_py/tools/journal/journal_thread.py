"""The thread that writes all journals, so that neither the event loop nor a request waits for a disk.

What waits for it is bounded; what exceeds that is dropped and counted, and so is the rest of a sequence of which a step
was dropped: what is written of a sequence has no gap. The files are then readable to the last record that was written,
however the server ends.
"""

import atexit
import logging
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import orjson

from torchserve_py.tools.journal.journal_files import JournalFiles
from torchserve_py.tools.journal.journal_record import KeptJob, record_of

logger = logging.getLogger(__name__)

#: What may wait for the thread: jobs, and about how many bytes they take.
MOST_JOBS: Final = 20_000
MOST_BYTES: Final = 64 << 20
#: How long the thread collects what it writes together (seconds); as much may be lost if the server is killed.
_COLLECTS: Final = 0.05
#: How many sequences of which a record was dropped are remembered, for each journal.
_MOST_BROKEN: Final = 10_000
#: How long a server that ends waits for its journals (seconds).
_LAST_WAIT: Final = 5.0

#: Changes a record, or returns None for one that is not to be written.
Redact = Callable[[dict[str, Any]], dict[str, Any] | None]


class _BrokenSequences:
    """The sequences of which a step got no record, so that those after it get none: the latest so many."""

    def __init__(self) -> None:
        self._ids: OrderedDict[str, None] = OrderedDict()

    def add(self, job: KeptJob) -> None:
        """Note that a job gets no record."""
        if job.request.sequence is not None:
            self._ids[job.request.sequence.id] = None
            if len(self._ids) > _MOST_BROKEN:
                self._ids.popitem(last=False)

    def has(self, job: KeptJob) -> bool:
        """Return whether a step before this job got no record; a sequence that begins anew is whole again."""
        if not self._ids or (sequence := job.request.sequence) is None:
            return False
        if job.outcome.opens and (sequence.starts or sequence.step == 1):
            self._ids.pop(sequence.id, None)
        return sequence.id in self._ids


class Journal:
    """The journal of one model version. Its numbers may be read in any thread."""

    def __init__(
        self, model: str, version: str, files: JournalFiles, headers: frozenset[str], redact: Redact | None
    ) -> None:
        self.model: Final = model
        self.version: Final = version
        #: How many records were written, and how many jobs have none though they should.
        self.records = 0
        self.dropped = 0
        self._files = files
        self._headers = headers
        self._redact = redact
        self._lock = threading.Lock()  # never held during I/O: the event loop takes it
        self._writing = threading.Lock()
        #: For jobs that come, and for those that are written: between the two, steps wait that have no gap before them.
        self._broken_coming, self._broken_written = _BrokenSequences(), _BrokenSequences()
        self._failure = ""
        _open.add(self)

    @property
    def folder(self) -> Path:
        """Where its files are."""
        return self._files.folder

    def admit(self, job: KeptJob, *, has_room: bool) -> bool:
        """Return whether a job that has ended is to be written; count it otherwise."""
        with self._lock:
            admitted = not self._broken_coming.has(job) and has_room
            if not admitted:
                self._broken_coming.add(job)
                self.dropped += 1
            return admitted

    def _drop(self, jobs: Sequence[KeptJob]) -> None:
        """Note that jobs which were admitted get no records."""
        with self._lock:
            self.dropped += len(jobs)
            for each in jobs:
                self._broken_written.add(each)
                self._broken_coming.add(each)

    def write(self, jobs: Sequence[KeptJob]) -> None:
        """Write the records of jobs; called by the thread. Raises nothing."""
        lines, written = [], []
        for job in jobs:
            if self._broken_written.has(job):
                self._drop((job,))
                continue
            try:
                line = self._line(job)
            except Exception as error:  # whatever the operator's function raises
                self._tell(f"a record could not be made: {type(error).__name__}: {error}")
                self._drop((job,))
                continue
            if line is None:
                self._drop((job,))
            else:
                lines.append(line)
                written.append(job)
        if not lines:
            return
        try:
            with self._writing:
                self._files.write(lines)
        except OSError as error:
            self._tell(f"it cannot be written: {error}")
            self._drop(written)
        else:
            self.records += len(lines)

    def tidy(self) -> None:
        """Remove what is too old or too much."""
        try:
            with self._writing:
                self._files.tidy()
        except OSError as error:
            logger.warning("Old files of the journal in %s cannot be removed: %s", self.folder, error)

    def _line(self, job: KeptJob) -> bytes | None:
        record: dict[str, Any] | None = {**record_of(job, self.model, self.version, self._headers)}
        if self._redact is not None and record is not None:
            record = self._redact(record)
            if not isinstance(record, dict | None):
                raise TypeError(f"journal_redact has returned a {type(record).__name__}; it must be a dict or None")
        return None if record is None else orjson.dumps(record) + b"\n"

    def _tell(self, problem: str) -> None:
        """Log a problem, unless it is that of the time before."""
        if problem != self._failure:
            self._failure = problem
            logger.error("The journal of model %s version %s loses records: %s", self.model, self.version, problem)


class JournalThread:
    """Has the jobs of all journals written in its thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: list[tuple[Journal, KeptJob]] = []
        self._bytes = 0
        self._put = self._done = 0  # jobs
        self._hurries = threading.Event()
        self._thread: threading.Thread | None = None

    def put(self, journal: Journal, job: KeptJob) -> None:
        """Have a job written, or drop it if too much waits. Never waits for a disk."""
        size = job.size
        with self._changed:
            has_room = self._put - self._done < MOST_JOBS and self._bytes + size <= MOST_BYTES
            if not journal.admit(job, has_room=has_room):
                return
            self._put += 1
            self._bytes += size
            self._waiting.append((journal, job))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="journals", daemon=True)
                self._thread.start()
                atexit.register(self._finish)  # the thread would not keep the process from ending
            elif len(self._waiting) == 1:
                self._changed.notify_all()

    def wait(self, limit: float) -> bool:
        """Wait until all that was put is written or dropped, at most ``limit`` seconds; return whether it is."""
        self._hurries.set()
        try:
            with self._changed:
                end = self._put
                return self._changed.wait_for(lambda: self._done >= end, limit)
        finally:
            self._hurries.clear()

    def _finish(self) -> None:
        """Have what waits written before the process ends."""
        if not self.wait(_LAST_WAIT):
            logger.warning("The last records of journals could not be written within %g s", _LAST_WAIT)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
            self._hurries.wait(_COLLECTS)
            with self._changed:
                work, self._waiting = self._waiting, []
            by_journal: dict[int, tuple[Journal, list[KeptJob]]] = {}
            for journal, job in work:
                by_journal.setdefault(id(journal), (journal, []))[1].append(job)
            for journal, jobs in by_journal.values():
                journal.write(jobs)
            with self._changed:
                self._done += len(work)
                self._bytes -= sum(job.size for _, job in work)
                self._changed.notify_all()


journal_thread: Final = JournalThread()
_open: Final[weakref.WeakSet[Journal]] = weakref.WeakSet()


def open_journals() -> list[Journal]:
    """Return the journals of the models that are served."""
    return list(_open)
