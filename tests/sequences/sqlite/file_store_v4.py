"""Makes databases as the file store of version 4 of the schema left them, by that version's SQL."""

import sqlite3
import time
from pathlib import Path
from typing import Any

import msgpack

from ts.sequences.steps.record import digest_of_body

SCHEMA = """
PRAGMA page_size = 1024;
PRAGMA journal_mode = WAL;
CREATE TABLE IF NOT EXISTS sequences (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    model TEXT NOT NULL,
    id TEXT NOT NULL,
    token INTEGER NOT NULL,
    owner TEXT NOT NULL,
    lease_until REAL NOT NULL,
    expires_at REAL NOT NULL,
    incarnation INTEGER NOT NULL,
    further_steps INTEGER NOT NULL,
    closed TEXT NOT NULL,
    state BLOB,
    UNIQUE (model, id)
);
CREATE TABLE IF NOT EXISTS answers (
    key INTEGER PRIMARY KEY,
    incarnation INTEGER NOT NULL,
    request_id TEXT NOT NULL,
    answer BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS journal (
    number INTEGER PRIMARY KEY,
    entry BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS takeovers (count INTEGER NOT NULL);
INSERT INTO takeovers SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM takeovers);
CREATE INDEX IF NOT EXISTS sequences_by_expiry ON sequences (expires_at);
CREATE TABLE IF NOT EXISTS sweeps (next_at REAL NOT NULL);
INSERT INTO sweeps SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM sweeps);
PRAGMA user_version = 4;
"""


def answer_of(step: int, body: bytes = b"") -> bytes:
    """The kept answer to a step; the first one has the digest of its request's body."""
    digest = digest_of_body(body) if step == 1 else b""
    return bytes(msgpack.packb((200, "", [("x-step", str(step))], b"answer %d" % step, None, digest)))


class OldFile:
    """A file of that version, whose stores keep the answers to ``kept`` steps besides the first."""

    def __init__(self, path: Path, kept: int = 3) -> None:
        self.path = path
        self.database = sqlite3.connect(path, isolation_level=None)
        self.database.executescript(SCHEMA)
        self._kept = kept

    def add(
        self,
        model: str,
        sequence_id: str,
        steps: int,
        *,
        state: bytes | None = b"state",
        closed: str = "",
        incarnation: int = 1,
        idle_in: float = 60.0,
        journaled: bool = False,
    ) -> None:
        """Add a sequence with so many applied steps, named ``r1``, ``r2`` and so on."""
        moments = time.time() + 10.0, time.time() + idle_in
        number = self.database.execute(
            "INSERT INTO sequences"
            " (model, id, token, owner, lease_until, expires_at, incarnation, further_steps, closed)"
            " VALUES (?, ?, 1, 'old/1/1', ?, ?, 1, 0, '')",
            (model, sequence_id, *moments),
        ).lastrowid
        assert number is not None
        row = (state, closed, incarnation, max(0, steps - 1), *moments, number, 1)
        answers: list[Any] = []
        for step in range(1, steps + 1):
            slot = 0 if step == 1 else 1 + (step - 2) % self._kept
            answers.append((slot * 2**40 + number, incarnation, f"r{step}", answer_of(step, b"body")))
        if journaled:
            self.database.execute("INSERT INTO journal (entry) VALUES (?)", (msgpack.packb(([row], answers)),))
            return
        self.database.execute(
            "UPDATE sequences SET state = ?, closed = ?, incarnation = ?, further_steps = ?, lease_until = ?,"
            " expires_at = ? WHERE number = ? AND token = ?",
            row,
        )
        self.database.executemany("INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?)", answers)

    def commit_as_then(self) -> None:
        """What a server of that version does for a step."""
        self.database.execute(
            "INSERT INTO journal (entry) SELECT ?1 WHERE (SELECT count FROM takeovers) = ?2", (b"entry", 0)
        )

    def close(self) -> None:
        self.database.close()
