"""Drops from the file store the states of abandoned sequences, and the records of sequences that ended long ago.

One process sweeps for all that share the file, whenever a sweep is due. An index finds the overdue sequences, and the
process holds the lock for a few sequences at a time.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Final

from ts.sequence.stores.sqlite_file import SqliteFile
from ts.sequence.stores.store import FIRST_SLOT, IDLE, MOST_KEPT, REMEMBERED_SECONDS, REVIVABLE_SECONDS

#: An answer's key is its slot times this, and the sequence's number.
SLOT: Final = 2**40
#: Makes every commit that would go to the journal check its leases.
COUNT_TAKEOVER: Final = "UPDATE takeovers SET count = count + 1"

#: How long after one sweep the next one is due (seconds).
_INTERVAL = 60.0
#: The number of sequences swept in one transaction.
_AT_ONCE = 500
_OVERDUE: Final = "SELECT number FROM sequences WHERE expires_at < ?"
#: Parameters: 1 and 2, the moments before which a released or a held sequence must have been idle for too long; 3, now.
_ABANDONED: Final = (
    "closed = '' AND expires_at < iif(lease_until = 0, ?1, ?2) AND expires_at < max(?1, ?2) AND lease_until < ?3"
)


def sweep(file: SqliteFile, transaction: Callable[[], AbstractContextManager[None]]) -> None:
    """Sweep, if a sweep is due.

    Raises StoreError: the file cannot be read or written.

    Args:
        transaction: Begins a transaction on tables that are up to date with the journal.
    """
    now = time.time()
    with file.reading():
        if file.execute("SELECT next_at FROM sweeps").fetchone()[0] > now:
            return
    if not file.write("UPDATE sweeps SET next_at = ?1 + ?2 WHERE next_at <= ?1", (now, _INTERVAL)):
        return  # another process has begun meanwhile
    limits = (now - REVIVABLE_SECONDS, now - REMEMBERED_SECONDS, now)
    with transaction():
        abandoned = file.execute(f"SELECT number FROM sequences WHERE {_ABANDONED}", limits).fetchall()  # noqa: S608
        forgotten = file.execute(f"{_OVERDUE} AND closed <> ''", (now,)).fetchall()
    for numbers in _portions([number for (number,) in abandoned]):
        with transaction():
            file.executemany(
                f"UPDATE sequences SET state = NULL, closed = ?4, expires_at = ?5 WHERE number = ?6 AND {_ABANDONED}",  # noqa: S608
                [(*limits, IDLE, now + REMEMBERED_SECONDS, number) for number in numbers],
            )
    for numbers in _portions([number for (number,) in forgotten]):
        with transaction():
            for number in numbers:
                gone = "DELETE FROM sequences WHERE number = ? AND closed <> '' AND expires_at < ?"
                if file.execute(gone, (number, now)).rowcount:
                    every_slot = [(slot * SLOT + number,) for slot in range(FIRST_SLOT, MOST_KEPT + 1)]
                    file.executemany("DELETE FROM answers WHERE key = ?", every_slot)
            file.execute(COUNT_TAKEOVER)  # a process that still holds one of them can no longer write to it


def _portions(numbers: list[int]) -> Iterator[list[int]]:
    for first in range(0, len(numbers), _AT_ONCE):
        yield numbers[first : first + _AT_ONCE]
