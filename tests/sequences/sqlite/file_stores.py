"""File stores and steps for their tests."""

import sqlite3
from pathlib import Path
from typing import Any

from ts.sequences.sqlite.file_store import FileStore
from ts.sequences.steps.record import KeptStep, digest_of
from ts.sequences.steps.stores.store import Commit, KeptAnswer, Lease, StoreSettings

BODY = b"8 bytes!"


def settings(**changes: Any) -> StoreSettings:
    values: dict[str, Any] = {
        "model": "m",
        "version": "1.0",
        "state_version": "",
        "owner": "a/1/1",
        "lease": 10.0,
        "lifetime": 60.0,
        "kept": 2,
        "remembered": 86_400.0,
        "most_ids": 100_000,
    }
    return StoreSettings(**{**values, **changes})


def open_store(path: Path, **changes: Any) -> FileStore:
    return FileStore(settings(**changes), str(path), fsync=False)


def lease_on(store: FileStore, sequence_id: str) -> Lease:
    (acquired,) = store.acquire([sequence_id])
    assert acquired.lease is not None, acquired
    return acquired.lease


def step(
    lease: Lease,
    state: bytes | None,
    *,
    closed: str = "",
    request_id: str = "",
    begins: bool = False,
    state_version: str = "",
) -> Commit:
    """The next step of a sequence; with a request id, it is one without a number."""
    record = lease.record
    if begins or not record.has_begun:
        record.begin(f"token {record.incarnation + 1}", "1.0", state_version)
    applied = KeptStep(record.last + 1, request_id, BODY)
    new_ids = digest_of(request_id) if request_id else b""
    record.apply(applied, 2, new_ids)
    record.closed = closed
    return Commit(lease, state, closed, [KeptAnswer(applied, answer_to(applied.number))], new_ids, applied.number == 1)


def answer_to(number: int) -> bytes:
    return b"answer %d" % number


def run(store: FileStore, sequence_id: str, *states: bytes | None, closed: str = "") -> Lease:
    """Take a sequence and commit steps of it; `closed` is for the last one."""
    lease = lease_on(store, sequence_id)
    for index, state in enumerate(states, 1):
        reason = closed if index == len(states) else ""
        assert store.commit([step(lease, state, closed=reason)]) == [True]
    return lease


def rows(path: Path, query: str) -> list[tuple[Any, ...]]:
    with sqlite3.connect(path) as database:
        return database.execute(query).fetchall()


def change(path: Path, statement: str, *arguments: Any) -> None:
    with sqlite3.connect(path) as database:
        assert database.execute(statement, arguments).rowcount
