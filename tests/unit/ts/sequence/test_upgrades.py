"""What the first formats of the stores hold goes on: they had no incarnations."""

import sqlite3
from pathlib import Path

import msgpack
import pytest
from tests.redis_server import RedisServer

from ts.sequence.stores.file import FileStore
from ts.sequence.stores.redis import RedisStore
from ts.sequence.stores.store import Commit, Store, StoreSettings

# The file store's version 2.
TABLES = """
CREATE TABLE sequences (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    model TEXT NOT NULL,
    id TEXT NOT NULL,
    token INTEGER NOT NULL,
    owner TEXT NOT NULL,
    lease_until REAL NOT NULL,
    expires_at REAL NOT NULL,
    steps INTEGER NOT NULL,
    closed TEXT NOT NULL,
    state BLOB,
    UNIQUE (model, id)
);
CREATE TABLE answers (key INTEGER PRIMARY KEY, request_id TEXT NOT NULL, answer BLOB NOT NULL);
CREATE TABLE journal (number INTEGER PRIMARY KEY, entry BLOB NOT NULL);
CREATE TABLE takeovers (count INTEGER NOT NULL);
INSERT INTO takeovers VALUES (0);
INSERT INTO sequences VALUES (1, 'm/1', 's', 1, 'a/1/1', 0, 9e9, 3, '', CAST('before' AS BLOB));
INSERT INTO answers VALUES (1, 'r0', CAST('zero' AS BLOB));
INSERT INTO answers VALUES (1099511627777, 'r1', CAST('one' AS BLOB));
INSERT INTO answers VALUES (2199023255553, 'r2', CAST('two' AS BLOB));
PRAGMA user_version = 2;
"""
#: A step that is still in the journal: it takes the place of the oldest answer.
ENTRY = ([(b"state", "", 4, 0.0, 9e9, 1, 1)], [(1, "r3", b"three")])
APPEND = "INSERT INTO journal (entry) SELECT ?1 WHERE (SELECT count FROM takeovers) = ?2"
SETTINGS = StoreSettings(model="m/1", owner="b/1/1", lease=10.0, lifetime=60.0, kept=3)


def check_upgraded(store: Store) -> None:
    ((lease, state, closed),) = store.acquire(["s"])
    assert lease is not None
    assert (state, closed, lease.first_id, list(lease.request_ids)) == (b"state", "", None, ["r1", "r2", "r3"])
    assert not lease.awaits_first
    assert [store.answer(lease, each) for each in ("r0", "r1", "r2", "r3")] == [None, b"one", b"two", b"three"]
    assert store.commit([Commit(lease, b"on", "", [(lease.place("r4", first=False), "r4", b"four")])]) == [True]
    assert [store.find("s", each) for each in ("r1", "r2", "r4")] == [None, b"two", b"four"]


def test_a_file_of_version_2_is_upgraded(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with sqlite3.connect(path, isolation_level=None) as old:
        old.executescript(TABLES)
        old.execute(APPEND, (msgpack.packb(ENTRY), 0))
        store = FileStore(SETTINGS, str(path), fsync=False)
        # A server of that version that still runs can neither commit nor acquire.
        assert old.execute(APPEND, (msgpack.packb(ENTRY), 0)).rowcount == 0
        with pytest.raises(sqlite3.OperationalError, match="no such column: steps"):
            old.execute("SELECT number, token, steps FROM sequences")
    check_upgraded(store)
    FileStore(SETTINGS, str(path), fsync=False).close()


def test_a_sequence_of_the_first_format_in_redis_is_upgraded(redis_server: RedisServer) -> None:
    redis = pytest.importorskip("redis")
    client = redis.Redis.from_url(redis_server.url)
    fields = {"token": "1", "owner": "a/1/1", "until": 0, "expires": 9 * 10**12, "steps": 4, "closed": ""}
    answers = {"q0": "r3", "r0": "three", "q1": "r1", "r1": "one", "q2": "r2", "r2": "two"}
    client.delete("ts:{m/1}:s")
    client.hset("ts:{m/1}:s", mapping={**fields, "state": "state", **answers})
    check_upgraded(RedisStore(SETTINGS, redis_server.url))


def test_a_commit_that_was_tried_again_and_then_refused_may_have_been_written(redis_server: RedisServer) -> None:
    redis = pytest.importorskip("redis")
    mine = RedisStore(SETTINGS, redis_server.url)
    other = RedisStore(StoreSettings(model="m/1", owner="b/1/1", lease=10.0, lifetime=60.0, kept=3), redis_server.url)
    ((lease, _, _),) = mine.acquire(["again"])
    assert lease is not None
    commit, replies = mine._commit, iter([redis.ConnectionError("the reply was lost"), None])

    def unsteady(*arguments: object) -> object:
        result, lost = commit(*arguments), next(replies)
        if lost is not None:
            other.acquire(["again"])  # before it is tried again
            raise lost
        return result

    mine._commit = unsteady
    slot = lease.place("r", first=True)
    assert mine.commit([Commit(lease, b"state", "", [(slot, "r", b"answer")])]) == [None]
    assert mine.find("again", "r", lease.incarnation) == b"answer"
