"""Two servers and one sequence, in any order: it expires for a step only if the step came after that."""

import math
import uuid
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.examples import examples

from ts.protocol.boot_clock import boot_time
from ts.sequences.steps.record import KeptStep
from ts.sequences.steps.stored_opening import open_store
from ts.sequences.steps.stores.store import IDLE, Commit, KeptAnswer, Lease, StoreSettings

SERVERS = 2
#: Between two events (seconds), so long that it does not matter how long the stores take.
PAUSE = 1000.0

server = st.integers(0, SERVERS - 1)
event = st.sampled_from(["arrive", "arrive", "run", "run", "close", "close", "give up"])
events = st.lists(st.tuples(event, server), min_size=10, max_size=20)


class Servers:
    """What the servers do, beside what must come of it."""

    def __init__(self, cache: Any) -> None:
        model = f"m/{uuid.uuid4()}"
        self.stores = []
        for number in range(SERVERS):
            # Leases are over at once, so that each may take over what the other has.
            own = StoreSettings(
                model=model,
                version="1.0",
                state_version="",
                owner=f"server{number}/1/1",
                lease=-1.0,
                lifetime=0.0,
                kept=2,
                remembered=600.0,
                most_ids=1000,
            )
            self.stores.append(open_store(own, cache))
        self.now = boot_time() - 1e5  # all events are in the past
        self.queued: list[list[float]] = [[] for _ in range(SERVERS)]  # when each step came
        self.leases: list[Lease | None] = [None] * SERVERS  # of those whose scheduler has the sequence open
        self.holder: int | None = None
        self.expired_at = math.inf
        self.total = 0
        self.is_over = False

    def arrive(self, number: int) -> None:
        self.queued[number].append(self.now)

    def give_up(self, number: int) -> None:
        del self.queued[number][:1]

    def run(self, number: int) -> None:
        """The oldest step that is queued here runs, or is told that the sequence has expired."""
        if not self.queued[number]:
            return
        came_at = self.queued[number].pop(0)
        since = came_at if self.leases[number] is None else -math.inf
        store: Any = self.stores[number]
        ((lease, state, refusal, _),) = store.acquire(["s"], {"s": since})
        assert lease is not None, refusal
        self.is_over = self.is_over or self.expired_at < since
        if self.is_over:
            assert (state, lease.record.closed) == (None, IDLE)
            store.release([(lease, self.now)])
            return
        assert lease.record.closed == ""
        assert state == (b"%d" % self.total if self.total else None)
        self.total += 1
        if not lease.record.has_begun:
            lease.record.begin("token", "1.0", "")
        applied = KeptStep(self.total, f"r{self.total}", b"")
        lease.record.apply(applied, 2)
        assert store.commit(
            [Commit(lease, b"%d" % self.total, "", [KeptAnswer(applied, b"")], b"", self.total == 1)]
        ) == [True]
        self.holder, self.leases[number], self.expired_at = number, lease, math.inf

    def close(self, number: int) -> None:
        """The scheduler here has had nothing of the sequence for too long."""
        lease = self.leases[number]
        if self.queued[number] or lease is None:
            return
        store: Any = self.stores[number]
        store.release([(lease, self.now)])
        self.leases[number] = None
        if self.holder == number:
            self.holder, self.expired_at = None, self.now


@pytest.fixture
def cache(cache_settings: Any, tmp_path: Path) -> Any:
    return cache_settings()


@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(events)
def test_any_order(cache: Any, orders: list[tuple[str, int]]) -> None:
    servers = Servers(cache)
    for name, number in [("arrive", 0), ("run", 0), *orders, ("arrive", 0), ("run", 0), ("run", 1)]:
        getattr(servers, name.replace(" ", "_"))(number)
        servers.now += PAUSE
