"""Converts a file of the file store from version 4 of its schema, whose sequences had neither numbers nor tokens.

That version knew the answers to the first step of a sequence and to its latest ones, by the ids of their requests, and
had a row for each version of a model; its moments were seconds since 1970.
"""

import time
from collections.abc import Iterator
from typing import Any, Final

import msgpack

from ts.sequences.sqlite.file_moving import put_latest
from ts.sequences.sqlite.file_rows import name_of, text_of
from ts.sequences.sqlite.file_tables import Tables
from ts.sequences.sqlite.sqlite_file import SqliteFile
from ts.sequences.steps.record import Damaged, KeptStep, SequenceRecord, digest_of, pack_head
from ts.sequences.steps.sequence_limits import MOST_KEPT_ANSWERS
from ts.sequences.steps.stores.maintenance import StoredSequence
from ts.sequences.steps.stores.store import KeptAnswer

VERSION: Final = 4

_TABLES: Final = ("sequences", "answers", "journal", "takeovers", "sweeps")
_SLOT: Final = 2**40
#: What an entry of its journal is written with.
_UPDATE: Final = (
    "UPDATE old_sequences SET state = ?, closed = ?, incarnation = ?, further_steps = ?, lease_until = ?,"
    " expires_at = ? WHERE number = ? AND token = ?"
)
_KEEP: Final = "INSERT OR REPLACE INTO old_answers (key, incarnation, request_id, answer) VALUES (?, ?, ?, ?)"


def set_tables_aside(file: SqliteFile) -> None:
    """Make room for the tables of the new version."""
    file.execute("DROP INDEX IF EXISTS sequences_by_expiry")
    for name in _TABLES:
        file.execute(f"ALTER TABLE {name} RENAME TO old_{name}")


def convert(tables: Tables) -> None:
    """Fill the new tables, which are empty, from the old ones, and drop those."""
    file = tables.file
    _fold(tables)
    for number, model, sequence_id in file.execute("SELECT number, model, id FROM old_sequences").fetchall():
        try:
            sequence = _read(file, number)
        except (Damaged, ValueError, TypeError, KeyError, msgpack.UnpackException) as error:
            tables.keep_for_people(_bytes(model), _bytes(sequence_id), f"it could not be converted: {error}", None)
            continue
        if sequence is not None:
            put_latest(tables, sequence)
    for name in _TABLES:
        file.execute(f"DROP TABLE old_{name}")


def _bytes(found: Any) -> bytes:
    return found if isinstance(found, bytes) else name_of(str(found))


def _fold(tables: Tables) -> None:
    file = tables.file
    for (entry,) in file.execute("SELECT entry FROM old_journal ORDER BY number").fetchall():
        try:
            rows, answers = msgpack.unpackb(entry)
            file.executemany(_UPDATE, rows)
            file.executemany(_KEEP, answers)
        except Exception as error:  # whatever is in it, as there is no checksum
            tables.keep_for_people(None, None, f"an entry of the journal could not be converted: {error}", entry)


def _read(file: SqliteFile, number: int) -> StoredSequence | None:
    """Return a sequence, None if no step of it was applied."""
    model, sequence_id, incarnation, further, closed, expires_at, state = file.execute(
        "SELECT model, id, incarnation, further_steps, closed, expires_at, state FROM old_sequences WHERE number = ?",
        (number,),
    ).fetchone()
    name, _, version = text_of(model).rpartition("/")
    kept = _kept(file, number, incarnation, further)
    if not kept:
        return None
    record = SequenceRecord(incarnation, "", version, last=further + 1)
    reason = closed.decode()
    state = None if reason else state
    return StoredSequence(
        model=name,
        sequence_id=text_of(sequence_id),
        head=pack_head(record, state),
        closed=reason,
        time_left=expires_at - time.time(),
        tokens=b"",
        ids=b"".join(digest_of(each.step.request_id) for each in kept),
        state=state,
        answers=kept,
    )


def _kept(file: SqliteFile, number: int, incarnation: int, further: int) -> list[KeptAnswer]:
    """Return the kept answers of an incarnation, by the numbers of their steps."""
    keys = [slot * _SLOT + number for slot in range(MOST_KEPT_ANSWERS + 1)]
    marks = ",".join("?" * len(keys))
    found = file.execute(
        f"SELECT key, request_id, answer FROM old_answers WHERE incarnation = ? AND key IN ({marks})",  # noqa: S608
        (incarnation, *keys),
    ).fetchall()
    slots = {key // _SLOT: (request_id.decode(), answer) for key, request_id, answer in found}
    size = max((slot for slot in slots), default=0)
    answers = []
    for number_in, slot in _numbers(size, further):
        if slot in slots:
            request_id, answer = slots[slot]
            *told, digest = msgpack.unpackb(answer)
            answers.append(KeptAnswer(KeptStep(number_in, request_id, digest), msgpack.packb(told)))
    return answers


def _numbers(size: int, further: int) -> Iterator[tuple[int, int]]:
    """Yield the number of each kept step and its slot: the first step has slot 0, others have the rest in turn."""
    yield 1, 0
    for step in range(max(1, further - size + 1), further + 1):
        yield step + 1, 1 + (step - 1) % size
