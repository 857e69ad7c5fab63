"""Several processes use one file in any order, die and come back: what was committed is there, and nothing else."""

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ts.sequence.stores import file
from ts.sequence.stores.file import FileStore
from ts.sequence.stores.store import FIRST_SLOT, Commit, Lease, StoreSettings

KEPT = 2
SEQUENCES = ("a", "b", "c")
PROCESSES = 2

process = st.integers(0, PROCESSES - 1)
sequences = st.lists(st.sampled_from(SEQUENCES), min_size=1, max_size=3, unique=True)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("acquire"), process, sequences),
        st.tuples(st.just("commit"), process, sequences),
        st.tuples(st.just("large"), process, sequences),
        st.tuples(st.just("end"), process, sequences),
        st.tuples(st.just("anew"), process, sequences),
        st.tuples(st.sampled_from(["tidy", "die", "sweep"]), process, st.just([])),
    ),
    max_size=40,
)


class Files:
    """What the processes do, beside what must come of it."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.stores = [self.open(number) for number in range(PROCESSES)]
        self.leases: list[dict[str, Lease]] = [{} for _ in range(PROCESSES)]
        self.latest: dict[str, Lease] = {}
        self.states: dict[str, bytes | None] = {}
        self.answers: dict[str, list[str]] = {}
        self.count = 0

    def open(self, number: int) -> FileStore:
        # Its lease is over at once, so that each may take over what the other has.
        own = StoreSettings(model="m/1", owner=f"server{number}/1/1", lease=0.0, lifetime=600.0, kept=KEPT)
        return FileStore(own, self.path, fsync=False)

    def acquire(self, number: int, ids: list[str]) -> None:
        for sequence_id, (lease, state) in zip(ids, self.stores[number].acquire(ids), strict=True):
            assert lease is not None
            assert state == self.states.get(sequence_id)
            first, *further = self.answers.get(sequence_id) or [None]
            assert (lease.first_id, list(lease.request_ids)) == (first, further[-KEPT:])
            assert lease.awaits_first is (first is None)
            self.leases[number][sequence_id] = self.latest[sequence_id] = lease

    def commit(self, number: int, ids: list[str], padding: bytes = b"") -> None:
        mine = [(each, self.leases[number][each]) for each in ids if each in self.leases[number]]
        commits, expected = [], []
        for sequence_id, lease in mine:
            self.count += 1
            state, request_id = b"%d" % self.count + padding, f"r{self.count}"
            slot = lease.place(request_id, first=lease.awaits_first)
            lease.awaits_first = False
            commits.append(Commit(lease, state, "", [(slot, request_id, state)]))
            expected.append(self.latest[sequence_id] is lease)
            if expected[-1]:
                if slot == FIRST_SLOT:
                    self.answers[sequence_id] = []
                self.states[sequence_id] = state
                self.answers[sequence_id].append(request_id)
        if commits:
            assert self.stores[number].commit(commits) == expected
        for (sequence_id, lease), counts in zip(mine, expected, strict=True):
            if counts:
                newest = self.answers[sequence_id][-1]
                assert self.stores[number].find(sequence_id, newest, lease.incarnation) == self.states[sequence_id]
            else:
                del self.leases[number][sequence_id]
        self.look_up()

    def anew(self, number: int, ids: list[str]) -> None:
        """The next commits begin the next incarnations."""
        for sequence_id in ids:
            if sequence_id in self.leases[number]:
                self.leases[number][sequence_id].begin_anew()

    def look_up(self) -> None:
        """Everybody finds what counts, without a lease."""
        for sequence_id, answers in self.answers.items():
            for store in self.stores:
                assert store.find(sequence_id, "no such request") is None
                assert store.find(sequence_id, answers[0]) is not None
                assert store.find(sequence_id, answers[-1]) is not None

    def end(self, number: int, ids: list[str]) -> None:
        mine = [(each, self.leases[number].pop(each)) for each in ids if each in self.leases[number]]
        self.stores[number].end([lease for _, lease in mine])
        for sequence_id, lease in mine:
            if self.latest[sequence_id] is lease:
                self.states[sequence_id] = None

    def die(self, number: int) -> None:
        self.stores[number].close()  # which writes nothing
        self.stores[number] = self.open(number)
        self.leases[number] = {}

    def do(self, name: str, number: int, ids: list[str]) -> None:
        match name:
            case "large":
                self.commit(number, ids, b"x" * file._JOURNALED_SIZE)
            case "tidy":
                self.stores[number].tidy()
            case "sweep":
                self.stores[number].sweep()
            case "die":
                self.die(number)
            case _:
                getattr(self, name)(number, ids)


@pytest.fixture(autouse=True)
def _short_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file, "_MOST_JOURNALED", 2)


@settings(max_examples=60, deadline=None)
@given(steps)
def test_any_order(orders: list[tuple[str, int, list[str]]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        files = Files(str(Path(directory, "s.db")))
        for order in orders:
            files.do(*order)
        everything: Any = list(SEQUENCES)
        files.acquire(0, everything)
