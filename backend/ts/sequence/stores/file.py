"""Sequences in one file: an SQLite database in write-ahead mode, shared by the workers (and servers) of one machine.

What was committed survives the death of any process; with ``fsync`` also that of the machine. SQLite because it comes
with Python, so that a model's own environment needs nothing installed, and is the best tested of embedded databases.

Answers wait for a commit, so a commit does little: it appends one row, all that the batch has changed, to a
**journal**, in one statement. What the journal says goes into the tables later, many commits at once, when the answers
have left. To whoever reads it makes no difference: every transaction but that statement begins with it (`_fold`).

The same statement checks that nobody has taken over a lease. To look at each of them would cost as much as to write, so
the file counts takeovers, which are rare, and a lease remembers at which count it was found to be the latest.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgpack

from ts.sequence.stores.sqlite_file import SqliteFile
from ts.sequence.stores.store import (
    IDLE,
    MOST_KEPT,
    REMEMBERED_SECONDS,
    Acquired,
    Commit,
    Lease,
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
CREATE TABLE IF NOT EXISTS journal (
    number INTEGER PRIMARY KEY,     -- later commits have higher ones
    entry BLOB NOT NULL             -- in msgpack: rows for _UPDATE, rows for _KEEP
);
CREATE TABLE IF NOT EXISTS takeovers (count INTEGER NOT NULL);
INSERT INTO takeovers SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM takeovers);
"""
_VERSION = 2
_SLOT = 2**40

_UPDATE = (
    "UPDATE sequences SET state = ?, closed = ?, steps = ?, lease_until = ?, expires_at = ?"
    " WHERE number = ? AND token = ?"
)
_KEEP = "INSERT OR REPLACE INTO answers (key, request_id, answer) VALUES (?, ?, ?)"
_APPEND = "INSERT INTO journal (entry) SELECT ?1 WHERE (SELECT count FROM takeovers) = ?2"
_COUNT_TAKEOVER = "UPDATE takeovers SET count = count + 1"

#: Where a row for _UPDATE has the sequence's number.
_NUMBER = 5
#: How much is swept with the lock in hand.
_SWEEP_AT_ONCE = 500
#: After so many commits what they say goes from the journal into the tables.
_MOST_JOURNALED = 64
#: Commits of more bytes do not go through the journal: to write them twice would cost more than it spares.
_JOURNALED_SIZE = 2**15


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
        self._marks = ",".join("?" * settings.kept)
        self._select_answers = f"SELECT key, request_id FROM answers WHERE key IN ({self._marks})"  # noqa: S608
        self._file = SqliteFile(path, _SCHEMA, _VERSION, fsync=fsync)
        self._execute, self._executemany = self._file.execute, self._file.executemany
        self._journaled = 0
        self._pack = msgpack.Packer().pack

    def acquire(self, sequence_ids: Sequence[str]) -> list[Acquired]:
        """Take leases and read; see `Store`."""
        with self._transaction():
            acquired = [self._acquire(sequence_id, time.time()) for sequence_id in sequence_ids]
            leases = [each.lease for each in acquired if each.lease is not None]
            if any(lease.token > 1 for lease in leases):
                self._execute(_COUNT_TAKEOVER)
            count = self._takeovers()
        for lease in leases:
            lease.mark = count
        return acquired

    def _acquire(self, sequence_id: str, now: float) -> Acquired:
        settings, execute = self._settings, self._execute
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
                self._execute(
                    "UPDATE sequences SET lease_until = ? WHERE number = ? AND token = ?",
                    (until, lease.key, lease.token),
                ).rowcount
                == 1
                for lease in leases
            ]

    def commit(self, commits: Sequence[Commit]) -> list[bool]:
        """Write what sequences have become; see `Store`."""
        now, settings = time.time(), self._settings
        until, abandoned_at, forgotten_at = now + settings.lease, now + settings.lifetime, now + REMEMBERED_SECONDS
        rows = []
        answers = []
        marks = set()
        for lease, state, closed, kept in commits:
            number: Any = lease.key
            expires_at = forgotten_at if closed else abandoned_at
            rows.append((state, closed, lease.steps, until, expires_at, number, lease.token))
            for slot, request_id, answer in kept:
                answers.append((slot * _SLOT + number, request_id, answer))
            marks.add(lease.mark)
        entry = self._pack((rows, answers))
        if len(marks) == 1 and len(entry) <= _JOURNALED_SIZE and self._file.write(_APPEND, (entry, *marks)):
            self._journaled += 1
            return [True] * len(commits)
        return self._commit_checked(commits, rows, answers)

    def _commit_checked(self, commits: Sequence[Commit], rows: list[Any], answers: list[Any]) -> list[bool]:
        """Write to the tables, and look at each lease: some may have been taken over."""
        with self._transaction():
            valid = [self._execute(_UPDATE, row).rowcount == 1 for row in rows]
            refused = {commit.lease.key for commit, is_valid in zip(commits, valid, strict=True) if not is_valid}
            self._executemany(_KEEP, [answer for answer in answers if answer[0] % _SLOT not in refused])
            count = self._takeovers()
        for commit in commits:
            if commit.lease.key not in refused:
                commit.lease.mark = count
        return valid

    def _takeovers(self) -> int:
        count: int = self._execute("SELECT count FROM takeovers").fetchone()[0]
        return count

    def answer(self, lease: Lease, request_id: str) -> bytes | None:
        """Return a kept answer; see `Store`."""
        query = f"SELECT answer FROM answers WHERE key IN ({self._marks}) AND request_id = ?"  # noqa: S608
        with self._transaction():
            found = self._execute(query, (*self._keys(lease.key), request_id)).fetchone()
        return None if found is None else found[0]

    def _keys(self, number: Any) -> list[int]:
        """The keys that the answers of a sequence have."""
        return [slot * _SLOT + number for slot in range(self._settings.kept)]

    def end(self, ended: Sequence[tuple[Lease, str]]) -> None:
        """Drop states; see `Store`."""
        forgotten_at = time.time() + REMEMBERED_SECONDS
        with self._transaction():
            self._executemany(
                "UPDATE sequences SET state = NULL, closed = ?, lease_until = 0, expires_at = ?"
                " WHERE number = ? AND token = ?",
                [(reason, forgotten_at, lease.key, lease.token) for lease, reason in ended],
            )

    def release(self, leases: Sequence[Lease]) -> None:
        """Let leases go; see `Store`."""
        with self._transaction():
            self._executemany(
                "UPDATE sequences SET lease_until = 0 WHERE number = ? AND token = ?",
                [(lease.key, lease.token) for lease in leases],
            )

    def sweep(self) -> None:
        """Drop what nobody will ask for, of every model in the file; see `Store`."""
        now = time.time()
        with self._transaction():
            abandoned = self._overdue("closed = '' AND lease_until < ?2", now)
            forgotten = self._overdue("closed <> ''", now)
        for numbers in _portions(abandoned):
            with self._transaction():
                self._executemany(
                    "UPDATE sequences SET state = NULL, closed = ?1, expires_at = ?2"
                    " WHERE number = ?3 AND closed = '' AND expires_at < ?4 AND lease_until < ?4",
                    [(IDLE, now + REMEMBERED_SECONDS, number, now) for number in numbers],
                )
        for numbers in _portions(forgotten):
            with self._transaction():
                for number in numbers:
                    gone = "DELETE FROM sequences WHERE number = ? AND closed <> '' AND expires_at < ?"
                    if self._execute(gone, (number, now)).rowcount:
                        every_slot = [(slot * _SLOT + number,) for slot in range(MOST_KEPT)]
                        self._executemany("DELETE FROM answers WHERE key = ?", every_slot)
                self._execute(_COUNT_TAKEOVER)  # who still holds one of them cannot write to it any more

    def _overdue(self, condition: str, now: float) -> list[int]:
        query = f"SELECT number FROM sequences WHERE expires_at < ?1 AND {condition}"  # noqa: S608 - one of two constants
        arguments = (now, now) if "?2" in condition else (now,)
        return [number for (number,) in self._execute(query, arguments)]

    def tidy(self) -> None:
        """Bring the tables up to date, if there is enough to do; see `Store`."""
        if self._journaled >= _MOST_JOURNALED:
            with self._transaction():
                pass  # every transaction begins with that

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        """All or nothing of what is done inside, on tables that are up to date; see `SqliteFile.transaction`."""
        with self._file.transaction():
            self._fold()
            yield

    def _fold(self) -> None:
        """Bring the tables up to date with the journal, whoever has written it."""
        self._journaled = 0
        entries = self._execute("SELECT entry FROM journal ORDER BY number").fetchall()
        if not entries:
            return
        rows: dict[int, Any] = {}
        answers: dict[int, Any] = {}
        for (entry,) in entries:  # a takeover folds first: what is here was written by those who may still write
            changed, kept = msgpack.unpackb(entry)
            rows.update((row[_NUMBER], row) for row in changed)
            answers.update((answer[0], answer) for answer in kept)
        self._executemany(_UPDATE, rows.values())
        self._executemany(_KEEP, answers.values())
        self._execute("DELETE FROM journal")


def _portions(numbers: list[int]) -> Iterator[list[int]]:
    for first in range(0, len(numbers), _SWEEP_AT_ONCE):
        yield numbers[first : first + _SWEEP_AT_ONCE]
