"""The file store: what it refuses, what it sweeps, and that nothing of a failed commit is left."""

import sqlite3
import stat
import threading
from pathlib import Path

import pytest

from ts.sequence.stores import file, file_sweep, sqlite_file
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
    pages = store._execute("PRAGMA page_count").fetchone()[0]
    store._execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StoreError, match="is full: the disk has no room left"):
        commit(store, "s", b"x" * 1_000_000)
    store._execute("PRAGMA max_page_count = 1000000")
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
    with pytest.raises(StoreError, match="of version 99; this server reads 4"):
        FileStore(settings(), str(path), fsync=False)


def test_it_waits_for_a_lock_but_not_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "s.db"
    store = FileStore(settings(), str(path), fsync=False)
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    threading.Timer(0.1, other.execute, ["COMMIT"]).start()
    assert commit(store, "s", b"state") == [True]
    other.execute("BEGIN IMMEDIATE")
    monkeypatch.setattr(sqlite_file, "_LOCK_LIMIT", 0.05)
    with pytest.raises(StoreError, match="was locked by another process"):
        commit(store, "s", b"state")


def test_what_is_abandoned_is_swept_and_then_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "s.db"
    for module in (file, file_sweep):
        monkeypatch.setattr(module, "REMEMBERED_SECONDS", 0.0)
    monkeypatch.setattr(file_sweep, "_INTERVAL", 0.0)
    abandoned = FileStore(settings(lifetime=0.0), str(path), fsync=False)
    commit(abandoned, "abandoned", b"state")
    store = FileStore(settings(), str(path), fsync=False)
    commit(store, "live", b"state")
    commit(store, "ended", None, closed="ended")
    store.sweep()
    assert store.acquire(["live"])[0].state == b"state"
    store.sweep()
    assert (count(path, "sequences"), count(path, "answers")) == (1, 1)


def entries(path: Path) -> int:
    return count(path, "journal")


def test_commits_go_to_a_journal_and_many_at_once_to_the_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file, "_MOST_JOURNALED", 3)
    path = tmp_path / "s.db"
    store = FileStore(settings(lease=60.0), str(path), fsync=False)
    (lease,) = (each.lease for each in store.acquire(["s"]))
    assert lease is not None
    for number in range(3):
        store.tidy()
        assert entries(path) == number
        slot = lease.place(f"r{number}", first=False)
        assert store.commit([Commit(lease, b"%d" % number, "", [(slot, f"r{number}", b"answer")])]) == [True]
    store.tidy()
    assert entries(path) == 0
    assert store.find("s", "r0") is None
    assert store.find("s", "r2") == b"answer"


def test_whoever_goes_on_reads_what_a_dead_process_left_in_the_journal(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    dead = FileStore(settings(), str(path), fsync=False)
    commit(dead, "s", b"state")
    assert entries(path) == 1
    store = FileStore(settings(owner="b/1/1"), str(path), fsync=False)
    ((lease, state),) = store.acquire(["s"])
    assert (state, entries(path)) == (b"state", 0)
    assert lease is not None and lease.first_id == "r"
    assert store.find("s", "r") == b"answer"


def test_a_commit_of_what_was_taken_over_is_refused_whatever_the_others_of_its_batch_are(tmp_path: Path) -> None:
    path = str(tmp_path / "s.db")
    stale = FileStore(settings(), path, fsync=False)
    leases = [each.lease for each in stale.acquire(["kept", "taken"])]
    assert None not in leases
    other = FileStore(settings(owner="b/1/1"), path, fsync=False)
    other.acquire(["taken"])
    batch = [Commit(lease, b"mine", "", [(0, "r", b"answer")]) for lease in leases if lease is not None]
    assert stale.commit(batch) == [True, False]
    assert stale.commit(batch[1:]) == [False]
    assert stale.commit(batch[:1]) == [True]
    assert [each.state for each in other.acquire(["kept", "taken"])] == [b"mine", None]


def test_a_sequence_that_was_forgotten_cannot_be_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "s.db")
    for module in (file, file_sweep):
        monkeypatch.setattr(module, "REMEMBERED_SECONDS", 0.0)
    monkeypatch.setattr(file_sweep, "_INTERVAL", 0.0)
    store = FileStore(settings(lifetime=0.0), path, fsync=False)
    (lease,) = (each.lease for each in store.acquire(["s"]))
    assert lease is not None
    for _ in range(2):  # it was abandoned, and then nothing has to be known of it any longer
        FileStore(settings(), path, fsync=False).sweep()
    assert store.commit([Commit(lease, b"state", "", [(0, "r", b"answer")])]) == [False]
    assert store.acquire(["s"])[0].state is None


def test_what_is_large_is_written_once(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    store = FileStore(settings(), str(path), fsync=False)
    commit(store, "s", b"small")
    commit(store, "s", large := b"x" * 100_000)
    assert entries(path) == 0
    assert store.acquire(["s"])[0].state == large


def test_one_process_sweeps_for_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "s.db"
    one, other = (FileStore(settings(lifetime=0.0), str(path), fsync=False) for _ in range(2))
    one.sweep()
    for module in (file, file_sweep):
        monkeypatch.setattr(module, "REMEMBERED_SECONDS", 0.0)
    commit(one, "ended", None, closed="ended")
    for store in (one, other):
        store.sweep()
    assert count(path, "sequences") == 1
    with sqlite3.connect(path) as database:
        database.execute("UPDATE sweeps SET next_at = 0")
    other.sweep()
    assert count(path, "sequences") == 0


def test_a_sweep_does_not_look_at_every_sequence(tmp_path: Path) -> None:
    store = FileStore(settings(), str(tmp_path / "s.db"), fsync=False)
    plan = store._execute("EXPLAIN QUERY PLAN SELECT number FROM sequences WHERE expires_at < 1").fetchall()
    assert "sequences_by_expiry" in str(plan)


def test_the_sequences_of_others_keep_their_journal_when_one_is_taken_anew_or_was_given_back(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    worker, mate = (FileStore(settings(lease=60.0), str(path), fsync=False) for _ in range(2))
    (steady,) = (each.lease for each in mate.acquire(["steady"]))
    assert steady is not None
    for _ in range(2):  # the second time because its state had to make room
        (held,) = (each.lease for each in worker.acquire(["s"]))
    assert held is not None
    assert mate.commit([Commit(steady, b"1", "", [(0, "r", b"answer")])]) == [True]
    assert entries(path) == 1
    worker.release([(held, 0.0)])
    mate.acquire(["s"])
    assert mate.commit([Commit(steady, b"2", "", [(0, "r", b"answer")])]) == [True]
    assert entries(path) == 1
    assert worker.commit([Commit(held, b"late", "", [(0, "r", b"answer")])]) == [False]
