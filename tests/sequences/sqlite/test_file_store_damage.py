"""The file store with damaged contents: one sequence's error, never another's, and never another exception."""

import random
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.sequences.sqlite.file_stores import answer_to, change, lease_on, open_store, rows, run, step

from ts.sequences.sqlite.file_store import FileStore
from ts.sequences.steps.record import Damaged
from ts.sequences.steps.stores.store import Acquired, StoreError, Unreadable

SOUND = ("b", "c")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s.db"


def problem_of(store: FileStore, sequence_id: str) -> str:
    (acquired,) = store.acquire([sequence_id])
    assert isinstance(acquired.refusal, Unreadable), acquired
    return acquired.refusal.problem


def fill(path: Path) -> FileStore:
    """A store with three sequences, of which something is in every table."""
    store = open_store(path, lease=0.0)
    for name in ("a", *SOUND):
        lease = lease_on(store, name)
        for number in range(5):
            store.commit([step(lease, b"old", request_id=f"r{number}")])
        for number in range(3):
            store.commit([step(lease, b"%b %d" % (name.encode(), number), request_id=f"r{number}", begins=not number)])
    run(store, "large", b"x" * 50_000)
    store.acquire(["a"])
    lease = lease_on(store, "a")
    store.commit([step(lease, b"last of a", request_id="r3")])
    return store


def test_without_its_head_nobody_gets_a_sequence_until_it_is_repaired(path: Path) -> None:
    store = fill(path)
    store.acquire(["b"])
    change(path, "UPDATE sequences SET head = x'00' || substr(head, 2) WHERE id = CAST('a' AS BLOB)")
    for each in (store, open_store(path, owner="b/1/1"), open_store(path, version="2.0")):
        assert "the format is 0" in problem_of(each, "a")
        with pytest.raises(Damaged, match="the format is 0"):
            each.peek("a")
    store = open_store(path, remembered=-1.0, lifetime=-9000.0)
    for _ in range(3):
        change(path, "UPDATE clock SET sweep_at = 0")
        change(path, "UPDATE sequences SET expires_at = 0 WHERE id = CAST('a' AS BLOB)")
        store.sweep()
    assert problem_of(store, "a")


def test_without_its_state_there_is_a_lease_but_no_state(path: Path) -> None:
    store = fill(path)
    store.acquire(["b"])
    change(path, "UPDATE sequences SET state = x'00' WHERE id = CAST('a' AS BLOB)")
    (acquired,) = store.acquire(["a"])
    assert acquired.lease is not None and acquired.lease.record.last == 4
    assert (acquired.state, acquired.refusal) == (None, Unreadable("the checksum of its state is wrong"))
    change(path, "DELETE FROM states")
    (acquired,) = store.acquire(["large"])
    assert (acquired.state, acquired.refusal) == (None, Unreadable("its state is missing"))
    assert acquired.lease is not None
    assert store.commit([step(acquired.lease, b"another")]) == [True]
    assert store.acquire(["large"])[0].state == b"another"


@pytest.mark.parametrize("column", ["answer", "step"])
def test_a_damaged_answer_is_told_and_costs_nothing_else(path: Path, column: str) -> None:
    store = fill(path)
    store.acquire(["b"])
    change(path, f"UPDATE answers SET {column} = zeroblob(40) WHERE key % 1099511627776 = 1")
    for number in (1, 3, 4):
        with pytest.raises(Damaged, match=f"answer to step {number}"):
            store.find("a", 2, number)
    assert store.find("b", 2, 1) == answer_to(1)
    (acquired,) = store.acquire(["a"])
    assert acquired.state == b"last of a" and acquired.lease is not None
    assert list(acquired.lease.record.kept or ()) == [1, 3, 4]
    assert store.commit([step(acquired.lease, b"next")]) == [True]
    assert store.find("a", 2, 5) == answer_to(5)


def test_a_damaged_change_is_set_aside_with_its_sequence_alone(path: Path) -> None:
    store = open_store(path, lease=0.0)
    leases = [lease_on(store, name) for name in "abc"]
    for number in range(3):
        assert store.commit([step(lease, b"%d" % number) for lease in leases]) == [True] * 3
    change(path, "UPDATE changes SET entry = substr(entry, 1, 20) || x'ff' || substr(entry, 22) WHERE number = 8")
    with pytest.raises(Damaged, match="checksum"):
        store.peek("b")
    other = open_store(path, owner="b/1/1")
    a, b, c = other.acquire(["a", "b", "c"])
    assert (a.state, b.lease, c.state) == (b"2", None, b"2")
    assert isinstance(b.refusal, Unreadable) and "a change of it cannot be read" in b.refusal.problem
    assert len(rows(path, "SELECT * FROM changes")) == 0
    ((name, content),) = rows(path, "SELECT id, content FROM damaged")
    assert name == b"b" and len(content) > 20


COLUMNS = {
    "sequences": [
        *("number", "model", "id", "name_checksum", "fence", "owner", "lease_until", "expires_at", "closed", "damage"),
        *("head", "state"),
    ],
    "states": ["state", "sequence"],
    "answers": ["key", "step", "answer"],
    "ids": ["key", "digests"],
    "earlier": ["sequence", "tokens"],
    "changes": ["number", "sequence", "entry", "lasts"],
    "takeovers": ["count"],
    "clock": ["boot", "noted", "sweep_at"],
    "servers": ["owner", "pid", "model", "version", "state_version", "alive_until"],
}
#: In tables with rows of several sequences: those of the sequence that is damaged.
OF_A = {
    "sequences": "id = CAST('a' AS BLOB)",
    "answers": "key % 1099511627776 = 1",
    "ids": "key / 1048576 = 1",
    "earlier": "sequence = 1",
}
VALUES = [None, 0, -1, 2**63 - 1, -(2**63), 1.5, float("inf"), -1e300, "", "x", b"\xff\xfe", b"", b"\0", b"\xff" * 30]


def flipped(value: Any, draw: random.Random) -> Any:
    """A value with a bit or its sign changed."""
    if isinstance(value, int):
        return value ^ (1 << draw.randrange(62))
    if isinstance(value, float):
        return -value * 1e3
    data = bytearray(value.encode() if isinstance(value, str) else value or b"\0")
    if not data:
        return b"\0"
    data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    return bytes(data)


def use_all(path: Path, others: tuple[str, ...], damaged: str) -> None:
    """Do everything with every sequence; of those that are not damaged all is there."""
    store = open_store(path, lease=0.0, owner="b/1/1")
    for each in ("a", "large", *others):
        try:
            store.peek(each)
            for number in range(1, 5):
                answer = store.find(each, 2, number)
                assert answer in {None, answer_to(number)}
        except Damaged:
            assert each not in others, damaged
    for acquired, name in zip(store.acquire(["a", "large", *others]), ("a", "large", *others), strict=True):
        check(store, acquired, name, others, damaged)
    store.sweep()
    watch = store.watch()
    watch.wait()
    watch.close()
    for acquired, name in zip(store.acquire(list(others)), others, strict=True):
        assert acquired.state == b"%b next" % name.encode(), damaged
    store.close()


def check(store: FileStore, acquired: Acquired, name: str, others: tuple[str, ...], damaged: str) -> None:
    if name in others:
        assert acquired.lease is not None and acquired.refusal is None, damaged
        assert acquired.state == b"%b 2" % name.encode(), damaged
        assert acquired.lease.record.last == 3
        assert all(acquired.lease.record.has_id(f"r{number}") for number in range(3))
    if acquired.lease is not None:
        commit = step(acquired.lease, b"%b next" % name.encode(), request_id="next")
        written = store.commit([commit])
        assert store.settle([commit])
        assert written == [True] or name not in others, damaged
        store.renew([acquired.lease])
        store.release([(acquired.lease, 1e12)])


@pytest.mark.parametrize(("table", "column"), [(table, column) for table, names in COLUMNS.items() for column in names])
def test_whatever_is_in_a_column(path: Path, tmp_path: Path, table: str, column: str) -> None:
    store = fill(path)
    watch = store.watch()
    watch.wait()
    store._execute("PRAGMA wal_checkpoint(TRUNCATE)")
    draw = random.Random(f"{table} {column}")
    where = OF_A.get(table, "true")
    found = [value for (value,) in rows(path, f"SELECT {column} FROM {table} WHERE {where}")]
    assert found
    for value in found:
        for other in [*VALUES, *(flipped(value, draw) for _ in range(4))]:
            damaged = tmp_path / "copy.db"
            for suffix in ("", "-wal", "-shm"):
                Path(f"{damaged}{suffix}").unlink(missing_ok=True)
            shutil.copy(path, damaged)
            is_no_text = isinstance(value, str) and other in {b"\xff\xfe", b"\xff" * 30}
            what = "CAST(? AS TEXT)" if is_no_text else "?"
            statement = f"UPDATE {table} SET {column} = {what} WHERE {where} AND {column} IS ?"
            try:
                change(damaged, statement, other, value)
            except sqlite3.IntegrityError:
                continue  # two rows cannot have the same there
            use_all(damaged, SOUND, f"{table}.{column} = {other!r}")
    watch.close()


@hypothesis_settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0), st.binary(min_size=1, max_size=64))
def test_any_bytes_in_the_file(tmp_path: Path, place: int, noise: bytes) -> None:
    """Where SQLite's own structure is hit, others may have to wait for a repair; the errors are those of a store."""
    path = tmp_path / "s.db"
    for suffix in ("", "-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    fill(path).close()
    content = bytearray(path.read_bytes())
    place %= len(content)
    content[place : place + len(noise)] = noise
    path.write_bytes(content)
    names = ["a", "b", "c", "large"]
    try:
        store = open_store(path, owner="b/1/1")
        for name in names:
            for ask in (store.peek, lambda name: store.find(name, 2, 1)):
                try:
                    ask(name)
                except (StoreError, Damaged):
                    pass
            (acquired,) = store.acquire([name])
            if acquired.lease is not None:
                commit = step(acquired.lease, b"next")
                store.commit([commit])
                store.settle([commit])
        store.sweep()
        store.close()
    except StoreError:
        pass
