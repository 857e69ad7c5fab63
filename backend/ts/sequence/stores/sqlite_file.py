"""The SQLite database beneath the file store: opening, locking, and the text of its errors.

SQLite has no queue for a file's lock: a process that finds the lock taken tries again soon, up to `_LOCK_LIMIT`, which
is longer than a server needs to notice that a worker with the lock has been stopped, and to kill it.
"""

import contextlib
import math
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ts.sequence.stores.store import StoreError

#: How long to try for the file's lock, and how long to pause between two tries (seconds).
_LOCK_LIMIT = 60.0
_PAUSES = (0.0002, 0.005)
#: After so many pages the write-ahead log is copied into the database: seldom, because copying waits for the disk.
_CHECKPOINT_PAGES = 16_000
#: Small pages, since a commit writes a little in many places.
_PAGE_SIZE = 1024
#: Errors after which the disk may have the written data without having confirmed it.
_UNCONFIRMED = {sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_IOERR_DIR_FSYNC}


class SqliteFile:
    """A database in write-ahead mode, for one thread at a time; created if it does not exist.

    Args:
        path: The file; beside it SQLite keeps two more, ``-wal`` and ``-shm``.
        schema: Statements that make its tables.
        version: The version of the schema, which the file records.
        fsync: Whether a commit waits until the disk has it.

    Raises:
        StoreError: The file cannot be used.

    Attributes:
        execute, executemany: SQLite's own, to be used within `transaction` or `reading`.
        doubtful: Whether the last write was not confirmed by the disk, so that it may turn up later.
    """

    def __init__(self, path: str, schema: str, version: int, *, fsync: bool) -> None:
        self._path = path
        self.doubtful = False
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        except OSError as error:
            raise StoreError(f"the file {path} of the sequence store cannot be used: {error.strerror}") from error
        # A timeout of 0, because `_until_unlocked` does the waiting.
        self._database = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
        self.execute, self.executemany = self._database.execute, self._database.executemany
        with self._errors():
            self._until_unlocked(self._prepare, fsync)
            self._until_unlocked(self._create, schema, version)
            if (found := self._version()) != version:
                raise StoreError(f"{path} is a sequence store of version {found}; this server reads {version}")

    def _prepare(self, fsync: bool) -> None:
        execute = self.execute
        execute(f"PRAGMA page_size = {_PAGE_SIZE}")
        execute("PRAGMA journal_mode = WAL")
        execute(f"PRAGMA synchronous = {'FULL' if fsync else 'NORMAL'}")
        execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")

    def _version(self) -> int:
        found: int = self.execute("PRAGMA user_version").fetchone()[0]
        return found

    def _create(self, schema: str, version: int) -> None:
        if not self._version():
            self._database.executescript(f"BEGIN IMMEDIATE; {schema} PRAGMA user_version = {version}; COMMIT;")

    def write(self, statement: str, arguments: Sequence[Any]) -> int:
        """Run one statement as a transaction of its own; return the number of changed rows.

        Raises StoreError: the statement failed; its changes may still appear if `doubtful`.
        """
        try:
            changed: int = self._until_unlocked(self.execute, statement, arguments).rowcount
            self.doubtful = False
        except sqlite3.Error as error:
            raise self._failure(error) from error
        return changed

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Run the block as a transaction, which other processes wait for.

        Raises StoreError: the transaction failed and changed nothing, unless `doubtful`.
        """
        with self._errors():
            self._until_unlocked(self.execute, "BEGIN IMMEDIATE")
            try:
                yield
                self.execute("COMMIT")
                self.doubtful = False
            except BaseException:
                with contextlib.suppress(sqlite3.Error):  # some errors have rolled back already
                    self.execute("ROLLBACK")
                raise

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Let the block read one consistent state; other processes need not wait.

        Raises StoreError: the file cannot be read.
        """
        with self._errors():
            self.execute("BEGIN")
            try:
                yield
            finally:
                with contextlib.suppress(sqlite3.Error):  # some errors have rolled back already
                    self.execute("ROLLBACK")

    def close(self) -> None:
        with self._errors():
            self._database.close()

    def _until_unlocked(self, action: Any, *arguments: Any) -> Any:
        """Run an action, again and again while another process has the file's lock."""
        (pause, longest), end = _PAUSES, math.inf
        while True:
            try:
                return action(*arguments)
            except sqlite3.OperationalError as error:
                end = min(end, time.monotonic() + _LOCK_LIMIT)
                is_locked = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
                if not is_locked or time.monotonic() > end:
                    raise
            time.sleep(pause)
            pause = min(2 * pause, longest)

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise self._failure(error) from error

    def _failure(self, error: sqlite3.Error) -> StoreError:
        if getattr(error, "sqlite_errorcode", 0) in _UNCONFIRMED:
            self.doubtful = True
        return StoreError(f"the sequence store {self._path} {_reason(error)}")


def _reason(error: sqlite3.Error) -> str:
    match getattr(error, "sqlite_errorcode", 0) & 0xFF:
        case sqlite3.SQLITE_FULL:
            return "is full: the disk has no room left"
        case sqlite3.SQLITE_IOERR:
            return f"cannot be written or read ({error}); the disk may be full or a limit on file sizes reached"
        case sqlite3.SQLITE_BUSY:
            return f"was locked by another process for {_LOCK_LIMIT:g} seconds"
        case sqlite3.SQLITE_NOTADB | sqlite3.SQLITE_CORRUPT:
            return f"is damaged or no sequence store: {error}"
    return f"cannot be used: {error}"
