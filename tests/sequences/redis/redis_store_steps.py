"""What tests of the Redis store do with it: steps of sequences, straight to the store."""

from __future__ import annotations

import dataclasses
from typing import Any

from ts.sequences.redis.redis_store import RedisStore
from ts.sequences.steps.record import KeptStep, digest_of
from ts.sequences.steps.stores.store import Acquired, Commit, KeptAnswer, Lease, StoreSettings

SETTINGS = StoreSettings(
    model="m",
    version="1",
    state_version="",
    owner="a/1/1",
    lease=10.0,
    lifetime=60.0,
    kept=2,
    remembered=86_400.0,
    most_ids=100,
)


def open_store(url: str, **changes: Any) -> RedisStore:
    """Open a store with some settings of its own."""
    replicas = changes.pop("replicas", 0)
    return RedisStore(dataclasses.replace(SETTINGS, **changes), url, replicas=replicas)


def acquire(store: RedisStore, sequence_id: str, **options: Any) -> Acquired:
    """Ask for one sequence."""
    (acquired,) = store.acquire([sequence_id], **options)
    return acquired


def take(store: RedisStore, sequence_id: str, **options: Any) -> Lease:
    """Take a lease that nobody refuses."""
    acquired = acquire(store, sequence_id, **options)
    assert acquired.refusal is None, acquired.refusal
    assert acquired.lease is not None
    return acquired.lease


def step(
    lease: Lease, text: str, *, token: str = "t", closed: str = "", version: str = "1", states: str = "", kept: int = 2
) -> Commit:
    """Apply a step to a lease's record: its request id, answer and state are made of ``text``."""
    record = lease.record
    if not record.has_begun or record.closed:
        record.begin(token, version, states)
    applied = KeptStep(record.last + 1, text, b"digest-" + text[:1].encode(errors="replace"))
    record.apply(applied, kept, digest_of(text))
    record.closed = closed
    state = None if closed else f"state {text}".encode(errors="replace")
    answers = [KeptAnswer(applied, f"answer {text}".encode(errors="replace"))]
    return Commit(lease, state, closed, answers, digest_of(text), applied.number == 1)


def do(store: RedisStore, sequence_id: str, *texts: str, **options: Any) -> Lease:
    """Apply steps to a sequence."""
    lease = take(store, sequence_id)
    for text in texts:
        assert store.commit([step(lease, text, **options)]) == [True]
    return lease
