"""Reads sequences of a file as an operator sees them, in short transactions."""

import sqlite3
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from ts.sequences.sqlite.file_journal import fold
from ts.sequences.sqlite.file_moving import examine
from ts.sequences.sqlite.file_rows import name_of, text_of
from ts.sequences.sqlite.file_tables import Tables
from ts.sequences.sqlite.sqlite_file import is_damage
from ts.sequences.steps.stores.maintenance import Examined

#: How many sequences are looked for at a time.
_AT_ONCE: Final = 1_000


def examine_all(tables: Tables) -> Iterator[Examined]:
    """Read each sequence that has begun, as it is when it is read. Raises StoreError."""
    file, last = tables.file, -1
    while True:
        with file.reading():
            found = file.execute(
                "SELECT number, model, id FROM sequences WHERE number > ? ORDER BY number LIMIT ?", (last, _AT_ONCE)
            ).fetchall()
        if not found:
            return
        for number, model, sequence_id in found:
            examined = _examine(tables, partial(int, number), text_of(model), text_of(sequence_id))
            if examined is not None:
                yield examined
        last = found[-1][0]


def examine_one(tables: Tables, model: str, sequence_id: str) -> Examined | None:
    """Read a sequence; None if there is none with this id that has begun. Raises StoreError."""

    def number() -> int | None:
        found = tables.find(name_of(model), name_of(sequence_id))
        return None if found is None else found[0]

    return _examine(tables, number, model, sequence_id)


def _examine(tables: Tables, number: Callable[[], int | None], model: str, sequence_id: str) -> Examined | None:
    """Read the sequence with a number, which is asked for in the same transaction: what replaces one gets another."""
    try:
        with tables.file.transaction():
            fold(tables)
            found = number()
            return None if found is None else examine(tables, found)
    except sqlite3.DatabaseError as error:
        if not is_damage(error):
            raise
        return Examined(model, sequence_id, [f"its place is damaged: {error}"], None)
