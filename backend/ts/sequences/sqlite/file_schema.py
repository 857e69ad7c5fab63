"""The tables of the file store. What each piece in them is, `ts.sequences.sqlite.file_pieces` says.

Every moment is one of `ts.protocol.boot_clock` of the boot that the table ``clock`` names; see `file_clock`.
"""

from typing import Final

#: The file records it; a file of an older version is converted when it is opened.
VERSION: Final = 5

SCHEMA: Final = (
    """
    CREATE TABLE sequences (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        model BLOB NOT NULL,            -- the name, in UTF-8
        id BLOB NOT NULL,               -- in UTF-8
        name_checksum INTEGER NOT NULL, -- the CRC-32 of the number, the model and the id
        fence INTEGER NOT NULL,
        owner TEXT NOT NULL,
        lease_until REAL NOT NULL,      -- 0 if its holder has released it
        expires_at REAL NOT NULL,       -- when it is idle for too long; if closed: forgotten
        closed TEXT NOT NULL,           -- why it is over, '' if it is not
        damage TEXT NOT NULL,           -- what is wrong with it, '' if nothing is; nobody gets a lease then
        head BLOB,                      -- sealed; NULL before its first step was applied
        state BLOB,                     -- the head has its checksum; NULL if there is none, or it is in `states`
        UNIQUE (model, id)
    )""",
    # Large states have a table of their own: a change of a row writes the whole row.
    "CREATE TABLE states (sequence INTEGER PRIMARY KEY, state BLOB NOT NULL)",
    """
    CREATE TABLE answers (
        key INTEGER PRIMARY KEY,        -- the slot * 2^40 + the sequence's number: neighbours are written together
        step BLOB NOT NULL,             -- sealed
        answer BLOB NOT NULL            -- its checksum is in `step`
    )""",
    """
    CREATE TABLE ids (
        key INTEGER PRIMARY KEY,        -- the sequence's number * 2^20 + the number of the chunk
        digests BLOB NOT NULL           -- sealed
    )""",
    "CREATE TABLE earlier (sequence INTEGER PRIMARY KEY, tokens BLOB NOT NULL) -- digests of all, sealed",
    """
    CREATE TABLE log (
        sequence INTEGER NOT NULL,
        number INTEGER NOT NULL,        -- of the step
        entry BLOB NOT NULL,            -- sealed
        PRIMARY KEY (sequence, number)
    ) WITHOUT ROWID""",
    # The journal. Its name differs from that of older versions, whose servers must not write to this file.
    """
    CREATE TABLE changes (
        number INTEGER PRIMARY KEY,     -- later commits have higher numbers
        sequence INTEGER NOT NULL,
        entry BLOB NOT NULL,            -- sealed
        lasts INTEGER NOT NULL          -- whether it has more than later changes replace: 0 or 1
    )""",
    "CREATE TABLE takeovers (count INTEGER NOT NULL)",
    "INSERT INTO takeovers VALUES (0)",
    "CREATE INDEX sequences_by_expiry ON sequences (expires_at)",
    """
    CREATE TABLE clock (
        boot TEXT NOT NULL,             -- of the machine
        noted REAL NOT NULL,            -- a moment at which the file was in use
        sweep_at REAL NOT NULL
    )""",
    """
    CREATE TABLE servers (              -- what workers serve now
        owner TEXT NOT NULL,
        pid INTEGER NOT NULL,
        model BLOB NOT NULL,
        version TEXT NOT NULL,
        state_version TEXT NOT NULL,
        alive_until REAL NOT NULL,
        PRIMARY KEY (owner, pid, model)
    )""",
    """
    CREATE TABLE damaged (              -- what could not be read, set aside for people
        number INTEGER PRIMARY KEY,
        model BLOB,
        id BLOB,
        problem TEXT NOT NULL,
        content BLOB,
        set_aside REAL NOT NULL,        -- seconds since 1970
        is_seen INTEGER NOT NULL        -- whether a repair has told somebody
    )""",
    "CREATE TABLE imported (name TEXT PRIMARY KEY) -- files of older versions, of which all is in this one",
)

#: Made where it is missing: earlier servers of this version of the file had none, and need none.
READINGS: Final = """
    CREATE TABLE IF NOT EXISTS readings (   -- states that are being read by a worker which that may end
        sequence INTEGER PRIMARY KEY,
        incarnation INTEGER NOT NULL,       -- of the state
        last INTEGER NOT NULL               -- the number of the step after which it was
    )"""
