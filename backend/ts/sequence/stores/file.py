"""Sequences in one file: an SQLite database in write-ahead mode, shared by the workers (and servers) of one machine.

Committed data survives the death of any process; with ``fsync`` also a crash of the machine. The store uses SQLite
because it comes with Python, so that a model's own environment needs no further package, and because it is the best
tested embedded database.

Answers wait for a commit, so a commit is kept short: one statement appends one row, with all changes of the batch, to a
**journal**. Later, after the answers have left, many journal rows are applied to the tables at once (`_fold`). Readers
see no difference: every transaction except that statement begins with `_fold`.

The same statement checks that no lease was taken over. Checking each lease would cost as much as the write, so the file
counts takeovers, which are rare, and a lease remembers the count at which it was found valid. A lease that its holder
releases, or takes again itself, need not be counted: the holder marks the old lease to be checked at each commit.

Look-ups write nothing, so that they work on a full disk: they read both the tables and the journal.
"""

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from weakref import WeakValueDictionary

import msgpack

from ts.protocol.messages import ENDED
from ts.sequence.stores.file_sweep import COUNT_TAKEOVER, SLOT, sweep
from ts.sequence.stores.sqlite_file import SqliteFile
from ts.sequence.stores.store import (
    FIRST_SLOT,
    IDLE,
    JUST_NOW,
    REMEMBERED_SECONDS,
    Acquired,
    Commit,
    Lease,
    Store,
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
    expires_at REAL NOT NULL,       -- when it is idle for too long; if closed: forgotten
    incarnation INTEGER NOT NULL,
    further_steps INTEGER NOT NULL, -- of the incarnation, without its first step
    closed TEXT NOT NULL,           -- why it is over, '' if it is not
    state BLOB,
    UNIQUE (model, id)
);
CREATE TABLE IF NOT EXISTS answers (
    key INTEGER PRIMARY KEY,        -- the slot * 2^40 + the sequence's number: neighbours are written together
    incarnation INTEGER NOT NULL,   -- an answer of an earlier incarnation does not count
    request_id TEXT NOT NULL,
    answer BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS journal (
    number INTEGER PRIMARY KEY,     -- later commits have higher numbers
    entry BLOB NOT NULL             -- in msgpack: rows for _UPDATE, rows for _KEEP
);
CREATE TABLE IF NOT EXISTS takeovers (count INTEGER NOT NULL);
INSERT INTO takeovers SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM takeovers);
CREATE INDEX IF NOT EXISTS sequences_by_expiry ON sequences (expires_at);
CREATE TABLE IF NOT EXISTS sweeps (next_at REAL NOT NULL);
INSERT INTO sweeps SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM sweeps);
"""
_VERSION = 4

_UPDATE = (
    "UPDATE sequences SET state = ?, closed = ?, incarnation = ?, further_steps = ?, lease_until = ?, expires_at = ?"
    " WHERE number = ? AND token = ?"
)
_KEEP = "INSERT OR REPLACE INTO answers (key, incarnation, request_id, answer) VALUES (?, ?, ?, ?)"
_APPEND = "INSERT INTO journal (entry) SELECT ?1 WHERE (SELECT count FROM takeovers) = ?2"

#: The mark of a lease that every commit has to check.
_CHECKED_EACH_TIME = -1
#: The indexes of the incarnation and of the sequence's number in a row for _UPDATE.
_INCARNATION, _NUMBER = 2, 6
#: The number of commits in the journal after which they are applied to the tables.
_MOST_JOURNALED = 64
#: Larger commits (bytes) bypass the journal: writing them twice would cost more than the journal saves.
_JOURNALED_SIZE = 2**15


class FileStore(Store):
    """Sequences in the file ``path``, which is created if it does not exist.

    Raises StoreError: the file cannot be used.

    Args:
        path: The file; SQLite keeps two more files beside it, ``-wal`` and ``-shm``.
        fsync: Whether a commit waits until the data is on the disk.
    """

    def __init__(self, settings: StoreSettings, path: str, *, fsync: bool) -> None:
        self._settings = settings
        self._slots = range(FIRST_SLOT, settings.kept + 1)
        marks = ",".join("?" * len(self._slots))
        self._select_answers = f"SELECT key, incarnation, request_id, answer FROM answers WHERE key IN ({marks})"  # noqa: S608
        self._file = SqliteFile(path, _SCHEMA, _VERSION, fsync=fsync)
        self._execute, self._executemany = self._file.execute, self._file.executemany
        #: The latest lease of each sequence that this process has had, by the sequence's number, while it is
        #: referenced.
        self._own: WeakValueDictionary[int, Lease] = WeakValueDictionary()
        self._journaled = 0
        self._pack = msgpack.Packer().pack

    def acquire(self, sequence_ids: Sequence[str], active_since: Mapping[str, float] = JUST_NOW) -> list[Acquired]:
        with self._transaction():
            now, clock = time.time(), time.monotonic()
            taken = [
                self._acquire(each, now, now + min(0.0, active_since.get(each, clock) - clock)) for each in sequence_ids
            ]
            if any(is_takeover for _, is_takeover in taken):
                self._execute(COUNT_TAKEOVER)
            count = self._takeovers()
        acquired = [each for each, _ in taken]
        for lease in [each.lease for each in acquired if each.lease is not None]:
            lease.mark = count
            if lease.number in self._own:
                self._own[lease.number].mark = _CHECKED_EACH_TIME
            self._own[lease.number] = lease
        return acquired

    def _acquire(self, sequence_id: str, now: float, active_since: float) -> tuple[Acquired, bool]:
        """Acquire a sequence; also return whether another process may still write to it."""
        settings, execute = self._settings, self._execute
        found = execute(
            "SELECT number, token, owner, lease_until, expires_at, incarnation, further_steps, closed, state"
            " FROM sequences WHERE model = ? AND id = ?",
            (settings.model, sequence_id),
        ).fetchone()
        until = now + settings.lease
        if found is None:
            number = execute(
                "INSERT INTO sequences"
                " (model, id, token, owner, lease_until, expires_at, incarnation, further_steps, closed)"
                " VALUES (?, ?, 1, ?, ?, ?, 1, 0, '')",
                (settings.model, sequence_id, settings.owner, until, now + settings.lifetime),
            ).lastrowid
            return Acquired(Lease(sequence_id, 1, settings.kept, number=number or 0), None), False
        number, token, owner, lease_until, expires_at, incarnation, steps, closed, state = found
        if not may_take(owner, lease_until, now, settings):
            return Acquired(None, None), False
        own = self._own.get(number)
        is_takeover = bool(lease_until) and (own is None or own.token != token)
        if not closed and expires_at <= active_since and (owner == settings.owner or not lease_until):
            closed, state = IDLE, None
            self._execute(
                "UPDATE sequences SET closed = ?, state = NULL, expires_at = ? WHERE number = ?",
                (IDLE, now + REMEMBERED_SECONDS, number),
            )
        execute(
            "UPDATE sequences SET token = ?, owner = ?, lease_until = ?, expires_at = iif(closed = '', ?, expires_at)"
            " WHERE number = ?",
            (token + 1, settings.owner, until, now + settings.lifetime, number),
        )
        answers = self._execute(self._select_answers, self._keys(number))
        kept_ids = {key // SLOT: request_id for key, of, request_id, _ in answers if of == incarnation}
        lease = Lease(sequence_id, token + 1, settings.kept, kept_ids, incarnation, steps, closed, number)
        return Acquired(lease, state), is_takeover

    def renew(self, leases: Sequence[Lease]) -> list[bool]:
        until = time.time() + self._settings.lease
        with self._transaction():
            return [
                self._execute(
                    "UPDATE sequences SET lease_until = ? WHERE number = ? AND token = ?",
                    (until, lease.number, lease.token),
                ).rowcount
                == 1
                for lease in leases
            ]

    def commit(self, commits: Sequence[Commit]) -> list[bool | None]:
        now, settings = time.time(), self._settings
        until, idle_at, forgotten_at = now + settings.lease, now + settings.lifetime, now + REMEMBERED_SECONDS
        rows = []
        answers = []
        marks = set()
        for lease, state, closed, kept in commits:
            times = (0.0, forgotten_at) if closed else (until, idle_at)
            rows.append((state, closed, lease.incarnation, lease.further_steps, *times, lease.number, lease.token))
            for slot, request_id, answer in kept:
                answers.append((slot * SLOT + lease.number, lease.incarnation, request_id, answer))
            marks.add(lease.mark)
        entry = self._pack((rows, answers))
        if len(marks) == 1 and len(entry) <= _JOURNALED_SIZE and self._file.write(_APPEND, (entry, *marks)):
            self._journaled += 1
            written: list[bool | None] = [True] * len(commits)
        else:
            written = self._commit_checked(commits, rows, answers)
        for commit in commits:
            if commit.closed:  # which gives the lease back
                commit.lease.mark = _CHECKED_EACH_TIME
        return written

    def _commit_checked(self, commits: Sequence[Commit], rows: list[Any], answers: list[Any]) -> list[bool | None]:
        """Write to the tables and check each lease, because some may have been taken over."""
        with self._transaction():
            valid: list[bool | None] = [self._execute(_UPDATE, row).rowcount == 1 for row in rows]
            refused = {commit.lease.number for commit, is_valid in zip(commits, valid, strict=True) if not is_valid}
            self._executemany(_KEEP, [answer for answer in answers if answer[0] % SLOT not in refused])
            count = self._takeovers()
        for commit in commits:
            if commit.lease.number not in refused:
                commit.lease.mark = count
        return valid

    def _takeovers(self) -> int:
        count: int = self._execute("SELECT count FROM takeovers").fetchone()[0]
        return count

    def settle(self, commits: Sequence[Commit]) -> list[bool | None]:
        # A write of this process that has failed cannot take effect later.
        if self._file.doubtful:
            raise StoreError("the disk did not confirm the last write, so it is unknown whether the disk has it")
        settled: list[bool | None] = []
        with self._file.reading():
            changed, journaled = self._journal()
            for commit in commits:
                number = commit.lease.number
                found = self._execute(
                    "SELECT token, incarnation FROM sequences WHERE number = ?", (number,)
                ).fetchone() or (None, None)
                token, incarnation = found[0], changed[number][_INCARNATION] if number in changed else found[1]
                slot, request_id, _ = commit.kept[0]
                entry = self._kept(number, journaled).get(slot * SLOT + number)
                if entry is not None and entry[1:3] == (commit.lease.incarnation, request_id):
                    settled.append(incarnation == commit.lease.incarnation or None)
                else:
                    settled.append(False if token == commit.lease.token else None)
        return settled

    def find(self, sequence_id: str, request_id: str, incarnation: int | None = None) -> bytes | None:
        with self._file.reading():
            found = self._execute(
                "SELECT number, incarnation FROM sequences WHERE model = ? AND id = ?",
                (self._settings.model, sequence_id),
            ).fetchone()
            if found is None:
                return None
            number, latest = found
            changed, journaled = self._journal()
            if number in changed:
                latest = changed[number][_INCARNATION]
            if incarnation not in {None, latest}:
                return None
            kept = self._kept(number, journaled).values()
        return next((answer for _, *of, answer in kept if of == [latest, request_id]), None)

    def _kept(self, number: int, journaled: Mapping[int, Any]) -> dict[int, tuple[Any, ...]]:
        """Return the kept answers of a sequence by key; the journal takes precedence over the table."""
        keys = self._keys(number)
        kept = {row[0]: row for row in self._execute(self._select_answers, keys)}
        return {**kept, **{key: tuple(journaled[key]) for key in keys if key in journaled}}

    def _keys(self, number: int) -> list[int]:
        return [slot * SLOT + number for slot in self._slots]

    def end(self, leases: Sequence[Lease]) -> None:
        forgotten_at = time.time() + REMEMBERED_SECONDS
        for lease in leases:
            lease.mark = _CHECKED_EACH_TIME
        with self._transaction():
            self._executemany(
                "UPDATE sequences SET state = NULL, closed = ?, lease_until = 0, expires_at = ?"
                " WHERE number = ? AND token = ?",
                [(ENDED, forgotten_at, lease.number, lease.token) for lease in leases],
            )

    def release(self, released: Sequence[tuple[Lease, float]]) -> None:
        for lease, _ in released:
            lease.mark = _CHECKED_EACH_TIME
        with self._transaction():
            monotonic_to_time = time.time() - time.monotonic()
            self._executemany(
                "UPDATE sequences SET lease_until = 0, expires_at = iif(closed = '', ?, expires_at)"
                " WHERE number = ? AND token = ?",
                [(idle_at + monotonic_to_time, lease.number, lease.token) for lease, idle_at in released],
            )

    def sweep(self) -> None:
        sweep(self._file, self._transaction)

    def tidy(self) -> None:
        if self._journaled >= _MOST_JOURNALED:
            with self._transaction():
                pass  # every transaction begins by applying the journal to the tables

    def close(self) -> None:
        self._file.close()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        """Begin a transaction on tables that are up to date with the journal; see `SqliteFile.transaction`."""
        with self._file.transaction():
            self._fold()
            yield

    def _fold(self) -> None:
        """Apply the journal to the tables, whichever process has written it."""
        self._journaled = 0
        changed, answers = self._journal()
        if not changed:
            return
        self._executemany(_UPDATE, changed.values())
        self._executemany(_KEEP, answers.values())
        self._execute("DELETE FROM journal")

    def _journal(self) -> tuple[dict[int, Any], dict[int, Any]]:
        """Return the changed sequences in the journal by number, and its answers by key."""
        rows: dict[int, Any] = {}
        answers: dict[int, Any] = {}
        # A takeover folds first, so all entries here were written by processes that may still write.
        for (entry,) in self._execute("SELECT entry FROM journal ORDER BY number"):
            changed, kept = msgpack.unpackb(entry)
            rows.update((row[_NUMBER], row) for row in changed)
            answers.update((answer[0], answer) for answer in kept)
        return rows, answers
