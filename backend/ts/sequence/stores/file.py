"""Sequences in one file: an SQLite database in write-ahead mode, shared by the workers (and servers) of one machine.

What was committed survives the death of any process; with ``fsync`` also that of the machine. SQLite because it comes
with Python, so that a model's own environment needs nothing installed, and is the best tested of embedded databases.
LMDB commits a batch in half the time, which is hardly visible beside the handler's own work.

Nobody waits in line for a file's lock: a process that finds it taken tries again soon. Waiting ends with `_LOCK_LIMIT`:
longer than it takes a server to notice that a worker which holds the lock has been stopped, and to kill it.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ts.sequence.stores.store import (
    IDLE,
    MOST_KEPT,
    REMEMBERED_SECONDS,
    Acquired,
    Commit,
    Lease,
    StoreError,
    StoreSettings,
    may_take,
)

_SCHEMA = """
CREATE TABLE IF NOT EXISTS sequences (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    model TEXT NOT NULL,
    id TEXT NOT NULL,
    token INTEGER NOT NULL,
    owner TEXT NOT NULL,
    lease_until REAL NOT NULL,      -- seconds since 1970, as all times here
    expires_at REAL NOT NULL,       -- abandoned by then; of a closed sequence: forgotten by then
    steps INTEGER NOT NULL,
    closed TEXT NOT NULL,           -- why it is over, '' if it is not
    state BLOB,
    UNIQUE (model, id)
);
CREATE TABLE IF NOT EXISTS answers (
    key INTEGER PRIMARY KEY,        -- the slot * 2^40 + the sequence's number: what is written together lies together
    request_id TEXT NOT NULL,
    answer BLOB NOT NULL
);
"""
_VERSION = 1
_SLOT = 2**40
#: How long to try for the file's lock, and how long to pause between two tries (seconds).
_LOCK_LIMIT = 60.0
_PAUSES = (0.0002, 0.005)
#: How many answers one statement writes, within SQLite's limit on values.
_ROWS_AT_ONCE = 1000
#: How much is swept with the lock in hand.
_SWEEP_AT_ONCE = 500
#: After so many pages the write-ahead log goes into the database: seldom, for that waits for the disk, fsync or not.
_CHECKPOINT_PAGES = 16_000
#: Small pages, since a commit writes a little in many places.
_PAGE_SIZE = 1024


class FileStore:
    """Sequences in the file ``path``, which is made if it is not there.

    Args:
        settings: Whose sequences, and for whom.
        path: The file; beside it SQLite keeps two more, ``-wal`` and ``-shm``.
        fsync: Whether a commit waits until the disk has it.

    Raises:
        StoreError: The file cannot be used.
    """

    def __init__(self, settings: StoreSettings, path: str, *, fsync: bool) -> None:
        self._settings = settings
        self._path = path
        self._marks = ",".join("?" * settings.kept)
        self._select_answers = f"SELECT key, request_id FROM answers WHERE key IN ({self._marks})"  # noqa: S608
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        except OSError as error:
            raise StoreError(f"the file {path} of the sequence store cannot be used: {error.strerror}") from error
        # The worker's main thread alone uses it; a timeout of 0 since waiting is done here.
        self._database = sqlite3.connect(path, timeout=0, isolation_level=None)
        with self._errors():
            self._until_unlocked(self._prepare, fsync)

    def _prepare(self, fsync: bool) -> None:
        database = self._database
        database.execute(f"PRAGMA page_size = {_PAGE_SIZE}")
        database.execute("PRAGMA journal_mode = WAL")
        database.execute(f"PRAGMA synchronous = {'FULL' if fsync else 'NORMAL'}")
        database.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")
        (version,) = database.execute("PRAGMA user_version").fetchone()
        if version not in {0, _VERSION}:
            raise StoreError(f"{self._path} is a sequence store of version {version}; this server reads {_VERSION}")
        if not version:
            database.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA user_version = {_VERSION}; COMMIT;")

    def acquire(self, sequence_ids: Sequence[str]) -> list[Acquired]:
        """Take leases and read; see `Store`."""
        with self._transaction():
            return [self._acquire(sequence_id, time.time()) for sequence_id in sequence_ids]

    def _acquire(self, sequence_id: str, now: float) -> Acquired:
        settings, execute = self._settings, self._database.execute
        found = execute(
            "SELECT number, token, owner, lease_until, expires_at, steps, closed, state FROM sequences"
            " WHERE model = ? AND id = ?",
            (settings.model, sequence_id),
        ).fetchone()
        until = now + settings.lease
        if found is None:
            number = execute(
                "INSERT INTO sequences (model, id, token, owner, lease_until, expires_at, steps, closed)"
                " VALUES (?, ?, 1, ?, ?, ?, 0, '')",
                (settings.model, sequence_id, settings.owner, until, now + settings.lifetime),
            ).lastrowid
            return Acquired(Lease(sequence_id, number, 1, 0, (), settings), None, "")
        number, token, owner, lease_until, expires_at, steps, closed, state = found
        if not may_take(owner, lease_until, now, settings):
            return Acquired(None, None, "")
        if not closed and expires_at <= now:
            closed = IDLE
        execute(
            "UPDATE sequences SET token = ?, owner = ?, lease_until = ? WHERE number = ?",
            (token + 1, settings.owner, until, number),
        )
        kept = execute(self._select_answers, self._keys(number)).fetchall()
        # The slot that is written next is the oldest.
        kept.sort(key=lambda entry: (entry[0] // _SLOT - steps) % settings.kept)
        lease = Lease(sequence_id, number, token + 1, steps, [request_id for _, request_id in kept], settings)
        return Acquired(lease, None if closed else state, closed)

    def renew(self, leases: Sequence[Lease]) -> list[bool]:
        """Prolong leases; see `Store`."""
        until = time.time() + self._settings.lease
        with self._transaction():
            return [
                self._database.execute(
                    "UPDATE sequences SET lease_until = ? WHERE number = ? AND token = ?",
                    (until, lease.key, lease.token),
                ).rowcount
                == 1
                for lease in leases
            ]

    def commit(self, commits: Sequence[Commit]) -> list[bool]:
        """Write what sequences have become; see `Store`."""
        now = time.time()
        with self._transaction():
            rows = [self._row(commit, now) for commit in commits]
            valid = [True] * len(commits)
            if self._database.executemany(_UPDATE, rows).rowcount != len(rows):
                # Seldom: another has taken some of them. What was written to the others is written again.
                valid = [self._database.execute(_UPDATE, row).rowcount == 1 for row in rows]
            answers = [
                (slot * _SLOT + commit.lease.key, request_id, answer)  # type: ignore[operator]
                for commit, is_valid in zip(commits, valid, strict=True)
                if is_valid
                for slot, request_id, answer in commit.answers
            ]
            for first in range(0, len(answers), _ROWS_AT_ONCE):  # one statement costs half of what one per row does
                rows_at_once = answers[first : first + _ROWS_AT_ONCE]
                values = ",".join(["(?,?,?)"] * len(rows_at_once))
                self._database.execute(
                    f"INSERT OR REPLACE INTO answers VALUES {values}",  # noqa: S608 - question marks alone
                    [value for row in rows_at_once for value in row],
                )
        return valid

    def _row(self, commit: Commit, now: float) -> tuple[Any, ...]:
        lease, settings = commit.lease, self._settings
        expires_at = now + (REMEMBERED_SECONDS if commit.closed else settings.lifetime)
        return (commit.state, commit.closed, lease.steps, now + settings.lease, expires_at, lease.key, lease.token)

    def answer(self, lease: Lease, request_id: str) -> bytes | None:
        """Return a kept answer; see `Store`."""
        query = f"SELECT answer FROM answers WHERE key IN ({self._marks}) AND request_id = ?"  # noqa: S608
        with self._errors():
            found = self._until_unlocked(self._database.execute, query, (*self._keys(lease.key), request_id)).fetchone()
        return None if found is None else found[0]

    def _keys(self, number: Any) -> list[int]:
        """The keys that the answers of a sequence have."""
        return [slot * _SLOT + number for slot in range(self._settings.kept)]

    def end(self, ended: Sequence[tuple[Lease, str]]) -> None:
        """Drop states; see `Store`."""
        forgotten_at = time.time() + REMEMBERED_SECONDS
        with self._transaction():
            self._database.executemany(
                "UPDATE sequences SET state = NULL, closed = ?, lease_until = 0, expires_at = ?"
                " WHERE number = ? AND token = ?",
                [(reason, forgotten_at, lease.key, lease.token) for lease, reason in ended],
            )

    def release(self, leases: Sequence[Lease]) -> None:
        """Let leases go; see `Store`."""
        with self._transaction():
            self._database.executemany(
                "UPDATE sequences SET lease_until = 0 WHERE number = ? AND token = ?",
                [(lease.key, lease.token) for lease in leases],
            )

    def sweep(self) -> None:
        """Drop what nobody will ask for, of every model in the file; see `Store`."""
        now = time.time()
        with self._errors():
            abandoned = self._until_unlocked(self._overdue, "closed = '' AND lease_until < ?2", now)
            forgotten = self._until_unlocked(self._overdue, "closed <> ''", now)
        for numbers in _portions(abandoned):
            with self._transaction():
                self._database.executemany(
                    "UPDATE sequences SET state = NULL, closed = ?1, expires_at = ?2"
                    " WHERE number = ?3 AND closed = '' AND expires_at < ?4 AND lease_until < ?4",
                    [(IDLE, now + REMEMBERED_SECONDS, number, now) for number in numbers],
                )
        for numbers in _portions(forgotten):
            with self._transaction():
                for number in numbers:
                    gone = "DELETE FROM sequences WHERE number = ? AND closed <> '' AND expires_at < ?"
                    if self._database.execute(gone, (number, now)).rowcount:
                        every_slot = [(slot * _SLOT + number,) for slot in range(MOST_KEPT)]
                        self._database.executemany("DELETE FROM answers WHERE key = ?", every_slot)

    def _overdue(self, condition: str, now: float) -> list[int]:
        query = f"SELECT number FROM sequences WHERE expires_at < ?1 AND {condition}"  # noqa: S608 - one of two constants
        arguments = (now, now) if "?2" in condition else (now,)
        return [number for (number,) in self._database.execute(query, arguments)]

    def close(self) -> None:
        """Close the file."""
        with self._errors():
            self._database.close()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        """All or nothing of what is done inside; others wait meanwhile.

        Raises:
            StoreError: It could not be done, and nothing was.
        """
        with self._errors():
            self._until_unlocked(self._database.execute, "BEGIN IMMEDIATE")
            try:
                yield
                self._database.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):  # some errors have rolled back already
                    self._database.execute("ROLLBACK")
                raise

    def _until_unlocked(self, action: Any, *arguments: Any) -> Any:
        """Do it, again and again while another process has the file's lock."""
        pause, longest = _PAUSES
        end = time.monotonic() + _LOCK_LIMIT
        while True:
            try:
                return action(*arguments)
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > end:
                    raise
            time.sleep(pause)
            pause = min(2 * pause, longest)

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise StoreError(f"the sequence store {self._path} {_reason(error)}") from error


_UPDATE = (
    "UPDATE sequences SET state = ?, closed = ?, steps = ?, lease_until = ?, expires_at = ?"
    " WHERE number = ? AND token = ?"
)


def _portions(numbers: list[int]) -> Iterator[list[int]]:
    for first in range(0, len(numbers), _SWEEP_AT_ONCE):
        yield numbers[first : first + _SWEEP_AT_ONCE]


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
