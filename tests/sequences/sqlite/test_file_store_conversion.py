"""Files of the file store's earlier version: converted when opened, or imported, whatever happens meanwhile."""

import multiprocessing
import os
import signal
import sqlite3
from pathlib import Path
from typing import Any

import msgpack
import pytest
from tests.sequences.sqlite.file_store_v4 import OldFile
from tests.sequences.sqlite.file_stores import open_store, rows, run, step

from ts.protocol.boot_clock import boot_time
from ts.sequences.sqlite import file_opening, file_v4
from ts.sequences.sqlite.file_store import FileStore
from ts.sequences.steps.record import digest_of_body
from ts.sequences.steps.stores.store import IDLE, OtherVersion


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "m.db"


def read(path: Path, **changes: Any) -> FileStore:
    return open_store(path, owner="new/1/1", kept=3, **changes)


@pytest.mark.parametrize("journaled", [False, True])
def test_sequences_get_numbers_and_go_on(path: Path, journaled: bool) -> None:
    old = OldFile(path)
    old.add("m/1.0", "s", 7, state=b"seven", incarnation=4, journaled=journaled)
    old.add("m/1.0", "one", 1, journaled=journaled)
    old.add("m/1.0", "none", 0, journaled=journaled)
    old.add("other/v/2", "s", 2, journaled=journaled)
    store = read(path)
    (acquired,) = store.acquire(["s"])
    assert acquired.lease is not None and acquired.state == b"seven"
    record = acquired.lease.record
    assert (record.incarnation, record.last, record.version, record.closed) == (4, 7, "1.0", "")
    assert record.token == "", "the next step names it"
    kept = record.kept or {}
    assert {number: each.request_id for number, each in kept.items()} == {1: "r1", 5: "r5", 6: "r6", 7: "r7"}
    assert (kept[1].digest, kept[5].digest) == (digest_of_body(b"body"), b"")
    assert record.has_id("r1") and record.has_id("r7")
    for number in (1, 5, 6, 7):
        answer = store.find("s", 4, number)
        assert answer is not None
        assert msgpack.unpackb(answer) == [200, "", [["x-step", str(number)]], b"answer %d" % number, None]
    assert store.find("s", 4, 4) is None
    assert store.commit([step(acquired.lease, b"eight")]) == [True]
    one, none = store.acquire(["one", "none"])
    assert one.lease and none.lease
    assert (one.lease.record.last, none.lease.record.last) == (1, 0)
    other = read(path, model="other/v", version="2")
    assert other.acquire(["s"])[0].state == b"state"
    elsewhere = open_store(path, owner="b/1/1", version="2.0")
    assert elsewhere.acquire(["one"])[0].refusal == OtherVersion("1.0", is_served=True)


def test_moments_become_those_of_the_boot(path: Path) -> None:
    old = OldFile(path)
    old.add("m/1.0", "open", 2, idle_in=100.0)
    old.add("m/1.0", "idle", 2, idle_in=-100.0)
    old.add("m/1.0", "ended", 2, closed="ended", state=None, idle_in=3000.0)
    old.close()
    store = read(path)
    moments = dict(rows(path, "SELECT CAST(id AS TEXT), expires_at FROM sequences"))
    expected = {"open": 100.0, "idle": -100.0, "ended": 3000.0}
    assert moments == {name: pytest.approx(boot_time() + left, abs=20) for name, left in expected.items()}
    records = [each.lease.record.closed for each in store.acquire(["open", "idle", "ended"]) if each.lease]
    assert records == ["", IDLE, "ended"]


def test_a_server_of_the_old_version_can_no_longer_write(path: Path) -> None:
    old = OldFile(path)
    old.add("m/1.0", "s", 2)
    old.commit_as_then()
    old.database.execute("DELETE FROM journal")
    read(path)
    with pytest.raises(sqlite3.OperationalError, match="no such table"):
        old.commit_as_then()


def test_what_cannot_be_converted_is_set_aside(path: Path) -> None:
    old = OldFile(path)
    for name in ("a", "b", "c"):
        old.add("m/1.0", name, 2)
    old.database.execute("UPDATE answers SET answer = 'no answer' WHERE key % 1099511627776 = 2")
    old.database.execute("INSERT INTO journal (entry) VALUES (x'c1')")
    store = read(path)
    assert [each.state for each in store.acquire(["a", "c"])] == [b"state", b"state"]
    problems = [problem for (problem,) in rows(path, "SELECT problem FROM damaged")]
    assert len(problems) == 2
    assert "journal" in problems[0] and "could not be converted" in problems[1]


def test_of_two_versions_with_one_sequence_the_one_used_last_wins(path: Path) -> None:
    old = OldFile(path)
    old.add("m/1.0", "s", 2, state=b"later", idle_in=50.0)
    old.add("m/2.0", "s", 3, state=b"earlier", idle_in=40.0)
    old.add("m/1.0", "t", 2, state=None, closed="ended", idle_in=3000.0)
    old.add("m/2.0", "t", 3, state=b"open", idle_in=40.0)
    store = read(path)
    assert store.acquire(["s"])[0].state == b"later"
    assert read(path, version="2.0").acquire(["t"])[0].state == b"open"
    ((name, problem, content),) = rows(path, "SELECT CAST(id AS TEXT), problem, content FROM damaged")
    assert name == "s" and "another version of the model had an open sequence" in problem
    assert msgpack.unpackb(content)["state"] == b"earlier"


def open_in_process(path: Path, dies_after: int) -> None:
    """Open a file and be killed after so many sequences."""
    count = 0
    put = file_v4.put_latest

    def put_and_die(*arguments: Any) -> None:
        nonlocal count
        put(*arguments)
        count += 1
        if count == dies_after:
            os.kill(os.getpid(), signal.SIGKILL)

    file_v4.put_latest = file_opening.put_latest = put_and_die  # type: ignore[assignment]
    read(path)
    os._exit(0)


def run_process(path: Path, dies_after: int) -> int | None:
    process = multiprocessing.get_context("fork").Process(target=open_in_process, args=(path, dies_after))
    process.start()
    process.join(60)
    return process.exitcode


@pytest.mark.parametrize("dies_after", [1, 5])
def test_a_process_that_is_killed_while_it_converts_leaves_all_or_nothing(path: Path, dies_after: int) -> None:
    old = OldFile(path)
    for number in range(5):
        old.add("m/1.0", f"s{number}", 2, state=b"%d" % number)
    old.close()
    assert run_process(path, dies_after) == -signal.SIGKILL
    assert rows(path, "PRAGMA user_version") == [(4,)]
    assert rows(path, "SELECT count(*) FROM sequences") == [(5,)]
    store = read(path)
    assert [each.state for each in store.acquire([f"s{number}" for number in range(5)])] == [
        b"0",
        b"1",
        b"2",
        b"3",
        b"4",
    ]


def test_processes_that_open_it_at_once_all_find_it_converted(path: Path) -> None:
    old = OldFile(path)
    old.database.execute("BEGIN")
    for number in range(500):
        old.add("m/1.0", f"s{number}", 2)
    old.database.execute("COMMIT")
    old.close()
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=open_in_process, args=(path, 0)) for _ in range(4)]
    for each in processes:
        each.start()
    for each in processes:
        each.join(60)
    assert [each.exitcode for each in processes] == [0] * 4
    assert rows(path, "SELECT count(*) FROM sequences") == [(500,)]
    assert rows(path, "SELECT count(*) FROM damaged") == [(0,)]


# Files of single versions


def old_files(folder: Path) -> None:
    one, two = OldFile(folder / "m@1.0.db"), OldFile(folder / "m@2.0.db")
    one.add("m/1.0", "a", 2, state=b"a of 1.0")
    one.add("m/1.0", "both", 2, state=b"both of 1.0", idle_in=50.0)
    two.add("m/2.0", "b", 3, state=b"b of 2.0", journaled=True)
    two.add("m/2.0", "both", 2, state=b"both of 2.0", idle_in=55.0)
    OldFile(folder / "mm@1.0.db").add("mm/1.0", "a", 2, state=b"of another model")
    one.close()


def check_imported(folder: Path) -> None:
    path = folder / "m.db"
    one, two = read(path), read(path, version="2.0")
    assert one.acquire(["a"])[0].state == b"a of 1.0"
    assert [each.state for each in two.acquire(["b", "both"])] == [b"b of 2.0", b"both of 2.0"]
    assert rows(path, "SELECT CAST(id AS TEXT) FROM damaged") == [("both",)]
    names = {each.name for each in folder.iterdir()}
    assert {"m@1.0.db.imported", "m@2.0.db.imported", "mm@1.0.db"} <= names
    assert not {"m@1.0.db", "m@2.0.db", "m@1.0.db-wal", "m@2.0.db-wal"} & names


def test_files_of_single_versions_are_imported_once(path: Path, tmp_path: Path) -> None:
    old_files(tmp_path)
    check_imported(tmp_path)
    check_imported(tmp_path)
    later = OldFile(tmp_path / "m@1.0.db")  # somebody has gone back to the older server meanwhile
    later.add("m/1.0", "c", 2, state=b"later")
    later.close()
    assert read(path).acquire(["c"])[0].state == b"later"
    assert (tmp_path / "m@1.0.db.imported.2").exists()
    assert (tmp_path / "m@1.0.db.imported").exists()


@pytest.mark.parametrize("dies_after", [1, 2, 3, 4, 5, 6, 7, 8])
def test_an_import_that_is_interrupted_is_made_once(path: Path, tmp_path: Path, dies_after: int) -> None:
    old_files(tmp_path)
    assert run_process(path, dies_after) == -signal.SIGKILL
    check_imported(tmp_path)


def test_an_import_that_ended_before_the_renaming_is_not_made_again(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old_files(tmp_path)
    with monkeypatch.context() as dying:
        dying.setattr(Path, "rename", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        assert run_process(path, 0) == -signal.SIGKILL
    assert (tmp_path / "m@1.0.db").exists()
    store = open_store(path, owner="new/1/1", kept=3)
    run(store, "a", b"next")
    check_a = open_store(path, owner="new/1/1").acquire(["a"])[0]
    assert check_a.state == b"next"
    assert not (tmp_path / "m@1.0.db").exists()
