"""Sequences in one file: an SQLite database in write-ahead mode, shared by the workers (and servers) of one machine.

Committed data survives the death of any process; with ``fsync`` also a crash of the machine. The store uses SQLite
because it comes with Python, so that a model's own environment needs no further package, and because it is the best
tested embedded database.

Answers wait for a commit, so a commit is kept short: one statement appends its changes, one row for each sequence, to a
**journal**. Later, after the answers have left, many journal rows are applied to the tables at once
(`file_journal.fold`). Readers see no difference: every transaction except that statement begins with it.

The same statement checks that no lease was taken over. Checking each lease would cost as much as the write, so the file
counts takeovers, which are rare, and a lease remembers the count at which it was found valid. A lease that its holder
releases, or takes again itself, need not be counted: the holder marks the old lease to be checked at each commit.

Look-ups write nothing, so that they work on a full disk: they read both the tables and the journal.
"""

import contextlib
import functools
import itertools
import os
import sqlite3
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from weakref import WeakValueDictionary

from ts.jobs.sequence_steps import StoreReports
from ts.protocol.boot_clock import boot_time
from ts.protocol.messages import ENDED
from ts.sequences.sqlite.file_acquisition import Acquisition
from ts.sequences.sqlite.file_journal import apply, fold, journal_of
from ts.sequences.sqlite.file_opening import open_file
from ts.sequences.sqlite.file_pieces import Latest, PieceChange, sealed_changes
from ts.sequences.sqlite.file_rows import FileRow, name_of
from ts.sequences.sqlite.file_sweep import COUNT_TAKEOVER, sweep
from ts.sequences.sqlite.file_tables import Tables
from ts.sequences.sqlite.file_watch import FileWatch, ask
from ts.sequences.sqlite.sqlite_file import is_damage
from ts.sequences.steps.record import Damaged, SequenceRecord
from ts.sequences.steps.stores.store import (
    JUST_NOW,
    NO_REPORTS,
    Acquired,
    Commit,
    Lease,
    Store,
    StoreError,
    StoreSettings,
    Watch,
)

#: The mark of a lease that every commit has to check.
_CHECKED_EACH_TIME: Final = -1
#: The number of journal rows after which they are applied to the tables, and of commits.
_MOST_JOURNALED = 64
#: Larger commits (bytes) bypass the journal: writing them twice would cost more than the journal saves.
_JOURNALED_SIZE: Final = 2**15
#: Commits of more sequences bypass it as well: a statement has room for a limited number of values.
_JOURNALED_ROWS: Final = 256


class FileStore(Store):
    """Sequences in the file ``path``, which is created if it does not exist.

    Raises StoreError: the file cannot be used.

    Args:
        path: The file; SQLite keeps two more files next to it, ``-wal`` and ``-shm``.
        fsync: Whether a commit waits until the data is on the disk.
    """

    def __init__(self, settings: StoreSettings, path: str, *, fsync: bool) -> None:
        self._settings = settings
        self._model = name_of(settings.model)
        self._file = open_file(path, fsync=fsync)
        self._path, self._fsync = os.path.realpath(path), fsync
        self._execute = self._file.execute
        self._tables = Tables(self._file, settings.kept, settings.most_ids)
        #: The latest lease of each sequence that this process has had, by the sequence's number, while it is
        #: referenced.
        self._own: WeakValueDictionary[int, Lease] = WeakValueDictionary()
        self._journaled = 0

    # Leases

    def acquire(self, sequence_ids: Sequence[str], active_since: Mapping[str, float] = JUST_NOW) -> list[Acquired]:
        with self._transaction():
            acquisition = Acquisition(self._tables, self._settings, self._own)
            now = acquisition.now
            acquired = [acquisition.acquire(each, min(now, active_since.get(each, now))) for each in sequence_ids]
            if acquisition.is_takeover:
                self._execute(COUNT_TAKEOVER)
            count = self._takeovers()
        for lease in [each.lease for each in acquired if each.lease is not None]:
            lease.mark = count
            if lease.number in self._own:
                self._own[lease.number].mark = _CHECKED_EACH_TIME
            self._own[lease.number] = lease
        for owner, wanted in acquisition.holders.items():
            ask(self._path, owner, self._settings.model, wanted)
        return acquired

    def begin_reading(self, leases: Sequence[Lease]) -> None:
        with self._transaction():
            self._file.executemany(
                "INSERT OR REPLACE INTO readings (sequence, incarnation, last)"
                " SELECT number, ?, ? FROM sequences WHERE number = ? AND fence = ?",
                [(each.record.incarnation, each.record.last, each.number, each.fence) for each in leases],
            )

    def end_reading(self, leases: Sequence[Lease]) -> None:
        with self._transaction():
            for lease in leases:
                self._tables.end_reading(lease.number)

    def renew(self, leases: Sequence[Lease]) -> list[bool]:
        until = boot_time() + self._settings.lease
        with self._transaction():
            return [
                self._execute(
                    "UPDATE sequences SET lease_until = ? WHERE number = ? AND fence = ?",
                    (until, lease.number, lease.fence),
                ).rowcount
                == 1
                for lease in leases
            ]

    def release(self, released: Sequence[tuple[Lease, float]]) -> None:
        for lease, _ in released:
            lease.mark = _CHECKED_EACH_TIME
        with self._transaction():
            self._file.executemany(
                "UPDATE sequences SET lease_until = 0, expires_at = iif(closed = '', ?, expires_at)"
                " WHERE number = ? AND fence = ?",
                [(idle_at, lease.number, lease.fence) for lease, idle_at in released],
            )

    def end(self, leases: Sequence[Lease]) -> None:
        forgotten_at = boot_time() + self._settings.remembered
        for lease in leases:
            lease.mark = _CHECKED_EACH_TIME
        with self._transaction():
            for lease in leases:
                ended = self._execute(
                    "UPDATE sequences SET lease_until = 0 WHERE number = ? AND fence = ?", (lease.number, lease.fence)
                )
                if ended.rowcount:
                    self._tables.close(lease.number, ENDED, forgotten_at)

    # Commits

    def commit(self, commits: Sequence[Commit]) -> list[bool | None]:
        now, settings = boot_time(), self._settings
        while_open = now + settings.lease, now + settings.lifetime
        when_closed = 0.0, now + settings.remembered
        changes = []
        size = 0
        marks = set()
        lasts = False
        for lease, state, closed, kept, new_ids, begins, log, *_ in commits:
            record = lease.record
            until, expires_at = when_closed if closed else while_open
            if state is not None:
                size += len(state)
            first = kept[0].step.number if kept else 1
            if begins or new_ids or first + len(kept) - 1 != record.last:
                lasts = True
            # The fields of a `PieceChange`, and in it of a `Latest`: tuples, since this is the hot path.
            incarnation = record.incarnation
            latest: tuple[Any, ...] = (
                lease.fence,
                until,
                expires_at,
                closed,
                incarnation,
                record.token,
                record.version,
                record.state_version,
                record.last,
                record.forgotten_ids,
                None if closed else state,
            )
            change: tuple[Any, ...] = (lease.number, incarnation, latest, None, new_ids, kept)
            if first == 1:
                change = (*change[:3], record.tokens, new_ids, kept)
            if log is not None:
                lasts = True
                size += sum(len(each.entries) for each in log)
                change = (*change[:2], (*latest, record.checkpoint), *change[3:], log)
            changes.append(change)
            marks.add(lease.mark)
        is_small = len(marks) == 1 and size <= _JOURNALED_SIZE and len(changes) <= _JOURNALED_ROWS
        if is_small and self._append(changes, lasts, *marks):
            self._journaled += 1
            written: list[bool | None] = [True] * len(commits)
        else:
            written = self._commit_checked(commits, [_change_of(change) for change in changes])
        for commit in commits:
            if commit.closed:  # which gives the lease back
                commit.lease.mark = _CHECKED_EACH_TIME
        return written

    def _append(self, changes: Sequence[tuple[Any, ...]], lasts: bool, mark: int) -> bool:
        """Append changes to the journal; return False, having written nothing, if they are large or not certain.

        Args:
            lasts: Whether the changes have more than later changes of the same sequences replace.
        """
        entries = sealed_changes(changes)
        if sum(map(len, entries)) > _JOURNALED_SIZE:
            return False
        values = itertools.chain.from_iterable(zip([change[0] for change in changes], entries, strict=True))
        return self._file.write(_append_rows(len(changes)), (lasts, *values, mark)) > 0

    def _commit_checked(self, commits: Sequence[Commit], changes: list[PieceChange]) -> list[bool | None]:
        """Write to the tables and check each lease, because some may have been taken over."""
        with self._transaction():
            valid: list[bool | None] = [self._is_valid(commit.lease) for commit in commits]
            apply(
                self._tables,
                {change.sequence: [change] for change, is_valid in zip(changes, valid, strict=True) if is_valid},
            )
            count = self._takeovers()
        for commit, is_valid in zip(commits, valid, strict=True):
            if is_valid:
                commit.lease.mark = count
        return valid

    def _is_valid(self, lease: Lease) -> bool:
        found = self._execute("SELECT fence FROM sequences WHERE number = ?", (lease.number,)).fetchone()
        return found is not None and found[0] == lease.fence

    def _takeovers(self) -> int:
        found = self._execute("SELECT count FROM takeovers").fetchone()
        return found[0] if found and type(found[0]) is int else _CHECKED_EACH_TIME

    def settle(self, commits: Sequence[Commit]) -> list[bool | None]:
        # A write of this process that has failed cannot take effect later.
        if self._file.doubtful:
            raise StoreError("the disk did not confirm the last write, so it is unknown whether the disk has it")
        with self._file.reading():
            return [self._settled(commit) for commit in commits]

    def _settled(self, commit: Commit) -> bool | None:
        lease, tables = commit.lease, self._tables
        try:
            found = tables.find_number(lease.number)
            if found is None:
                return None
            row = FileRow.valid(found)
            journal = journal_of(tables, lease.number)
            record = tables.record(row, tables.head(row, journal), journal)
        except Damaged:
            return None
        if self._is_written(commit, journal):
            return record.incarnation == lease.record.incarnation or None
        return False if row.fence == lease.fence else None

    def _is_written(self, commit: Commit, journal: Sequence[PieceChange]) -> bool:
        """Whether the store has an answer of a commit, and that lease has written it."""
        lease, (step, answer) = commit.lease, commit.kept[0]
        incarnation = lease.record.incarnation
        for change in journal:
            own = change.incarnation == incarnation and change.latest.fence == lease.fence
            if own and any(number == step.number and kept == answer for (number, _, _), kept in change.kept):
                return True
        piece = self._tables.piece(lease.number, incarnation, step.number)
        return piece is not None and piece.fence == lease.fence and piece.checksum == zlib.crc32(answer)

    # Look-ups

    def peek(self, sequence_id: str) -> SequenceRecord | None:
        with self._file.reading(), self._damage():
            found = self._tables.find(self._model, name_of(sequence_id))
            if found is None:
                return None
            row = FileRow.valid(found)
            journal = journal_of(self._tables, row.number)
            record = self._tables.record(row, self._tables.head(row, journal), journal)
        return record if record.has_begun else None

    def find(self, sequence_id: str, incarnation: int, number: int) -> bytes | None:
        with self._file.reading(), self._damage():
            found = self._execute(
                "SELECT number FROM sequences WHERE model = ? AND id = ?", (self._model, name_of(sequence_id))
            ).fetchone()
            if found is None:
                return None
            damage: Damaged | None = None
            try:
                for change in reversed(journal_of(self._tables, found[0])):
                    if change.incarnation == incarnation:
                        for step, answer in change.kept:
                            if step[0] == number:
                                return bytes(answer)
            except Damaged as error:
                damage = error
            answer = self._tables.answer(found[0], incarnation, number)
            if answer is None and damage is not None:
                raise damage
            return answer

    @contextlib.contextmanager
    def _damage(self) -> Iterator[None]:
        """Turn SQLite's error about a place of the file into `Damaged`."""
        try:
            yield
        except sqlite3.DatabaseError as error:
            if is_damage(error):
                raise Damaged(f"its place in the file is damaged: {error}") from error
            raise

    # Chores

    def tidy(self) -> None:
        if self._journaled >= _MOST_JOURNALED:
            with self._transaction():
                pass  # every transaction begins by applying the journal to the tables

    def sweep(self) -> None:
        sweep(self._tables, self._transaction, self._settings.remembered)

    def watch(self, reports: StoreReports = NO_REPORTS) -> Watch:
        return FileWatch(self._settings, self._path, open_file(self._path, fsync=self._fsync), reports)

    def close(self) -> None:
        self._file.close()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        """Begin a transaction on tables that are up to date with the journal; see `SqliteFile.transaction`."""
        with self._file.transaction():
            self._journaled = 0
            fold(self._tables)
            yield


def _change_of(fields: tuple[Any, ...]) -> PieceChange:
    change = PieceChange(*fields)
    return change._replace(latest=Latest(*change.latest))


@functools.lru_cache(_JOURNALED_ROWS)
def _append_rows(count: int) -> str:
    """Return the statement that appends rows to the journal if no lease was taken over."""
    values = ",".join(["(?, ?)"] * count)
    rows = "SELECT ?, ?, ?" if count == 1 else f"SELECT ?, * FROM (VALUES {values})"  # noqa: S608
    return f"INSERT INTO changes (lasts, sequence, entry) {rows} WHERE (SELECT count FROM takeovers) = ?"  # noqa: S608
