"""The SQLite database beneath the file store: opening, locking, and the text of its errors.

SQLite has no queue for a file's lock: a process that finds the lock taken tries again soon, up to `_LOCK_LIMIT`, which
is longer than a server needs to notice that a worker with the lock has been stopped, and to kill it.

A process that has the file open can still write to it after somebody has deleted or replaced it: nobody else will ever
read that. The same holds for the two files that SQLite keeps next to it. So each write ends with a look for the files.
"""

import contextlib
import math
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from ts.protocol.regular_files import check_regular
from ts.sequences.sqlite.file_presence import Presence
from ts.sequences.steps.stores.store import StoreError

#: How long to try for the file's lock, and how long to pause between two tries (seconds).
_LOCK_LIMIT = 60.0
_PAUSES = (0.0002, 0.005)
#: The size of a page in bytes: a commit of 32 small states takes two or three, a large state is written in few pieces.
_PAGE_SIZE: Final = 4096
#: After so many pages the write-ahead log is copied into the database: seldom, because copying waits for the disk.
_CHECKPOINT_PAGES: Final = 4_000
#: The write-ahead log is cut to so many bytes after it has been copied, if a large state has made it grow.
_MOST_LOG: Final = 64 * 2**20
#: Errors after which the disk may have the written data without having confirmed it.
_UNCONFIRMED: Final = {sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_IOERR_DIR_FSYNC}


class SqliteFile:
    """A database in write-ahead mode, for one thread at a time.

    Args:
        path: The file; next to it SQLite keeps two more, ``-wal`` and ``-shm``.
        prepare: Called in a transaction with the new object and the version of the schema that the file records, 0 for
            a new file; it makes the tables, or raises StoreError because it does not know that version.
        version: The version of the schema then.
        fsync: Whether a commit waits until the disk has it.
        create: Whether to make the file if it does not exist.

    Raises:
        StoreError: The file cannot be used.

    Attributes:
        execute, executemany: SQLite's own, to be used within `transaction` or `reading`. Text comes as bytes, since
            what is in the file may be anything.
        doubtful: Whether the last write was not confirmed by the disk, so that it may turn up later.
    """

    def __init__(
        self, path: str, prepare: "Callable[[SqliteFile, int], None]", version: int, *, fsync: bool, create: bool = True
    ) -> None:
        self.path = path
        self.doubtful = False
        self._presence: Presence | None = None
        self._make(create=create)
        # A timeout of 0, because `_until_unlocked` does the waiting.
        self._database = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
        self._database.text_factory = bytes
        self.execute, self.executemany = self._database.execute, self._database.executemany
        try:
            with self._errors():
                self._until_unlocked(self._set_up, fsync)
                if self._version() != version:
                    with self.transaction():
                        if (found := self._version()) != version:
                            prepare(self, found)
                            self.execute(f"PRAGMA user_version = {version}")
                real = os.path.realpath(path)  # next to which SQLite keeps the other two
                self._presence = Presence((path, real, f"{real}-wal", f"{real}-shm"))
        except BaseException:
            self._database.close()
            raise

    def _make(self, *, create: bool) -> None:
        """Make the file if it does not exist.

        An existing file must not be opened here: closing it again would drop the locks of all of this process'
        connections to it.
        """
        problem = ""
        try:
            if create:
                Path(self.path).parent.mkdir(parents=True, exist_ok=True)
                with contextlib.suppress(FileExistsError):
                    os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            check_regular(self.path)
        except OSError as error:
            problem = error.strerror or str(error)
        if problem:
            raise StoreError(f"the file {self.path} of the sequence store cannot be used: {problem}")

    def _set_up(self, fsync: bool) -> None:
        execute = self.execute
        execute(f"PRAGMA page_size = {_PAGE_SIZE}")
        execute("PRAGMA journal_mode = WAL")
        execute(f"PRAGMA synchronous = {'FULL' if fsync else 'NORMAL'}")
        execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")
        execute(f"PRAGMA journal_size_limit = {_MOST_LOG}")

    def _version(self) -> int:
        found: int = self._until_unlocked(self.execute, "PRAGMA user_version").fetchone()[0]
        return found

    def write(self, statement: str, arguments: Sequence[Any]) -> int:
        """Run one statement as a transaction of its own; return the number of changed rows.

        Raises StoreError: the statement failed; its changes may still appear if `doubtful`.
        """
        try:
            changed: int = self._until_unlocked(self.execute, statement, arguments).rowcount
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise self._failure(error) from error
        self.doubtful = False
        self._look()
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
            except BaseException:
                with contextlib.suppress(sqlite3.Error):  # some errors have rolled back already
                    self.execute("ROLLBACK")
                raise
        self.doubtful = False
        self._look()

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Let the block read one consistent state; other processes need not wait.

        Raises StoreError: the file cannot be read.
        """
        self._look()
        with self._errors():
            self.execute("BEGIN")
            try:
                yield
            finally:
                with contextlib.suppress(sqlite3.Error):  # some errors have rolled back already
                    self.execute("ROLLBACK")

    def close(self) -> None:
        if self._presence is not None:
            self._presence.close()
        with self._errors():
            self._database.close()

    def _look(self) -> None:
        """Raise StoreError if the file, or one of SQLite's next to it, is not the one any more that was opened."""
        if self._presence is not None and (gone := self._presence.gone()):
            self.doubtful = True
            raise StoreError(
                f"{gone} was deleted or replaced while this process used it: what is written now would be lost."
                " Load the model again once the file is where it should be"
            )

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
        except (sqlite3.Error, UnicodeDecodeError) as error:  # a message may quote what is in a damaged file
            raise self._failure(error) from error

    def _failure(self, error: Exception) -> StoreError:
        if getattr(error, "sqlite_errorcode", 0) in _UNCONFIRMED:
            self.doubtful = True
        return StoreError(f"the sequence store {self.path} {_reason(error)}")


def is_damage(error: sqlite3.Error) -> bool:
    """Whether a statement failed because of what it found at one place of the file; other places may be sound."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_CORRUPT


def _reason(error: Exception) -> str:
    match getattr(error, "sqlite_errorcode", 0) & 0xFF:
        case sqlite3.SQLITE_FULL:
            return "is full: the disk has no room left"
        case sqlite3.SQLITE_IOERR:
            return f"cannot be written or read ({error}); the disk may be full or a limit on file sizes reached"
        case sqlite3.SQLITE_BUSY:
            return f"was locked by another process for {_LOCK_LIMIT:g} seconds"
        case sqlite3.SQLITE_NOTADB:
            return f"is no sequence store, or damaged where the file begins: {error}; only a backup helps"
        case sqlite3.SQLITE_CORRUPT:
            return f"is damaged: {error}; torchserve-py store repair may help"
    return f"cannot be used: {error}"
