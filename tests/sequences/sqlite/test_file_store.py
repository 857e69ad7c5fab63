"""The file store: what it refuses, what it keeps, and that nothing of a failed commit is left."""

import sqlite3
import stat
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.sequences.sqlite.file_stores import answer_to, change, lease_on, open_store, rows, run, settings, step

from ts.protocol.boot_clock import boot_time
from ts.sequences.sqlite import file_clock, file_presence, file_sweep, sqlite_file
from ts.sequences.sqlite import file_store as file
from ts.sequences.sqlite.file_store import FileStore
from ts.sequences.steps.record import digest_of
from ts.sequences.steps.stores.store import IDLE, Acquired, HeldElsewhere, OtherVersion, StoreError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s.db"


def count(path: Path, table: str) -> int:
    found: int = rows(path, f"SELECT count(*) FROM {table}")[0][0]
    return found


def state_of(store: FileStore, sequence_id: str) -> bytes | None:
    return store.acquire([sequence_id])[0].state


# The file


def test_only_its_owner_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "sequences.db"
    FileStore(settings(), str(path), fsync=True).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("fsync", [False, True])
def test_a_full_disk_is_told_and_nothing_is_committed(path: Path, fsync: bool) -> None:
    store = FileStore(settings(), str(path), fsync=fsync)
    lease = run(store, "s", b"before")
    pages = store._execute("PRAGMA page_count").fetchone()[0]
    store._execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StoreError, match="is full: the disk has no room left"):
        store.commit([step(lease, b"x" * 1_000_000)])
    assert store.find("s", 1, 1) == answer_to(1)
    store._execute("PRAGMA max_page_count = 1000000")
    assert state_of(store, "s") == b"before"
    run(store, "s", b"after")
    assert state_of(store, "s") == b"after"


def test_a_file_that_is_something_else_is_refused(path: Path, tmp_path: Path) -> None:
    path.write_bytes(b"this is no database, whatever its name says" * 100)
    with pytest.raises(StoreError, match=r"is no sequence store, or damaged where the file begins: .*; only a backup"):
        open_store(path)
    with pytest.raises(StoreError, match="cannot be used: it is a folder, not a regular file"):
        open_store(tmp_path)


def test_a_store_of_another_version_is_refused(path: Path) -> None:
    open_store(path).close()
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA user_version = 99")
    with pytest.raises(StoreError, match="of version 99; this server reads 5"):
        open_store(path)


def test_it_waits_for_a_lock_but_not_for_ever(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(path)
    lease = lease_on(store, "s")
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    threading.Timer(0.1, other.execute, ["COMMIT"]).start()
    assert store.commit([step(lease, b"state")]) == [True]
    other.execute("BEGIN IMMEDIATE")
    monkeypatch.setattr(sqlite_file, "_LOCK_LIMIT", 0.05)
    with pytest.raises(StoreError, match="was locked by another process"):
        store.commit([step(lease, b"state")])


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm"])
@pytest.mark.parametrize("happens", ["deleted", "replaced", "moved"])
@pytest.mark.parametrize("size", [10, 100_000])
def test_a_file_that_vanishes_is_noticed_at_the_next_commit(path: Path, suffix: str, happens: str, size: int) -> None:
    store = open_store(path)
    lease = run(store, "s", b"1")
    gone = Path(f"{path}{suffix}")
    if happens == "deleted":
        gone.unlink()
    elif happens == "moved":
        gone.rename(path.with_name("elsewhere"))
    else:
        path.with_name("new").write_bytes(gone.read_bytes())
        path.with_name("new").rename(gone)
    for _ in range(2):  # and for ever after
        commit = step(lease, b"x" * size)
        with pytest.raises(StoreError, match="was deleted or replaced while this process used it"):
            store.commit([commit])
        with pytest.raises(StoreError, match="did not confirm"):
            store.settle([commit])
    with pytest.raises(StoreError, match="was deleted or replaced"):
        store.acquire(["other"])
    with pytest.raises(StoreError, match="was deleted or replaced"):
        store.peek("s")


@pytest.mark.parametrize("gone", ["link", "target", "target-wal", "folder", "folder above", "link to folder"])
def test_a_file_behind_symbolic_links_that_vanishes_is_noticed(tmp_path: Path, gone: str) -> None:
    folder = tmp_path / "above" / "folder"
    folder.mkdir(parents=True)
    (tmp_path / "way").symlink_to(folder)
    target, link = folder / "target.db", tmp_path / "link.db"
    link.symlink_to(tmp_path / "way" / "target.db")
    run(open_store(target, lease=0.0), "s", b"1")
    store = open_store(link, owner="c/1/1")
    lease = lease_on(store, "s")
    assert store.commit([step(lease, b"2")]) == [True]
    paths = {"link": link, "target": target, "target-wal": Path(f"{target}-wal"), "folder": folder}
    path = {**paths, "folder above": folder.parent, "link to folder": tmp_path / "way"}[gone]
    path.rename(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match="was deleted or replaced while this process used it"):
        store.commit([step(lease, b"3")])


def test_without_inotify_it_is_noticed_as_well(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_presence, "_notices", lambda _: None)
    store = open_store(path)
    lease = lease_on(store, "s")
    for _ in range(3):
        assert store.commit([step(lease, b"state")]) == [True]
    Path(f"{path}-wal").unlink()
    with pytest.raises(StoreError, match="was deleted or replaced while this process used it"):
        store.commit([step(lease, b"state")])


def test_what_others_do_in_the_folder_is_no_trouble(path: Path) -> None:
    store = open_store(path)
    lease = lease_on(store, "s")
    for number in range(20):
        path.with_name(f"other{number}").touch()
        assert store.commit([step(lease, b"state")]) == [True]
        path.with_name(f"other{number}").unlink()
    other = open_store(path, owner="b/1/1")
    run(other, "t", b"state")
    other.close()
    assert store.commit([step(lease, b"state")]) == [True]


def test_opening_a_file_again_keeps_the_locks_of_this_process(path: Path) -> None:
    store = open_store(path)
    run(store, "s", b"state")
    open_store(path).close()
    locked = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    assert any(each[5].endswith(f":{path.stat().st_ino}") for each in locked)


# Sequences


def test_a_record_comes_back_whole(path: Path) -> None:
    store = open_store(path)
    lease = lease_on(store, "s")
    for number in range(1, 5):
        assert store.commit([step(lease, b"%d" % number, request_id=f"r{number}")]) == [True]
    told = store.peek("s")
    (acquired,) = open_store(path).acquire(["s"])
    assert acquired.state == b"4"
    assert acquired.lease is not None
    for record in (told, acquired.lease.record):
        assert record is not None
        assert (record.incarnation, record.token, record.version, record.last) == (1, "token 1", "1.0", 4)
        assert list(record.kept or ()) == [1, 3, 4]
        assert [record.has_id(f"r{number}") for number in range(6)] == [False, True, True, True, True, False]
    assert [store.find("s", 1, number) for number in range(6)] == [
        *(None, answer_to(1), None, answer_to(3), answer_to(4), None)
    ]
    assert store.find("s", 2, 1) is None


def test_ids_are_kept_in_chunks_and_the_oldest_are_forgotten(path: Path) -> None:
    store = open_store(path, most_ids=1_000)
    lease = lease_on(store, "s")
    for number in range(3_000):
        store.commit([step(lease, None, request_id=f"r{number}")])
        store.tidy()
        if number == 1_500:
            store.acquire(["other"])
            before = rows(path, "SELECT key, digests FROM ids ORDER BY key")
            store.commit([step(lease, None, request_id="one more")])
            store.acquire(["other"])
            after = rows(path, "SELECT key, digests FROM ids ORDER BY key")
            assert sum(each not in before for each in after) == 1
    record = lease_on(store, "s").record
    assert record.has_id("r2999") and record.has_id("r2000")
    assert not record.has_id("r1")
    assert record.forgotten_ids
    assert count(path, "ids") < 6


@pytest.mark.parametrize("earlier", [0, 4])
def test_a_long_journal_leaves_the_latest_state_and_all_ids_in_order(path: Path, earlier: int) -> None:
    store = open_store(path)
    lease = lease_on(store, "s")
    for number in range(earlier):  # of another incarnation, in the same journal
        store.commit([step(lease, b"old", request_id=f"old {number}")])
    names = [f"r{number}" if number != 5 else "" for number in range(1, 13)]
    for number, name in enumerate(names, 1):
        commit = step(lease, b"%d" % number, request_id=name, begins=number == 1)
        assert store.commit([commit]) == [True]
    (acquired,) = open_store(path).acquire(["s"])
    assert acquired.lease is not None
    record = acquired.lease.record
    assert (acquired.state, record.last, list(record.kept or ())) == (b"12", 12, [1, 11, 12])
    assert record.ids == b"".join(digest_of(name) for name in names if name)
    assert [store.find("s", record.incarnation, number) for number in (1, 10, 12)] == [
        *(answer_to(1), None, answer_to(12))
    ]


def test_an_incarnation_has_ids_and_answers_of_its_own(path: Path) -> None:
    store = open_store(path)
    lease = lease_on(store, "s")
    for number in range(3):
        store.commit([step(lease, b"old", request_id=f"r{number}")])
    store.commit([step(lease, b"new", request_id="first", begins=True)])
    for each in (store.peek("s"), lease_on(open_store(path), "s").record):
        assert each is not None
        assert (each.incarnation, each.last, list(each.kept or ())) == (2, 1, [1])
        assert not each.has_id("r1") and each.has_id("first")
        assert each.is_earlier("token 1") and not each.is_earlier("token 2")
    assert store.find("s", 1, 1) is None


def test_ids_and_models_may_have_any_text(path: Path) -> None:
    names = ["", "\0", "a\0b", "ä", "\ud800", "'; DROP TABLE sequences", "x" * 10_000]
    store = open_store(path, model="m\udfff/\0")
    for number, name in enumerate(names):
        run(store, name, b"%d" % number)
    store.acquire(["flush"])
    for number, name in enumerate(names):
        told = store.peek(name)
        assert told is not None and told.last == 1
        assert state_of(store, name) == b"%d" % number


@pytest.mark.parametrize("size", [0, 2**14, 2**14 + 1, 2**15, 3_000_000])
def test_a_state_of_any_size(path: Path, size: int) -> None:
    store = open_store(path)
    lease = run(store, "s", b"x" * size)
    assert state_of(open_store(path), "s") == b"x" * size
    lease = lease_on(store, "s")
    store.commit([step(lease, b"small")])
    assert state_of(open_store(path), "s") == b"small"
    assert count(path, "states") == 0
    lease = lease_on(store, "s")
    store.commit([step(lease, b"y" * size)])
    store.commit([step(lease, None)])
    acquired = store.acquire(["s"])[0]
    assert acquired.state is None and acquired.refusal is None


def test_the_log_is_cut_after_a_large_state(path: Path) -> None:
    store = open_store(path)
    lease = run(store, "s", b"x" * 100_000_000)
    for _ in range(3):
        store.commit([step(lease, b"x" * 100_000)])
    assert Path(f"{path}-wal").stat().st_size < 80 * 2**20


def test_what_is_closed_has_no_state_and_no_lease(path: Path) -> None:
    store = open_store(path)
    run(store, "s", b"1", b"2", closed="ended")
    other = open_store(path, owner="b/1/1", version="2.0")
    (acquired,) = other.acquire(["s"])
    assert acquired.lease is not None
    assert (acquired.state, acquired.refusal, acquired.lease.record.closed) == (None, None, "ended")
    assert acquired.lease.record.last == 2


# Leases


def test_a_commit_of_what_was_taken_over_is_refused_whatever_the_others_of_its_batch_are(path: Path) -> None:
    stale = open_store(path, lease=0.0)
    leases = [lease_on(stale, each) for each in ("kept", "taken")]
    other = open_store(path, owner="b/1/1", lease=0.0)
    other.acquire(["taken"])
    assert stale.commit([step(lease, b"mine") for lease in leases]) == [True, False]
    assert stale.commit([step(leases[1], b"mine")]) == [False]
    assert stale.commit([step(leases[0], b"mine")]) == [True]
    assert [each.state for each in other.acquire(["kept", "taken"])] == [b"mine", None]
    assert other.find("taken", 1, 1) is None


def test_another_version_gets_no_lease_while_the_sequence_is_open(path: Path) -> None:
    one = open_store(path, state_version="a")
    lease = lease_on(one, "s")
    one.commit([step(lease, b"state", state_version="a")])
    two = open_store(path, owner="b/1/1", version="2.0")
    assert two.acquire(["s"]) == [Acquired(None, None, OtherVersion("1.0", is_served=True))]
    assert one.commit([step(lease, b"state")]) == [True]
    one.release([(lease, boot_time() + 60)])
    for _ in range(2):  # nobody has that version: only another sequence can begin
        (acquired,) = two.acquire(["s"])
        assert acquired.lease is not None and acquired.lease.record.last == 2
        assert (acquired.state, acquired.refusal) == (None, OtherVersion("1.0", is_served=False))
    like_one = open_store(path, owner="b/1/1", version="2.0", state_version="a")
    assert state_of(like_one, "s") == b"state"


def test_idle_time_runs_out_for_what_was_released(path: Path) -> None:
    store = open_store(path)
    now = boot_time()
    for name, idle_at in (("long", now - 10), ("just", now - 1), ("not", now + 60)):
        store.release([(run(store, name, b"state"), idle_at)])
    other = open_store(path, owner="b/1/1")
    long, just, never = other.acquire(["long", "just", "not"], {"just": now - 5})
    assert long.lease and just.lease and never.lease
    assert (long.state, long.lease.record.closed) == (None, IDLE)
    assert (just.state, never.state) == (b"state", b"state")


def test_a_moment_that_a_wall_clock_sets_changes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, other = open_store(path), open_store(path, owner="b/1/1")
    run(store, "s", b"state")
    for shift in (-10_000_000, 10_000_000):
        monkeypatch.setattr("time.time", lambda shift=shift: 1.8e9 + shift)
        assert other.acquire(["s"]) == [Acquired(None, None, HeldElsewhere())]
        store.sweep()
        assert state_of(store, "s") == b"state"


def test_after_a_reboot_leases_are_void_and_idle_time_continues(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = time.clock_gettime
    with monkeypatch.context() as yesterday:
        yesterday.setattr(time, "clock_gettime", lambda clock: real(clock) + 1e6)
        yesterday.setattr(file_clock, "boot_id", lambda: "of yesterday")
        store = open_store(path, lease=1e9)
        now = boot_time()
        run(store, "held", b"state")
        for name, left in (("short", 30), ("over", -30)):
            store.release([(run(store, name, b"state"), now + left)])
        run(store, "journaled", b"state")
        store.close()
    other = open_store(path, owner="b/1/1")
    moments = dict(rows(path, "SELECT CAST(id AS TEXT), expires_at FROM sequences"))
    expected = {"held": 60, "short": 30, "over": -30, "journaled": 60}
    assert moments == {name: pytest.approx(boot_time() + left, abs=20) for name, left in expected.items()}
    held, short, over, journaled = other.acquire(["held", "short", "over", "journaled"])
    assert [each.state for each in (held, short, over, journaled)] == [b"state", b"state", None, b"state"]
    assert over.lease and over.lease.record.closed == IDLE


# Upkeep


def sweep_now(store: FileStore, path: Path) -> None:
    change(path, "UPDATE clock SET sweep_at = 0")
    store.sweep()


def test_what_is_abandoned_is_swept_and_then_forgotten(path: Path) -> None:
    abandoned = open_store(path, lifetime=-4000.0, lease=0.0, remembered=-1.0)
    run(abandoned, "abandoned", b"state")
    store = open_store(path)
    run(store, "live", b"state")
    run(open_store(path, remembered=-1.0), "ended", None, closed="ended")
    sweep_now(abandoned, path)
    assert state_of(store, "live") == b"state"
    sweep_now(store, path)
    assert (count(path, "sequences"), count(path, "answers")) == (1, 1)


def test_that_it_has_ended_is_remembered_as_long_as_is_settled(path: Path) -> None:
    store = open_store(path, remembered=1_000.0)
    now = boot_time()
    run(store, "closed", None, closed="ended")
    store.end([run(store, "ended", b"state")])
    store.release([(run(store, "idle", b"state"), now - 1)])
    store.acquire(["idle"])
    moments = rows(path, "SELECT expires_at FROM sequences")
    assert [each for (each,) in moments] == [pytest.approx(now + 1_000, abs=20)] * 3
    sweep_now(store, path)
    assert count(path, "sequences") == 3


def entries(path: Path) -> int:
    return count(path, "changes")


def test_commits_go_to_a_journal_and_many_at_once_to_the_tables(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file, "_MOST_JOURNALED", 3)
    store = open_store(path)
    lease = lease_on(store, "s")
    for number in range(3):
        store.tidy()
        assert entries(path) == number
        assert store.commit([step(lease, b"%d" % number)]) == [True]
    store.tidy()
    assert entries(path) == 0
    assert [store.find("s", 1, number) for number in range(1, 4)] == [answer_to(each) for each in range(1, 4)]


def test_whoever_continues_reads_what_a_dead_process_left_in_the_journal(path: Path) -> None:
    dead = open_store(path, lease=0.0)
    run(dead, "s", b"state")
    assert entries(path) == 1
    store = open_store(path, owner="b/1/1")
    (acquired,) = store.acquire(["s"])
    assert (acquired.state, entries(path)) == (b"state", 0)
    assert acquired.lease is not None and acquired.lease.record.last == 1
    assert store.find("s", 1, 1) == answer_to(1)


def test_a_sequence_that_was_forgotten_cannot_be_written_to(path: Path) -> None:
    store = open_store(path, lifetime=-4000.0, lease=0.0)
    lease = run(store, "s", b"state")
    for _ in range(2):  # it was abandoned, and then nothing has to be known of it any longer
        sweep_now(open_store(path, remembered=-1.0), path)
    assert store.commit([step(lease, b"state")]) == [False]
    assert state_of(store, "s") is None


def test_what_is_large_is_written_once(path: Path) -> None:
    store = open_store(path)
    lease = run(store, "s", b"small")
    store.commit([step(lease, large := b"x" * 100_000)])
    assert entries(path) == 0
    assert state_of(store, "s") == large


def test_a_large_answer_is_written_once(path: Path) -> None:
    store = open_store(path)
    commit = step(lease_on(store, "s"), b"state")
    large = commit._replace(kept=[commit.kept[0]._replace(answer=b"x" * 100_000)])
    assert store.commit([large]) == [True]
    assert entries(path) == 0
    assert store.find("s", 1, 1) == b"x" * 100_000


def test_a_batch_of_any_size(path: Path) -> None:
    store = open_store(path)
    leases = [each.lease for each in store.acquire([f"s{number}" for number in range(1_000)])]
    for size in (1, 2, 255, 256, 257, 1_000):
        commits = [step(lease, b"%d" % size) for lease in leases[:size] if lease]
        assert store.commit(commits) == [True] * size
        assert state_of(open_store(path), f"s{size - 1}") == b"%d" % size
        leases = [each.lease for each in store.acquire([f"s{number}" for number in range(1_000)])]


def test_one_process_sweeps_for_all(path: Path) -> None:
    one, other = open_store(path, remembered=-1.0), open_store(path, remembered=-1.0)
    one.sweep()
    run(one, "ended", None, closed="ended")
    for store in (one, other):
        store.sweep()
    assert count(path, "sequences") == 1
    sweep_now(other, path)
    assert count(path, "sequences") == 0


def test_a_sweep_does_not_look_at_every_sequence(path: Path) -> None:
    store = open_store(path)
    plan: Any = store._execute(f"EXPLAIN QUERY PLAN {file_sweep._OVERDUE}", (1,)).fetchall()
    assert "sequences_by_expiry" in str(plan)


def test_the_sequences_of_others_keep_their_journal_when_one_is_taken_again_or_was_given_back(path: Path) -> None:
    worker, mate = (open_store(path) for _ in range(2))
    steady = lease_on(mate, "steady")
    for _ in range(2):  # the second time because its state had to make room
        held = lease_on(worker, "s")
    assert mate.commit([step(steady, b"1")]) == [True]
    assert entries(path) == 1
    worker.release([(held, boot_time() + 60)])
    mate.acquire(["s"])
    assert mate.commit([step(steady, b"2")]) == [True]
    assert entries(path) == 1
    assert worker.commit([step(held, b"late")]) == [False]


# Commits that fail


def test_it_is_settled_whether_a_commit_was_written(path: Path) -> None:
    store = open_store(path, lease=0.0)
    lease = run(store, "s", b"1")
    written = step(lease, b"2")
    store.commit([written])
    assert store.settle([written]) == [True]
    store.acquire(["else"])
    assert store.settle([written]) == [True]
    never = step(lease, b"3")
    assert store.settle([never]) == [False]
    other = open_store(path, owner="b/1/1")
    theirs = lease_on(other, "s")
    assert store.settle([never]) == [None]
    other.commit([step(theirs, b"theirs", begins=True)])
    assert store.settle([written, never]) == [None, None]


def test_the_same_step_of_another_holder_is_not_taken_for_the_own(path: Path) -> None:
    store, other = (open_store(path, lease=0.0, owner=f"{name}/1/1") for name in "ab")
    lease, theirs = lease_on(store, "s"), lease_on(other, "s")
    assert other.commit([step(theirs, b"theirs")]) == [True]
    late = step(lease, b"mine")
    assert store.commit([late]) == [False]
    assert store.settle([late]) == [None]
    other.acquire(["else"])
    assert store.settle([late]) == [None]


def test_the_same_id_is_recognized_however_late(path: Path) -> None:
    store = open_store(path)
    lease = lease_on(store, "s")
    for number in range(100):
        store.commit([step(lease, None, request_id=f"r{number}")])
    assert lease.record.ids is not None and digest_of("r0") in lease.record.ids
    assert lease_on(open_store(path), "s").record.has_id("r0")
