"""Takes the leases of sequences in the file store, within one transaction."""

import contextlib
import sqlite3
from collections.abc import Mapping
from typing import Any

from ts.protocol.boot_clock import boot_time
from ts.sequences.sqlite.file_rows import FileRow, name_of
from ts.sequences.sqlite.file_tables import Tables
from ts.sequences.sqlite.sqlite_file import is_damage
from ts.sequences.steps.record import Damaged, SequenceRecord
from ts.sequences.steps.server_identity import is_gone
from ts.sequences.steps.state_log import LogEntry
from ts.sequences.steps.stores.store import (
    ENDS_WORKERS,
    IDLE,
    SERVED_SECONDS,
    Acquired,
    HeldElsewhere,
    Lease,
    OtherVersion,
    StoreSettings,
    Unreadable,
    may_run,
    may_take,
)


class Acquisition:
    """What a process acquires in one transaction, on tables that are up to date with the journal.

    Args:
        own: The latest lease of each sequence that this process has had, by the sequence's number.

    Attributes:
        now: The moment of the transaction.
        holders: The servers that hold sequences which were asked for, and the ids of these.
        is_takeover: Whether another process may still write to a sequence that was acquired.
    """

    def __init__(self, tables: Tables, settings: StoreSettings, own: Mapping[int, Lease]) -> None:
        self.now = boot_time()
        self.holders: dict[str, list[str]] = {}
        self.is_takeover = False
        self._tables = tables
        self._execute = tables.file.execute
        self._settings = settings
        self._model = name_of(settings.model)
        self._own = own

    def acquire(self, sequence_id: str, active_since: float) -> Acquired:
        """Acquire a sequence, which has not been idle for too long if it had not at the moment ``active_since``."""
        name = name_of(sequence_id)
        found: tuple[Any, ...] | None = None
        try:
            found = self._tables.find(self._model, name)
            if found is None:
                return Acquired(self._begin(sequence_id, name))
            return self._take(FileRow.valid(found), sequence_id, active_since)
        except Damaged as damage:
            problem = str(damage)
            with contextlib.suppress(sqlite3.DatabaseError):
                self._tables.mark(found[0] if found else 0, problem)  # so that no sweep forgets it
        except sqlite3.DatabaseError as error:
            if not is_damage(error):
                raise
            problem = f"its place in the file is damaged: {error}"
        return Acquired(None, None, Unreadable(problem))

    def _begin(self, sequence_id: str, name: bytes) -> Lease:
        settings, now = self._settings, self.now
        times = now + settings.lease, now + settings.lifetime
        number = self._tables.add(self._model, name, 1, settings.owner, *times)
        return Lease(sequence_id, 1, SequenceRecord(), number=number)

    def _take(self, row: FileRow, sequence_id: str, active_since: float) -> Acquired:
        settings, tables, now = self._settings, self._tables, self.now
        is_free = may_take(row.owner, row.lease_until, now, settings)
        try:
            head = tables.head(row)
            record = tables.record(row, head)
        except Damaged:
            if is_free:
                raise
            head, record = None, SequenceRecord()  # its holder has it in memory, and will write it again
        is_open = record.has_begun and not record.closed
        # What another server held until it died does not count as idle: nobody knows what that had queued.
        is_known = row.owner == settings.owner or not row.lease_until
        if is_open and is_free and is_known and row.expires_at <= active_since:
            tables.close(row.number, IDLE, now + settings.remembered)
            record.closed = IDLE
        is_ours = record.closed or not is_open or may_run(record.version, record.state_version, settings)
        other = None if is_ours else OtherVersion(record.version, self._is_served(row, record))
        if other is not None and other.is_served and not settings.migrates:
            return Acquired(None, None, other)
        if not is_free:
            self.holders.setdefault(row.owner, []).append(sequence_id)
            return Acquired(None, None, HeldElsewhere())
        if other is not None and not settings.migrates:
            return Acquired(self._lease(row, sequence_id, record), None, other)
        state: bytes | None = None
        problem: OtherVersion | Unreadable | None = other
        log: list[LogEntry] = []
        if not record.closed:
            try:
                state, log = tables.state(row, head), tables.latest(row, head)
                if tables.ends_workers(row.number, head):
                    raise Damaged(ENDS_WORKERS)
            except Damaged as damage:
                state, log, problem = None, [], Unreadable(str(damage))
        return Acquired(self._lease(row, sequence_id, record), state, problem, log)

    def _lease(self, row: FileRow, sequence_id: str, record: SequenceRecord) -> Lease:
        settings, now, own = self._settings, self.now, self._own.get(row.number)
        if row.lease_until and (own is None or own.fence != row.fence):
            self.is_takeover = True
        self._execute(
            "UPDATE sequences SET fence = ?, owner = ?, lease_until = ?, expires_at = iif(closed = '', ?, expires_at)"
            " WHERE number = ?",
            (row.fence + 1, settings.owner, now + settings.lease, now + settings.lifetime, row.number),
        )
        return Lease(sequence_id, row.fence + 1, record, number=row.number)

    def _is_served(self, row: FileRow, record: SequenceRecord) -> bool:
        """Whether a server has a version that may run the sequence, or had it a moment ago."""
        if row.lease_until > self.now and row.owner != self._settings.owner and not is_gone(row.owner):
            return True
        found = self._execute(
            "SELECT 1 FROM servers WHERE model = ?1 AND alive_until > ?2"
            " AND (version = ?3 OR (?4 <> '' AND state_version = ?4))",
            (self._model, self.now - SERVED_SECONDS, record.version, record.state_version),
        )
        return found.fetchone() is not None
