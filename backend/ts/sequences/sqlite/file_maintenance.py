"""What an operator does with the file store; see `Maintenance`."""

import os
import secrets
from collections.abc import Iterator, Sequence
from typing import Any, Final

from ts.protocol.boot_clock import boot_time
from ts.protocol.messages import ENDED
from ts.sequences.sqlite.file_examining import examine_all, examine_one
from ts.sequences.sqlite.file_journal import KEEP_ENTRY, fold
from ts.sequences.sqlite.file_moving import examine, put
from ts.sequences.sqlite.file_opening import all_of, open_file
from ts.sequences.sqlite.file_pieces import unpack_digests, unpack_kept
from ts.sequences.sqlite.file_rows import FileRow, checksum_of, name_of, text_of
from ts.sequences.sqlite.file_sweep import COUNT_TAKEOVER
from ts.sequences.sqlite.file_tables import SLOT, Tables, chunks_of
from ts.sequences.sqlite.file_watch import ask
from ts.sequences.sqlite.sqlite_file import SqliteFile
from ts.sequences.steps.record import Damaged, headless_record, pack_head
from ts.sequences.steps.sequence_limits import MOST_KEPT_ANSWERS
from ts.sequences.steps.server_identity import is_gone
from ts.sequences.steps.state_log import pack_entry
from ts.sequences.steps.stores.maintenance import Change, Examined, Maintenance, Repaired, StoredSequence

#: For how long (seconds) it is remembered that a sequence is over whose end a repair has made.
_REMEMBERED: Final = 86_400.0
#: For how long (seconds) a sequence may be idle whose idle time could not be read.
_LEFT: Final = 3_600.0


class FileMaintenance(Maintenance):
    """The store in a file. Raises StoreError: it cannot be used.

    Args:
        create: Whether to make the file if it does not exist.
    """

    def __init__(self, path: str, *, create: bool = False) -> None:
        self._file: SqliteFile = open_file(path, fsync=True, create=create)
        self._tables: Tables = all_of(self._file)

    def examine(self) -> Iterator[Examined]:
        return examine_all(self._tables)

    def examine_one(self, model: str, sequence_id: str) -> Examined | None:
        return examine_one(self._tables, model, sequence_id)

    def other_problems(self) -> Sequence[str]:
        with self._file.reading():
            found = self._file.execute("PRAGMA integrity_check(100)").fetchall()
            problems = [f"the file is damaged: {text_of(each)}" for (each,) in found if each != b"ok"]
            aside = self._file.execute("SELECT model, id, problem FROM damaged WHERE is_seen = 0").fetchall()
        for model, sequence_id, problem in aside:
            whose = "something" if sequence_id is None else f"something of {text_of(model)} {text_of(sequence_id)!r}"
            problems.append(f"{whose} was set aside: {text_of(problem)}")
        return problems

    def repair(self) -> Iterator[Repaired]:
        with self._file.reading():
            numbers = [number for (number,) in self._file.execute("SELECT number FROM sequences ORDER BY number")]
        for number in numbers:
            with self._file.transaction():
                fold(self._tables)
                repaired = self._repair(number)
            if repaired is not None:
                yield repaired
        with self._file.transaction():
            self._file.execute("UPDATE damaged SET is_seen = 1")

    def _repair(self, number: int) -> Repaired | None:
        """Set a sequence right; None if it is all right, or is none any more."""
        found = self._tables.find_number(number)
        examined = examine(self._tables, number)
        if found is None or examined is None or not examined.problems:
            return None
        done = _Repair(self._file, self._tables, found).run()
        self._file.execute(COUNT_TAKEOVER)  # its holder may still write to it
        return Repaired(examined.model, examined.sequence_id, f"{'; '.join(examined.problems)}: {done}")

    def write(self, sequence: StoredSequence, *, replace: bool) -> bool:
        with self._file.transaction():
            fold(self._tables)
            found = self._tables.find(name_of(sequence.model), name_of(sequence.sequence_id))
            if found is not None and not replace and examine(self._tables, found[0]) is not None:
                return False
            put(self._tables, sequence)
            self._file.execute(COUNT_TAKEOVER)
        return True

    def change(self, model: str, sequence_id: str, change: Change) -> None:
        with self._file.transaction():
            fold(self._tables)
            found = self._tables.find(name_of(model), name_of(sequence_id))
            sequence = change(None if found is None else examine(self._tables, found[0]))
            if sequence is not None:
                put(self._tables, sequence)
                self._file.execute(COUNT_TAKEOVER)

    def holder(self, model: str, sequence_id: str) -> str:
        with self._file.transaction():
            fold(self._tables)
            found = self._tables.find(name_of(model), name_of(sequence_id))
        try:
            row = None if found is None else FileRow.valid(found)
        except Damaged:
            return ""
        return "" if row is None or row.lease_until <= boot_time() or is_gone(row.owner) else row.owner

    def ask(self, model: str, sequence_id: str, holder: str) -> None:
        ask(os.path.realpath(self._file.path), holder, model, [sequence_id])

    def close(self) -> None:
        self._file.close()


class _Repair:
    """Sets one sequence right, in a transaction of the caller's.

    Args:
        found: Its row, whatever is in it.
    """

    def __init__(self, file: SqliteFile, tables: Tables, found: Sequence[Any]) -> None:
        self._file = file
        self._tables = tables
        self._number: int = found[0]
        self._found = found
        self._done: list[str] = []

    def run(self) -> str:
        """Repair; return what was done."""
        number, model, sequence_id, checksum, *_ = self._found
        is_named = type(model) is bytes and type(sequence_id) is bytes
        if not is_named or checksum != checksum_of(number, model, sequence_id):
            self._tables.keep_for_people(None, None, f"row {number} has a wrong name", repr(self._found[:3]).encode())
            self._tables.forget(number)
            return "it was dropped, since it is unknown whose it was"
        self._mend_row()
        self._mend_history()
        try:
            row = FileRow.valid(self._tables.find_number(number) or self._found)
        except Damaged as damage:  # which cannot be: all columns were set
            raise AssertionError(str(damage)) from damage
        self._mend_head(row)
        return "; ".join(self._done) or "what was lost is dropped, and it continues from what is there"

    def _mend_row(self) -> None:
        """Give each column a value that it can have, and the lease to nobody."""
        _, _, _, _, fence, _, _, expires_at, closed, _, head, state, _ = self._found
        is_fence = type(fence) is int and 0 < fence < 2**61
        moment = expires_at if type(expires_at) is float else boot_time() + _LEFT
        reason = closed.decode("utf-8", "replace") if type(closed) is bytes else "?"
        try:
            FileRow.valid((*self._found[:4], 1, b"", 0.0, 0.0, closed, b"", None, None, None))
        except Damaged:
            reason = ENDED if state is None else ""
            self._done.append("why it was over was unreadable" if reason else "it counts as open")
        self._file.execute(
            "UPDATE sequences SET fence = ?, owner = '', lease_until = 0, expires_at = ?, closed = ?, damage = '',"
            " head = ? WHERE number = ?",
            (
                *(fence + 1 if is_fence else 2**60 + secrets.randbits(32), moment, reason),
                *(head if type(head) is bytes else None, self._number),
            ),
        )

    def _mend_history(self) -> None:
        """Drop unreadable answers, ids and tokens."""
        number, execute = self._number, self._file.execute
        for slot in range(MOST_KEPT_ANSWERS + 1):
            key = slot * SLOT + number
            for step, answer in execute("SELECT step, answer FROM answers WHERE key = ?", (key,)).fetchall():
                try:
                    unpack_kept(step, number).check(answer if type(answer) is bytes else b"")
                except Damaged:
                    execute("DELETE FROM answers WHERE key = ?", (key,))
                    self._done.append("a kept answer was dropped")
        chunks = "SELECT key, digests FROM ids WHERE key BETWEEN ? AND ?"
        for key, digests in execute(chunks, chunks_of(number)).fetchall():
            if not _is_readable(digests, number):
                execute("DELETE FROM ids WHERE key = ?", (key,))
                self._done.append("request ids were forgotten")
        for (tokens,) in execute("SELECT tokens FROM earlier WHERE sequence = ?", (number,)).fetchall():
            if not _is_readable(tokens, number):
                execute("DELETE FROM earlier WHERE sequence = ?", (number,))
                self._done.append("the tokens of the sequences with its id were forgotten")

    def _mend_head(self, row: FileRow) -> None:
        """End the sequence if its head or its state cannot be read."""
        number, tables = self._number, self._tables
        try:
            head = tables.head(row)
        except Damaged:
            head = None
        if head is None:
            incarnation, last = self._latest_kept()
            record = headless_record(incarnation, last)
            self._file.execute("UPDATE sequences SET head = ? WHERE number = ?", (pack_head(record, None), number))
            tables.close(number, ENDED, boot_time() + _REMEMBERED)
            self._done.append("it is over, since its head was unreadable")
            return
        try:
            problems: list[str] = []
            tables.state(row, head)
            log = tables.log(row, head, problems)
        except Damaged:
            tables.close(number, ENDED, boot_time() + _REMEMBERED)
            self._done.append("it is over, since its state was unreadable")
            return
        if tables.ends_workers(number, head):
            tables.end_reading(number)
            self._done.append("its state is tried again")
        if problems:
            gaps = [each for each in log if each.is_gap]
            rows = [(number, each.number, pack_entry(head.incarnation, *each, owner=number)) for each in gaps]
            self._file.executemany(KEEP_ENTRY, rows)
            self._done.append("earlier states of it were dropped")

    def _latest_kept(self) -> tuple[int, int]:
        """Return the latest incarnation and its latest step of which an answer is kept."""
        found = [(1, 1)]
        for slot in range(MOST_KEPT_ANSWERS + 1):
            key = slot * SLOT + self._number
            for (step,) in self._file.execute("SELECT step FROM answers WHERE key = ?", (key,)):
                piece = unpack_kept(step, self._number)
                found.append((piece.incarnation, piece.step.number))
        return max(found)


def _is_readable(digests: Any, number: int) -> bool:
    try:
        unpack_digests(digests, number)
    except Damaged:
        return False
    return True
