"""The file store: what it refuses, what it sweeps, and that nothing of a failed commit is left."""

from __future__ import annotations

import sqlite3
import stat
import threading
from pathlib import Path

import pytest

from ts.sequence.stores import file
from ts.sequence.stores.file import FileStore
from ts.sequence.stores.store import Commit, StoreError, StoreSettings


def settings(**changes: object) -> StoreSettings:
    values = {"model": "m/1", "owner": "a/1/1", "lease": 0.0, "lifetime": 60.0, "kept": 2}
    return StoreSettings(**{**values, **changes})  # type: ignore[arg-type]


def count(path: Path, table: str) -> int:
    with sqlite3.connect(path) as database:
        found: int = database.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
    return found


def commit(store: FileStore, sequence_id: str, state: bytes | None, *, closed: str = "") -> list[bool]:
    (acquired,) = store.acquire([sequence_id])
    assert acquired.lease is not None
    return store.commit([Commit(acquired.lease, state, closed, [(0, "r", b"answer")])])


def test_only_its_owner_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "sequences.db"
    FileStore(settings(), str(path), fsync=True).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("fsync", [False, True])
def test_a_full_disk_is_told_and_nothing_is_committed(tmp_path: Path, fsync: bool) -> None:
    store = FileStore(settings(), str(tmp_path / "s.db"), fsync=fsync)
    commit(store, "s", b"before")
    pages = store._database.execute("PRAGMA page_count").fetchone()[0]
    store._database.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StoreError, match="is full: the disk has no room left"):
        commit(store, "s", b"x" * 1_000_000)
    store._database.execute("PRAGMA max_page_count = 1000000")
    assert store.acquire(["s"])[0].state == b"before"
    assert commit(store, "s", b"after") == [True]


def test_a_file_that_is_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    path.write_bytes(b"this is no database, whatever its name says" * 100)
    with pytest.raises(StoreError, match="damaged or no sequence store"):
        FileStore(settings(), str(path), fsync=False)
    with pytest.raises(StoreError, match="cannot be used: Is a directory"):
        FileStore(settings(), str(tmp_path), fsync=False)


def test_a_store_of_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    FileStore(settings(), str(path), fsync=False).close()
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA user_version = 99")
    with pytest.raises(StoreError, match="of version 99; this server reads 1"):
        FileStore(settings(), str(path), fsync=False)


def test_it_waits_for_a_lock_but_not_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "s.db"
    store = FileStore(settings(), str(path), fsync=False)
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    threading.Timer(0.1, other.execute, ["COMMIT"]).start()
    assert commit(store, "s", b"state") == [True]
    other.execute("BEGIN IMMEDIATE")
    monkeypatch.setattr(file, "_LOCK_LIMIT", 0.05)
    with pytest.raises(StoreError, match="was locked by another process"):
        commit(store, "s", b"state")


def test_what_is_abandoned_is_swept_and_then_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "s.db"
    monkeypatch.setattr(file, "REMEMBERED_SECONDS", 0.0)
    abandoned = FileStore(settings(lifetime=0.0), str(path), fsync=False)
    commit(abandoned, "abandoned", b"state")
    store = FileStore(settings(), str(path), fsync=False)
    commit(store, "live", b"state")
    commit(store, "ended", None, closed="ended")
    store.sweep()
    assert store.acquire(["live"])[0].state == b"state"
    store.sweep()
    assert (count(path, "sequences"), count(path, "answers")) == (1, 1)
