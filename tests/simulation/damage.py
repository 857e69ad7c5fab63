"""Damages what a store has of one sequence, as a defective disk, or another program, does."""

import contextlib
import sqlite3
from pathlib import Path
from random import Random
from typing import Final

from tests.simulation.redis_double import SERVER, FakeRedis

#: What can be damaged in a file: the tables and their columns, and where in a key the number of the sequence is.
_PIECES: Final = (
    ("changes", "entry", "sequence"),
    ("sequences", "head", "number"),
    ("sequences", "state", "number"),
    ("answers", "answer", "key % (1 << 40)"),
    ("answers", "step", "key % (1 << 40)"),
    ("ids", "digests", "key >> 20"),
    ("log", "entry", "log.sequence"),
    ("earlier", "tokens", "sequence"),
)
_FIELDS: Final = (b"head", b"earlier", b"k0", b"a0", b"closed", b"until")


def damage_file(path: Path, random: Random) -> tuple[str, str] | None:
    """Change a byte of a file's store; return whose it was, and what. None: there was nothing, or no time for it."""
    with contextlib.closing(sqlite3.Connection(str(path), timeout=0, isolation_level=None)) as connection:
        connection.text_factory = bytes
        table, column, number = random.choice(_PIECES) if random.random() < 0.5 else _PIECES[0]
        with contextlib.suppress(sqlite3.OperationalError):  # it is locked, or new
            found = connection.execute(
                f"SELECT {table}.rowid, {column}, sequences.id FROM {table} JOIN sequences"
                f" ON sequences.number = {number if table != 'sequences' else 'sequences.number'}"
                f" WHERE {column} IS NOT NULL ORDER BY {table}.rowid"
            ).fetchall()
            if found:
                row, content, name = random.choice(found)
                place = random.randrange(len(content))
                changed = content[:place] + bytes((content[place] ^ 0x55,)) + content[place + 1 :]
                connection.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (changed, row))
                return name.decode(), f"{table}.{column}"
    return None


def damage_redis(random: Random) -> tuple[str, str] | None:
    """Change what Redis has of a sequence; return whose it was, and what. None: there was nothing."""
    client = FakeRedis(server=SERVER)
    keys = sorted(key for key in client.keys("tsq:{*}*:c*"))
    if not keys:
        return None
    key = random.choice(keys)
    name = key.decode().rpartition(":")[2]
    if client.type(key) == b"hash":
        field = random.choice(_FIELDS)
        if not client.hexists(key, field) or random.random() < 0.2:
            client.delete(key)
            client.set(key, b"something else")
            return name, f"{key.decode()} is of another type"
        client.hset(key, field, random.randbytes(20))
        return name, f"{key.decode()} {field.decode()}"
    client.set(key, random.randbytes(20), keepttl=True)
    return name, key.decode()
