"""Upgrades the tables of older versions of the file store.

Version 2 had no incarnations: the content of its file becomes the first incarnation of each sequence, whose first step
is unknown. Servers of that version that still have the file open fail from then on, because columns have new names, and
every lease that they hold is over.
"""

import sqlite3

import msgpack

_FOLD_2 = (
    "UPDATE sequences SET state = ?, closed = ?, steps = ?, lease_until = ?, expires_at = ?"
    " WHERE number = ? AND token = ?",
    "INSERT OR REPLACE INTO answers (key, request_id, answer) VALUES (?, ?, ?)",
)
_ALTER_2 = (
    "ALTER TABLE sequences RENAME COLUMN steps TO further_steps",
    "ALTER TABLE sequences ADD COLUMN incarnation INTEGER NOT NULL DEFAULT 1",
    "UPDATE sequences SET token = token + 1",
    "UPDATE takeovers SET count = count + 1",
    "ALTER TABLE answers ADD COLUMN incarnation INTEGER NOT NULL DEFAULT 1",
    # One slot (2^40) further: the first is free now. By way of negative keys, since each is unique at every moment.
    "UPDATE answers SET key = -(key + 1099511627776)",
    "UPDATE answers SET key = -key",
)
#: What sweeping needs: version 3 looked at every sequence, in every worker.
_ADD_TO_3 = (
    "CREATE INDEX sequences_by_expiry ON sequences (expires_at)",
    "CREATE TABLE sweeps (next_at REAL NOT NULL)",
    "INSERT INTO sweeps VALUES (0)",
)


def upgrade_from_2(database: sqlite3.Connection) -> None:
    """Upgrade within the transaction that is open."""
    for (entry,) in database.execute("SELECT entry FROM journal ORDER BY number").fetchall():
        for statement, rows in zip(_FOLD_2, msgpack.unpackb(entry), strict=True):
            database.executemany(statement, rows)
    database.execute("DELETE FROM journal")
    for statement in _ALTER_2:
        database.execute(statement)
    upgrade_from_3(database)


def upgrade_from_3(database: sqlite3.Connection) -> None:
    """Upgrade within the transaction that is open."""
    for statement in _ADD_TO_3:
        database.execute(statement)
