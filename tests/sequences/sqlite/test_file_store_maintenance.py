"""The command `torchserve-py store` with files: what is found, what a repair leaves, and what is moved."""

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from tests.sequences.sqlite.file_stores import answer_to, change, lease_on, open_store, rows, run, step

from torchserve_py.cli import main
from ts.sequences.sqlite.file_store import FileStore
from ts.sequences.steps.stores.store import Unreadable


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s.db"


def fill(path: Path, **changes: object) -> FileStore:
    store = open_store(path, **changes)
    for name in ("a", "b"):
        lease = lease_on(store, name)
        for number in range(1, 6):
            store.commit([step(lease, b"%b %d" % (name.encode(), number), request_id=f"r{number}")])
    run(store, "over", b"1", b"2", closed="ended")
    run(store, "large", b"x" * 100_000)
    store.acquire(["not begun"])
    return store


def check(path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[str]]:
    status = main(["store", "check", str(path)])
    return status, capsys.readouterr().out.splitlines()


HEAD = "UPDATE sequences SET head = x'00' WHERE id = CAST('a' AS BLOB)"
STATE = "UPDATE sequences SET state = x'00' WHERE id = CAST('a' AS BLOB)"
IDS = "UPDATE ids SET digests = zeroblob(40) WHERE key / 1048576 = 1"
EARLIER = "UPDATE earlier SET tokens = x'00' WHERE sequence = 1"
ANSWER = "UPDATE answers SET answer = 'other' WHERE key = 1"
FENCE = "UPDATE sequences SET fence = 'no' WHERE id = CAST('a' AS BLOB)"
CLOSED = "UPDATE sequences SET closed = 'enxed' WHERE id = CAST('a' AS BLOB)"
NUMBER = "UPDATE sequences SET number = 77 WHERE id = CAST('a' AS BLOB)"


def test_a_sound_store_is_told_with_its_counts(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(path)
    assert check(path, capsys) == (0, ["sequences: 3 open, 1 over; damaged: 0; other problems: 0"])


@pytest.mark.parametrize(
    ("damage", "told", "done", "goes_on"),
    [
        (HEAD, "bytes are too few", "it is over, since its head was unreadable", False),
        (STATE, "checksum of its state", "it is over, since its state was unreadable", False),
        (IDS, "request ids cannot be read", "request ids were forgotten", True),
        (EARLIER, "tokens of the sequences", "the tokens of the sequences with its id were forgotten", True),
        (ANSWER, "kept answer to step 1 is wrong", "a kept answer was dropped", True),
        (FENCE, "no sense in fence", "what was lost is dropped, and it continues", True),
        (CLOSED, "no reason for its end", "it counts as open", True),
        (NUMBER, "checksum of its name", "it was dropped, since it is unknown whose it was", None),
    ],
)
def test_what_is_damaged_is_told_and_repaired(
    path: Path, capsys: pytest.CaptureFixture[str], damage: str, told: str, done: str, goes_on: bool | None
) -> None:
    store = fill(path)
    change(path, damage)
    status, (said, counts) = check(path, capsys)
    assert status == 1
    assert said.startswith("m 'a': ") and told in said
    assert "damaged: 1; other problems: 0" in counts
    assert main(["store", "repair", str(path)]) == 0
    said, counts = capsys.readouterr().out.splitlines()
    assert said.startswith("m 'a': ") and told in said and done in said
    assert counts == "repaired: 1"
    assert main(["store", "repair", str(path)]) == 0
    assert capsys.readouterr().out == "repaired: 0\n"
    assert check(path, capsys)[0] == 0
    other = open_store(path, owner="b/1/1")
    (acquired,) = other.acquire(["a"])
    assert acquired.lease is not None and acquired.refusal is None
    record = acquired.lease.record
    if goes_on is None:
        assert not record.has_begun
    else:
        assert (record.last, record.closed) == (5, "" if goes_on else "ended")
        assert acquired.state == (b"a 5" if goes_on else None)
        assert other.find("a", 1, 5) == answer_to(5)
    (sound,) = store.acquire(["b"])
    assert sound.state == b"b 5"


def test_whoever_held_a_repaired_sequence_has_lost_it(path: Path) -> None:
    store = fill(path)
    (acquired,) = store.acquire(["a"])
    assert acquired.lease is not None
    change(path, STATE)
    assert main(["store", "repair", str(path)]) == 0
    assert store.commit([step(acquired.lease, b"late")]) == [False]


def test_a_lost_change_is_told_until_it_is_repaired(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = fill(path)
    (acquired,) = store.acquire(["a"])
    assert acquired.lease is not None
    store.commit([step(acquired.lease, b"a 6")])
    change(path, "UPDATE changes SET entry = zeroblob(30)")
    assert isinstance(open_store(path, owner="a/1/1").acquire(["a"])[0].refusal, Unreadable)
    status, said = check(path, capsys)
    assert status == 1
    assert len(said) == 3 and "a change of it cannot be read" in said[0] and "was set aside" in said[1]
    assert main(["store", "repair", str(path)]) == 0
    capsys.readouterr()
    assert check(path, capsys)[0] == 0
    assert store.acquire(["a"])[0].state == b"a 5"
    assert rows(path, "SELECT count(*) FROM damaged") == [(1,)]


def test_the_structure_of_the_file_is_checked(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = fill(path)
    store.close()
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA writable_schema = ON")
        database.execute("DELETE FROM sqlite_schema WHERE name = 'sequences_by_expiry'")
    status, said = check(path, capsys)
    assert status == 1
    assert any(each.startswith("the file is damaged: ") for each in said)


def test_sequences_move_to_another_store(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = fill(path)
    lease = lease_on(store, "again")
    store.commit([step(lease, b"1", request_id="old")])
    store.commit([step(lease, b"2", request_id="new", begins=True)])
    run(open_store(path, model="other"), "a", b"other")
    export, target = tmp_path / "export", tmp_path / "new.db"
    assert main(["store", "export", str(path), str(export)]) == 0
    assert "exported: 6" in capsys.readouterr().err
    assert export.stat().st_mode & 0o777 == 0o600
    assert main(["store", "import", str(target), str(export)]) == 0
    assert "imported: 6" in capsys.readouterr().out
    moved = open_store(target, owner="b/1/1")
    for name in ("a", "b", "over", "large", "again"):
        (there,), (here,) = store.acquire([name]), moved.acquire([name])
        assert there.lease and here.lease
        assert here.state == there.state
        one, other = there.lease.record, here.lease.record
        assert (one.incarnation, one.token, one.version, one.last, one.closed, one.ids, one.earlier) == (
            *(other.incarnation, other.token, other.version, other.last, other.closed, other.ids, other.earlier),
        )
        assert one.kept == other.kept
        for number in range(1, 7):
            assert store.find(name, 1, number) == moved.find(name, 1, number)
        assert moved.commit([step(here.lease, b"next", begins=bool(other.closed))]) == [True]
    assert open_store(target, model="other").acquire(["a"])[0].state == b"other"
    assert check(target, capsys)[0] == 0


def test_an_import_overwrites_only_what_it_is_told_to(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = fill(path)
    export = tmp_path / "export"
    assert main(["store", "export", str(path), str(export), "--model", "m"]) == 0
    lease = lease_on(store, "a")
    store.commit([step(lease, b"later")])
    assert main(["store", "import", str(path), str(export)]) == 1
    said = capsys.readouterr()
    assert "imported: 0; not imported: 4" in said.out
    assert "m 'a' is in the store; --replace overwrites it" in said.err
    assert store.commit([step(lease, b"later still")]) == [True]
    assert main(["store", "import", str(path), str(export), "--replace"]) == 0
    assert store.commit([step(lease, b"late")]) == [False]
    assert store.acquire(["a"])[0].state == b"a 5"


def test_one_sequence_is_exported_alone(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(path)
    change(path, STATE)
    export, target = tmp_path / "export", tmp_path / "new.db"
    assert main(["store", "export", str(path), str(export), "--model", "m", "--sequence", "b"]) == 0
    assert "exported: 1; not exported, since they cannot be read: 0" in capsys.readouterr().err
    assert main(["store", "import", str(target), str(export)]) == 0
    assert open_store(target).acquire(["b"])[0].state == b"b 5"
    assert not lease_on(open_store(target), "a").record.has_begun
    assert main(["store", "export", str(path), str(tmp_path / "2"), "--model", "m", "--sequence", "none"]) == 2
    assert "no sequence 'none' of model 'm'" in capsys.readouterr().err
    assert not (tmp_path / "2").exists()


FORK = ["--model", "m", "--sequence", "a"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--model", "m"], "fork takes --sequence, --as too"),
        ([*FORK, "--as", "f", "--step", "2"], "there is no state after step 2; the store has its state after step 5"),
        ([*FORK, "--as", "b"], "'b' is in the store"),
        (["--model", "m", "--sequence", "over", "--as", "f"], "the sequence is over (ended)"),
        (["--model", "m", "--sequence", "not begun", "--as", "f"], "no sequence 'not begun' of model 'm'"),
    ],
)
def test_a_fork_that_cannot_be_made_changes_nothing(
    path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    fill(path)
    before = rows(path, "SELECT id, head, fence FROM sequences ORDER BY id")
    try:
        status = main(["store", "fork", str(path), *arguments])
    except SystemExit as left:
        status = int(left.code or 0)
    assert status == 2
    assert told in capsys.readouterr().err
    assert rows(path, "SELECT id, head, fence FROM sequences ORDER BY id") == before


def test_a_damaged_sequence_is_not_forked(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(path)
    change(path, STATE)
    assert main(["store", "fork", str(path), *FORK, "--as", "f"]) == 2
    assert "m 'a' cannot be read: the checksum of its state is wrong" in capsys.readouterr().err


def test_damage_is_not_exported(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(path)
    change(path, STATE)
    change(path, ANSWER.replace("key = 1", "key = 2"))
    export = tmp_path / "export"
    assert main(["store", "export", str(path), str(export)]) == 1
    said = capsys.readouterr().err
    assert "m 'a': the checksum of its state is wrong" in said
    assert "m 'b': a kept answer cannot be read" in said
    assert "exported: 3; not exported, since they cannot be read: 1" in said
    assert main(["store", "export", str(path), str(export)]) == 2
    assert "exists; name a file that does not" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("damage", "status", "told"),
    [
        (lambda data: data[:-1], 2, "ends too early"),
        (lambda data: data[:-40], 2, "ends too early"),
        (lambda data: b"another " + data, 2, "the file begins with"),
        (lambda data: data.replace(b"a 5", b"a 6"), 1, "the checksum of a sequence is wrong"),
    ],
)
def test_a_damaged_export_is_noticed(path, tmp_path, capsys, damage, status, told):  # type: ignore[no-untyped-def]
    fill(path)
    export = tmp_path / "export"
    main(["store", "export", str(path), str(export)])
    export.write_bytes(damage(export.read_bytes()))
    assert main(["store", "import", str(tmp_path / "new.db"), str(export)]) == status
    assert told in capsys.readouterr().err


def test_an_export_goes_through_a_pipe(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(path)
    target = tmp_path / "new.db"
    command = [sys.executable, "-m", "torchserve_py.cli", "store"]
    exported = subprocess.run([*command, "export", path, "-"], capture_output=True, check=True)
    imported = subprocess.run([*command, "import", target, "-"], input=exported.stdout, capture_output=True, check=True)
    assert imported.stdout == b"imported: 4; not imported: 0\n"
    assert check(target, capsys)[0] == 0


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["check", "no.db"], "no.db of the sequence store cannot be used: No such file or directory"),
        (["export", "s.db"], "export takes a FILE"),
        (["check", "s.db", "file"], "check takes no FILE"),
        (["clean", "s.db"], "invalid choice: 'clean'"),
        (["import", "s.db", "no export"], "No such file or directory"),
    ],
)
def test_wrong_use_is_told(path, monkeypatch, capsys, arguments, told):  # type: ignore[no-untyped-def]
    fill(path)
    monkeypatch.chdir(path.parent)
    try:
        status = main(["store", *arguments])
    except SystemExit as exit_:
        status = exit_.code
    assert status == 2
    assert told in capsys.readouterr().err
    assert not Path("no.db").exists()


def test_all_of_it_works_while_a_server_uses_the_file(path: Path, tmp_path: Path) -> None:
    store = fill(path)
    lease = lease_on(store, "a")
    for number in range(3):
        assert store.commit([step(lease, b"%d" % number)]) == [True]
        assert main(["store", "check", str(path)]) == 0
        assert main(["store", "export", str(path), str(tmp_path / f"export{number}")]) == 0
        assert main(["store", "repair", str(path)]) == 0
    assert store.commit([step(lease, b"last")]) == [True]


def test_what_is_no_file_is_no_store_and_keeps_nobody_waiting(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "fifo")
    for place, kind in ((tmp_path / "fifo", "a FIFO"), (tmp_path, "a folder"), (Path("/dev/zero"), "a device")):
        for act in ("check", "repair"):
            assert main(["store", act, str(place)]) == 2
            told = capsys.readouterr().err
            assert f"the file {place} of the sequence store cannot be used: it is {kind}, not a regular file" in told


def test_what_is_stored_is_shown_without_control_characters(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(open_store(path), "s\u202e\n", b"1")
    change(path, "UPDATE sequences SET head = x'00', model = CAST('m\x1b]0;x\x07' AS BLOB)")
    status, lines = check(path, capsys)
    assert status == 1
    assert lines[0].startswith(r"m\u001b]0;x\u0007 's\u202e\n': ")
    assert all(line.isprintable() for line in lines)
