"""Opens the file of the file store: makes its tables if it is new, converts it if it is of an older version.

Older servers had a file for each version of a model, ``NAME@VERSION.db``. What is in those that lie next to ``NAME.db``
is moved into it once.
"""

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ts.sequences.sqlite import file_v4
from ts.sequences.sqlite.file_clock import follow_boot, start_clock
from ts.sequences.sqlite.file_examining import examine_all
from ts.sequences.sqlite.file_journal import fold
from ts.sequences.sqlite.file_moving import put_latest
from ts.sequences.sqlite.file_rows import name_of
from ts.sequences.sqlite.file_schema import READINGS, SCHEMA, VERSION
from ts.sequences.sqlite.file_tables import Tables
from ts.sequences.sqlite.sqlite_file import SqliteFile
from ts.sequences.steps.sequence_limits import MOST_KEPT_ANSWERS
from ts.sequences.steps.stores.maintenance import Examined
from ts.sequences.steps.stores.store import StoreError

_SUFFIX: Final = ".db"
_IMPORTED: Final = ".imported"


def open_file(path: str, *, fsync: bool, create: bool = True) -> SqliteFile:
    """Return the database at a path, whose schema is of this version and whose moments are of this boot.

    Raises StoreError: it cannot be used, or is of another version that this server cannot convert.
    """
    file = SqliteFile(path, _prepare, VERSION, fsync=fsync, create=create)
    try:
        tables = all_of(file)
        follow_boot(tables)
        _add_readings(file)
        for older in _older_files(path):
            _import(tables, older)
    except BaseException:
        file.close()
        raise
    return file


def all_of(file: SqliteFile) -> Tables:
    """Return the tables with all that they have, whatever the settings of a model are."""
    return Tables(file, MOST_KEPT_ANSWERS, 2**31)


def _prepare(file: SqliteFile, version: int) -> None:
    if version not in {0, file_v4.VERSION}:
        raise StoreError(f"{file.path} is a sequence store of version {version}; this server reads {VERSION}")
    if version:
        file_v4.set_tables_aside(file)
    for statement in (*SCHEMA, READINGS):
        file.execute(statement)
    start_clock(file)
    if version:
        file_v4.convert(all_of(file))


def _add_readings(file: SqliteFile) -> None:
    with file.reading():
        is_there = file.execute("SELECT 1 FROM sqlite_master WHERE name = 'readings'").fetchone()
    if not is_there:
        with file.transaction():
            file.execute(READINGS)


def _older_files(path: str) -> list[Path]:
    """Return the files of single versions of the model, which lie next to its file."""
    file = Path(path)
    if file.suffix != _SUFFIX:
        return []
    start = f"{file.stem}@"
    with contextlib.suppress(OSError):
        return sorted(each for each in file.parent.iterdir() if each.name.startswith(start) and each.suffix == _SUFFIX)
    return []


def _import(tables: Tables, older: Path) -> None:
    """Move what is in an older file into this one, and rename that; other processes may do it at the same time."""
    try:
        name = f"{older.name} {older.stat().st_ino}"  # an older server may make another file with this name
        other = open_file(str(older), fsync=False, create=False)  # its servers cannot write to it from now on
    except (OSError, StoreError):
        if older.exists():
            raise
        return  # another process has just renamed it
    try:
        with tables.file.transaction():
            if tables.file.execute("SELECT 1 FROM imported WHERE name = ?", (name,)).fetchone() is None:
                fold(tables)
                for examined in examine_all(all_of(other)):
                    _take_over(tables, examined, older.name)
                tables.file.execute("INSERT INTO imported (name) VALUES (?)", (name,))
    finally:
        with contextlib.suppress(StoreError):
            other.close()  # which copies its write-ahead log into it
    imported = next(each for each in _free_names(older) if not each.exists())
    for suffix in ("-wal", "-shm", ""):
        with contextlib.suppress(FileNotFoundError):
            Path(f"{older}{suffix}").rename(f"{imported}{suffix}")


def _take_over(tables: Tables, examined: Examined, source: str) -> None:
    if examined.sequence is not None:
        put_latest(tables, examined.sequence)
    for problem in examined.problems:
        names = name_of(examined.model), name_of(examined.sequence_id)
        tables.keep_for_people(*names, f"{problem} (in {source})", None)


def _free_names(older: Path) -> Iterator[Path]:
    yield Path(f"{older}{_IMPORTED}")
    for number in itertools.count(2):
        yield Path(f"{older}{_IMPORTED}.{number}")
