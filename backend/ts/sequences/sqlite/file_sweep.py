"""Drops from the file store the states of abandoned sequences, and the records of sequences that ended long ago.

One process sweeps for all that share the file, whenever a sweep is due. An index finds the overdue sequences, and the
process holds the lock for a few sequences at a time. A damaged sequence stays until it is repaired.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Final

from ts.protocol.boot_clock import boot_time
from ts.sequences.sqlite.file_clock import note
from ts.sequences.sqlite.file_tables import Tables
from ts.sequences.steps.stores.store import IDLE, REVIVABLE_SECONDS, SUSPENDED_SECONDS

#: Makes every commit that would go to the journal check its leases.
COUNT_TAKEOVER: Final = "UPDATE takeovers SET count = count + 1"

#: How long after one sweep the next one is due (seconds).
_INTERVAL = 60.0
#: The number of sequences swept in one transaction.
_AT_ONCE = 500
_OVERDUE: Final = "SELECT number FROM sequences WHERE expires_at < ?"
#: Parameters: 1 and 2, the moments before which a released or a held sequence must have been idle for too long; 3, now.
_ABANDONED: Final = (
    "closed = '' AND damage = '' AND expires_at < iif(lease_until = 0, ?1, ?2) AND expires_at < max(?1, ?2)"
    " AND lease_until < ?3"
)
_FORGOTTEN: Final = "closed <> '' AND damage = ''"


def sweep(tables: Tables, transaction: Callable[[], AbstractContextManager[None]], remembered: float) -> None:
    """Sweep, if a sweep is due.

    Raises StoreError: the file cannot be read or written.

    Args:
        transaction: Begins a transaction on tables that are up to date with the journal.
        remembered: Seconds for which the file says that a sequence has expired.
    """
    now, file = boot_time(), tables.file
    with file.reading():
        due = file.execute("SELECT sweep_at FROM clock").fetchone()
        if due is None or not (type(due[0]) is not float or due[0] <= now):
            return
    if not file.write(
        "UPDATE clock SET sweep_at = ?1 + ?2 WHERE sweep_at <= ?1 OR typeof(sweep_at) <> 'real'", (now, _INTERVAL)
    ):
        return  # another process has begun meanwhile
    limits = (now - REVIVABLE_SECONDS, now - SUSPENDED_SECONDS, now)
    with transaction():
        note(file, now)
        abandoned = file.execute(f"SELECT number FROM sequences WHERE {_ABANDONED}", limits).fetchall()  # noqa: S608
        forgotten = file.execute(f"{_OVERDUE} AND {_FORGOTTEN}", (now,)).fetchall()
    for numbers in _portions([number for (number,) in abandoned]):
        with transaction():
            for number in numbers:
                still = f"SELECT 1 FROM sequences WHERE number = ?4 AND {_ABANDONED}"  # noqa: S608
                if file.execute(still, (*limits, number)).fetchone():
                    tables.close(number, IDLE, now + remembered)
    for numbers in _portions([number for (number,) in forgotten]):
        with transaction():
            for number in numbers:
                if file.execute(f"{_OVERDUE} AND {_FORGOTTEN} AND number = ?", (now, number)).fetchone():
                    tables.forget(number)
            file.execute(COUNT_TAKEOVER)  # a process that still holds one of them can no longer write to it


def _portions(numbers: list[int]) -> Iterator[list[int]]:
    for first in range(0, len(numbers), _AT_ONCE):
        yield numbers[first : first + _AT_ONCE]
