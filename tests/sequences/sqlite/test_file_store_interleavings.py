"""Several processes use one file in any order, die and come back: what was committed is there, and nothing else."""

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.sequences.sqlite.file_stores import answer_to, open_store, step

from ts.protocol.boot_clock import boot_time
from ts.sequences.sqlite import file_store as file
from ts.sequences.sqlite.file_store import FileStore
from ts.sequences.steps.record import digest_of
from ts.sequences.steps.stores.store import Commit, Lease

KEPT = 2
SEQUENCES = ("a", "b", "c")
PROCESSES = 2

process = st.integers(0, PROCESSES - 1)
sequences = st.lists(st.sampled_from(SEQUENCES), min_size=1, max_size=3, unique=True)
steps = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["acquire", "release", "commit", "commit", "named", "large"]), process, sequences),
        st.tuples(st.sampled_from(["end", "again", "renew"]), process, sequences),
        st.tuples(st.sampled_from(["tidy", "die", "sweep"]), process, st.just([])),
    ),
    max_size=40,
)


class Known:
    """What must be in the store of a sequence."""

    def __init__(self) -> None:
        self.incarnation = 0
        self.last = 0
        self.state: bytes | None = None
        self.closed = ""
        self.ids: list[str] = []
        self.earlier: list[str] = []


class Files:
    """What the processes do, next to what must come of it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.stores = [self.open(number) for number in range(PROCESSES)]
        self.leases: list[dict[str, Lease]] = [{} for _ in range(PROCESSES)]
        self.latest: dict[str, Lease] = {}
        self.known = {each: Known() for each in SEQUENCES}
        self.begins: set[int] = set()
        self.count = 0

    def open(self, number: int) -> FileStore:
        # Its lease is over at once, so that each may take over what the other has.
        return open_store(self.path, owner=f"server{number}/1/1", lease=0.0, lifetime=600.0, kept=KEPT)

    def acquire(self, number: int, ids: list[str]) -> None:
        for sequence_id, acquired in zip(ids, self.stores[number].acquire(ids), strict=True):
            assert acquired.lease is not None and acquired.refusal is None
            known = self.known[sequence_id]
            assert acquired.state == known.state
            self.check(sequence_id, acquired.lease.record)
            self.leases[number][sequence_id] = self.latest[sequence_id] = acquired.lease

    def check(self, sequence_id: str, record: Any) -> None:
        known = self.known[sequence_id]
        if known.last == 0:
            assert record is None or not record.has_begun
            return
        assert (record.incarnation, record.last, record.closed) == (known.incarnation, known.last, known.closed)
        assert record.token == f"token {known.incarnation}"
        kept = [number for number in range(1, known.last + 1) if number == 1 or number > known.last - KEPT]
        assert list(record.kept) == kept
        assert (record.ids or b"") == b"".join(map(digest_of, known.ids))
        assert all(record.has_id(each) for each in known.ids)
        assert all(record.is_earlier(f"token {number}") for number in range(1, known.incarnation))

    def commit(self, number: int, ids: list[str], padding: bytes = b"", name: str = "") -> None:
        mine = [(each, self.leases[number][each]) for each in ids if each in self.leases[number]]
        commits: list[Commit] = []
        expected = []
        for sequence_id, lease in mine:
            self.count += 1
            state, request_id = b"%d" % self.count + padding, f"{name}{self.count}" if name else ""
            begins = bool(lease.record.closed) or id(lease) in self.begins
            self.begins.discard(id(lease))
            commits.append(step(lease, state, request_id=request_id, begins=begins))
            expected.append(self.latest[sequence_id] is lease)
            if expected[-1]:
                known = self.known[sequence_id]
                if lease.record.last == 1:
                    known.ids = []
                known.incarnation, known.last, known.state = lease.record.incarnation, lease.record.last, state
                known.closed = ""
                known.ids += [request_id] if request_id else []
        if commits:
            assert self.stores[number].commit(commits) == expected
            assert self.stores[number].settle(commits) == [True if each else None for each in expected]
        for (sequence_id, _), counts in zip(mine, expected, strict=True):
            if not counts:
                del self.leases[number][sequence_id]
        self.look_up()

    def again(self, number: int, ids: list[str]) -> None:
        """The next commits begin the next incarnations."""
        self.begins |= {id(self.leases[number][each]) for each in ids if each in self.leases[number]}

    def renew(self, number: int, ids: list[str]) -> None:
        mine = [(each, self.leases[number][each]) for each in ids if each in self.leases[number]]
        expected = [self.latest[sequence_id] is lease for sequence_id, lease in mine]
        assert self.stores[number].renew([lease for _, lease in mine]) == expected

    def look_up(self) -> None:
        """Everybody finds what counts, without a lease."""
        for store in self.stores:
            for sequence_id, known in self.known.items():
                self.check(sequence_id, store.peek(sequence_id))
                assert store.find(sequence_id, known.incarnation, known.last + 1) is None
                if known.last:
                    assert store.find(sequence_id, known.incarnation, 1) == answer_to(1)
                    assert store.find(sequence_id, known.incarnation, known.last) == answer_to(known.last)
                    assert store.find(sequence_id, known.incarnation + 1, 1) is None

    def end(self, number: int, ids: list[str]) -> None:
        mine = [(each, self.leases[number].pop(each)) for each in ids if each in self.leases[number]]
        self.stores[number].end([lease for _, lease in mine])
        for sequence_id, lease in mine:
            if self.latest[sequence_id] is lease:
                known = self.known[sequence_id]
                known.state, known.closed = None, "ended"

    def release(self, number: int, ids: list[str]) -> None:
        mine = [self.leases[number].pop(each) for each in ids if each in self.leases[number]]
        self.stores[number].release([(lease, boot_time() + 600) for lease in mine])

    def die(self, number: int) -> None:
        self.stores[number].close()  # which writes nothing
        self.stores[number] = self.open(number)
        self.leases[number] = {}

    def do(self, name: str, number: int, ids: list[str]) -> None:
        match name:
            case "large":
                self.commit(number, ids, b"x" * file._JOURNALED_SIZE)
            case "named":
                self.commit(number, ids, name="r")
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


@settings(max_examples=examples(60))
@given(steps)
def test_any_order(orders: list[tuple[str, int, list[str]]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        files = Files(Path(directory, "s.db"))
        for order in orders:
            files.do(*order)
        everything: Any = list(SEQUENCES)
        files.acquire(0, everything)
