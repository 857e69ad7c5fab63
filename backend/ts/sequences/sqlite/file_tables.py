"""Reads and writes the records of sequences in the tables of the file store.

Everything here runs within a transaction of the caller's.
"""

import time
from collections.abc import Generator, Iterable, Sequence
from typing import Any, Final

from ts.sequences.sqlite.file_pieces import (
    CHUNK,
    KeptPiece,
    PieceChange,
    checked_bytes,
    pack_digests,
    unpack_digests,
    unpack_kept,
)
from ts.sequences.sqlite.file_rows import FileRow, checksum_of
from ts.sequences.sqlite.sqlite_file import SqliteFile
from ts.sequences.steps.record import (
    DIGEST_SIZE,
    Damaged,
    KeptStep,
    RecordHead,
    SequenceRecord,
    check_state,
    record_of,
    slot_of,
    unpack_head,
)
from ts.sequences.steps.sequence_limits import MOST_KEPT_ANSWERS
from ts.sequences.steps.state_log import LogEntry, read_latest, read_log

#: An answer's key is its slot times this, and the sequence's number.
SLOT: Final = 2**40
#: The key of a chunk of ids is the sequence's number times this, and the chunk's number.
CHUNKS: Final = 2**20

#: The fields of a `FileRow`.
_COLUMNS: Final = (
    "number, model, id, name_checksum, fence, owner, lease_until, expires_at, closed, damage, head, state,"
    " (SELECT tokens FROM earlier WHERE sequence = number)"
)
_BY_NAME: Final = f"SELECT {_COLUMNS} FROM sequences WHERE model = ? AND id = ?"  # noqa: S608
_BY_NUMBER: Final = f"SELECT {_COLUMNS} FROM sequences WHERE number = ?"  # noqa: S608


class Tables:
    """The tables of a file.

    Args:
        kept: The number of a sequence's latest steps whose answers are kept, besides the first.
        most_ids: How many request ids of a sequence are kept.

    Attributes:
        file, kept: As they were given.
    """

    def __init__(self, file: SqliteFile, kept: int, most_ids: int) -> None:
        self.file = file
        self.kept = kept
        self._most_chunks = most_ids // CHUNK + 2
        self._most_ids = most_ids
        slots = ",".join("?" * (kept + 1))
        self._select_steps = f"SELECT key, step FROM answers WHERE key IN ({slots})"  # noqa: S608

    # Reading

    def find(self, model: bytes, sequence_id: bytes) -> tuple[Any, ...] | None:
        """Return the row of a sequence as it is found, for `FileRow.valid`."""
        found: tuple[Any, ...] | None = self.file.execute(_BY_NAME, (model, sequence_id)).fetchone()
        return found

    def find_number(self, number: int) -> tuple[Any, ...] | None:
        found: tuple[Any, ...] | None = self.file.execute(_BY_NUMBER, (number,)).fetchone()
        return found

    def head(self, row: FileRow, journal: Sequence[PieceChange] = ()) -> RecordHead | None:
        """Return the head of a sequence, None if it has not begun. Raises Damaged.

        Args:
            journal: The changes of the sequence that are not in the tables yet.
        """
        if journal:
            return unpack_head(journal[-1].latest.head())
        return None if row.head is None else unpack_head(row.head)

    def record(self, row: FileRow, head: RecordHead | None, journal: Sequence[PieceChange] = ()) -> SequenceRecord:
        """Return the record of a sequence with this head. Raises Damaged: what recognizes its steps cannot be read."""
        if head is None:
            return SequenceRecord()
        closed = journal[-1].latest.closed if journal else row.closed
        own = [change for change in journal if change.incarnation == head.incarnation]
        changed = [change.tokens for change in journal if change.tokens is not None]
        ids = self._ids(row.number, head.incarnation) + b"".join(change.new_ids for change in own)
        steps = self._steps(row.number, head, [step for change in own for step, _ in change.kept])
        record = record_of(head, closed, changed[-1] if changed else _tokens(row), ids, steps)
        record.forget_ids_beyond(self._most_ids)
        return record

    def _ids(self, number: int, incarnation: int) -> bytes:
        found = self.file.execute(
            "SELECT digests FROM ids WHERE key BETWEEN ? AND ? ORDER BY key", chunks_of(number)
        ).fetchall()
        try:
            chunks = [unpack_digests(digests, number) for (digests,) in found]
        except Damaged as damage:
            raise Damaged(f"its request ids cannot be read: {damage}") from damage
        return b"".join(digests for of, digests in chunks if of == incarnation)

    def _steps(self, number: int, head: RecordHead, journaled: Iterable[Any]) -> dict[int, KeptStep]:
        """Return the steps of the latest incarnation whose answers are kept, by number.

        Of a step that cannot be read the number is known: by its slot.
        """
        steps: dict[int, KeptStep] = {}
        for key, sealed in self.file.execute(self._select_steps, [slot * SLOT + number for slot in self._slots()]):
            try:
                piece = unpack_kept(sealed, number)
            except Damaged:
                step = self._step_in(key // SLOT, head.last)
                if step:
                    steps.setdefault(step, KeptStep(step, "", b""))
                continue
            if piece.incarnation == head.incarnation:
                steps[piece.step.number] = piece.step
        for step_number, request_id, digest in journaled:
            steps[step_number] = KeptStep(step_number, request_id, digest)
        oldest = head.last - self.kept
        return {each: steps[each] for each in sorted(steps) if each == 1 or oldest < each <= head.last}

    def _slots(self) -> range:
        return range(self.kept + 1)

    def _step_in(self, slot: int, last: int) -> int:
        """Return the number of the latest step whose answer is in a slot; 0 if there is none yet."""
        if slot == 0:
            return min(last, 1)
        return next((each for each in range(last, max(1, last - self.kept), -1) if slot_of(each, self.kept) == slot), 0)

    def state(self, row: FileRow, head: RecordHead | None) -> bytes | None:
        """Return the state of a sequence with this head, None if it is over. Raises Damaged."""
        if row.closed or head is None:
            return None
        state: Any = row.state
        if state is None and head.checkpoint >= 0:
            found = self.file.execute("SELECT state FROM states WHERE sequence = ?", (row.number,)).fetchone()
            state = None if found is None else found[0]
        if state is not None and type(state) is not bytes:
            raise Damaged("its state is something else than bytes")
        check_state(head, state)
        return state

    def log(self, row: FileRow, head: RecordHead | None, problems: list[str] | None = None) -> list[LogEntry]:
        """Return the log of a sequence with this head, none if it is over; see `read_log`. Raises Damaged."""
        if row.closed or head is None:
            return []
        return read_log(head, self._pieces(row, head, "ASC"), row.number, problems)

    def latest(self, row: FileRow, head: RecordHead | None) -> list[LogEntry]:
        """Return what of the log makes the present state, none if it is over; see `read_latest`. Raises Damaged."""
        if row.closed or head is None:
            return []
        pieces = self._pieces(row, head, "DESC")
        try:
            return read_latest(head, pieces, row.number)
        finally:
            pieces.close()

    def _pieces(self, row: FileRow, head: RecordHead, order: str) -> Generator[Any, None, None]:
        found = self.file.execute(
            f"SELECT entry FROM log WHERE sequence = ? AND number >= ? ORDER BY number {order}",  # noqa: S608
            (row.number, head.log_from),
        )
        try:
            for (entry,) in found:
                yield entry
        finally:
            found.close()  # one that is read in part would hold the transaction

    def ends_workers(self, number: int, head: RecordHead | None) -> bool:
        """Whether a worker began to read the state of a sequence with this head, and has not survived it."""
        if head is None:
            return False
        found = self.file.execute(
            "SELECT 1 FROM readings WHERE sequence = ? AND incarnation = ? AND last = ?",
            (number, head.incarnation, head.last),
        )
        return found.fetchone() is not None

    def answer(self, number: int, incarnation: int, step: int) -> bytes | None:
        """Return the kept answer to a step, None if it is not kept. Raises Damaged."""
        unreadable: Damaged | None = None
        wanted = slot_of(step, self.kept)
        for slot in sorted(self._slots(), key=lambda each: each != wanted):
            found = self.file.execute(
                "SELECT step, answer FROM answers WHERE key = ?", (slot * SLOT + number,)
            ).fetchone()
            if found is None:
                continue
            try:
                piece = unpack_kept(found[0], number)
            except Damaged as error:
                unreadable = error if slot == wanted else unreadable
                continue
            if (piece.incarnation, piece.step.number) == (incarnation, step):
                return piece.check(checked_bytes(found[1]))
        if unreadable is not None:
            raise Damaged(f"the kept answer to step {step} cannot be read: {unreadable}")
        return None

    def piece(self, number: int, incarnation: int, step: int) -> KeptPiece | None:
        """Return what is kept of a step besides the answer; None if nothing is, or it cannot be read."""
        for _, sealed in self.file.execute(self._select_steps, [slot * SLOT + number for slot in self._slots()]):
            try:
                piece = unpack_kept(sealed, number)
            except Damaged:
                continue
            if (piece.incarnation, piece.step.number) == (incarnation, step):
                return piece
        return None

    # Writing

    def add(
        self, model: bytes, sequence_id: bytes, fence: int, owner: str, lease_until: float, expires_at: float
    ) -> int:
        """Add a sequence of which no step was applied yet; return its number."""
        number = self.file.execute(
            "INSERT INTO sequences (model, id, name_checksum, fence, owner, lease_until, expires_at, closed, damage)"
            " VALUES (?, ?, 0, ?, ?, ?, ?, '', '')",
            (model, sequence_id, fence, owner, lease_until, expires_at),
        ).lastrowid
        assert number is not None
        checksum = checksum_of(number, model, sequence_id)
        self.file.execute("UPDATE sequences SET name_checksum = ? WHERE number = ?", (checksum, number))
        return number

    def add_ids(self, number: int, incarnation: int, digests: bytes) -> None:
        """Add digests of request ids to those of a sequence."""
        execute, (first, last) = self.file.execute, chunks_of(number)
        found = execute(
            "SELECT key, digests FROM ids WHERE key BETWEEN ? AND ? ORDER BY key DESC LIMIT 1", (first, last)
        ).fetchone()
        key = first
        if found is not None:
            key = found[0]
            try:
                of, there = unpack_digests(found[1], number)
            except Damaged:
                key += 1
            else:
                if of == incarnation:
                    digests = there + digests
                else:
                    execute("DELETE FROM ids WHERE key BETWEEN ? AND ?", (first, last))
                    key = first
        size = CHUNK * DIGEST_SIZE
        for place in range(0, len(digests), size):
            piece = pack_digests(number, incarnation, digests[place : place + size])
            execute("INSERT OR REPLACE INTO ids (key, digests) VALUES (?, ?)", (key, piece))
            key += 1
        if key - first > self._most_chunks:
            execute("DELETE FROM ids WHERE key BETWEEN ? AND ?", (first, key - 1 - self._most_chunks))

    def put_tokens(self, number: int, tokens: bytes) -> None:
        piece = pack_digests(number, 0, tokens)
        self.file.execute("INSERT OR REPLACE INTO earlier (sequence, tokens) VALUES (?, ?)", (number, piece))

    def set_aside(self, number: Any, problem: str, content: Any) -> None:
        """Keep for people what could not be read, and mark its sequence as damaged, if it is known."""
        row = self.find_number(number) if type(number) is int else None
        self.keep_for_people(row[1] if row else None, row[2] if row else None, problem, content)
        if row:
            self.mark(number, problem)

    def keep_for_people(self, model: Any, sequence_id: Any, problem: str, content: Any) -> None:
        self.file.execute(
            "INSERT INTO damaged (model, id, problem, content, set_aside, is_seen) VALUES (?, ?, ?, ?, ?, 0)",
            (model, sequence_id, problem, content, time.time()),
        )

    def mark(self, number: int, problem: str) -> None:
        """Let nobody have a lease on a sequence until it is repaired."""
        self.file.execute("UPDATE sequences SET damage = ? WHERE number = ?", (problem, number))

    def close(self, number: int, reason: str, forgotten_at: float) -> None:
        """Record that a sequence is over, and drop its state."""
        self.file.execute(
            "UPDATE sequences SET closed = ?, state = NULL, expires_at = ? WHERE number = ?",
            (reason, forgotten_at, number),
        )
        self.drop_state(number)

    def drop_state(self, number: int) -> None:
        self.file.execute("DELETE FROM states WHERE sequence = ?", (number,))
        self.file.execute("DELETE FROM log WHERE sequence = ?", (number,))
        self.end_reading(number)

    def end_reading(self, number: int) -> None:
        self.file.execute("DELETE FROM readings WHERE sequence = ?", (number,))

    def forget(self, number: int) -> None:
        """Delete a sequence."""
        self.drop_state(number)
        self.file.execute("DELETE FROM sequences WHERE number = ?", (number,))
        self.drop_history(number)

    def drop_history(self, number: int) -> None:
        """Drop the answers, ids and tokens of a sequence."""
        every_slot = [(slot * SLOT + number,) for slot in range(MOST_KEPT_ANSWERS + 1)]
        self.file.executemany("DELETE FROM answers WHERE key = ?", every_slot)
        self.file.execute("DELETE FROM ids WHERE key BETWEEN ? AND ?", chunks_of(number))
        self.file.execute("DELETE FROM earlier WHERE sequence = ?", (number,))


def _tokens(row: FileRow) -> bytes:
    if row.tokens is None:
        return b""
    try:
        return unpack_digests(row.tokens, row.number)[1]
    except Damaged as damage:
        raise Damaged(f"the tokens of the sequences with its id cannot be read: {damage}") from damage


def chunks_of(number: int) -> tuple[int, int]:
    """Return the first and the last key that a chunk of a sequence's ids may have."""
    return number * CHUNKS, (number + 1) * CHUNKS - 1
