"""A commit that is under way while the handler runs the next batch, in any order and with any outcome.

Whatever happens: an answer leaves after its step was committed; no step runs on a state that may still be rolled back;
one thread at a time uses the store; every step is applied once and answered once, in the order of the batches.
"""

import math
import sys
import threading
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import msgpack
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.sequences.steps.stepping import step
from tests.unit.ts.frontend_stub import DEADLINE_SECONDS, load_message

from ts.protocol.messages import EndedSequence, InferFrame, StepHistory
from ts.runtime.loader import load_service
from ts.runtime.torchserve_handler import TorchServeHandler
from ts.sequence.encoding import StateEncoding
from ts.sequences.sqlite.file_store import FileStore
from ts.sequences.steps import stored_opening, stored_steps
from ts.sequences.steps.commit_thread import CommitThread
from ts.sequences.steps.record import KeptStep
from ts.sequences.steps.server_identity import server_identity
from ts.sequences.steps.stores.store import Commit, KeptAnswer, Lease, StoreError, StoreSettings

# A body: a number to be added, "0" ends the sequence, "9" has the start marker, "boom" fails the batch half way, "odd"
# puts something into the state that no store can hold. The client of "left" has left before its step begins.
HANDLER = """
from ts.sequence import SequenceCache

probe = None

class Handler:
    def initialize(self, context):
        self.cache = SequenceCache(context)

    def handle(self, data, context):
        return [self.step(context, index, row["body"].decode()) for index, row in enumerate(data)]

    def on_sequence_end(self, sequence_id, reason):
        if sequence_id in self.cache:
            probe(sequence_id, self.cache[sequence_id]["total"], None)

    def step(self, context, index, word):
        sequence_id = context.get_sequence_id(index)
        if sequence_id not in self.cache:
            self.cache[sequence_id] = {"total": 0}
        state = self.cache[sequence_id]
        begins = context.get_request_header(index, context.header_key_sequence_start)
        probe(sequence_id, state["total"], begins)
        if word == "odd":
            state["odd"] = object()
            return word
        state["total"] += 1 if word == "boom" else int(word)
        if word == "boom":
            raise ValueError(word)
        if word == "0":
            context.set_response_header(index, context.header_key_sequence_end, sequence_id)
        return str(state["total"])
"""

OUTCOMES = ["fine", "fine", "reply lost", "not written", "reply lost, silence", "not written, silence", "taken over"]
#: When a commit that is under way goes on: at once, while the next batch runs, or once the worker waits for it.
MOMENTS = ["at once", "in the handler", "awaited"]
SEQUENCES = "abcdef"

words = st.sampled_from(["1", "2", "3", "0", "9", "boom", "odd", "left"])
rows = st.dictionaries(st.sampled_from(SEQUENCES), words, min_size=1, max_size=3)
batch = st.tuples(st.just("batch"), rows, st.sampled_from(OUTCOMES), st.sampled_from(MOMENTS))
orders = st.lists(
    st.one_of(
        batch, batch, batch, st.tuples(st.sampled_from(["end", "repeat", "ask", "idle"]), st.sampled_from(SEQUENCES))
    ),
    min_size=4,
    max_size=14,
)


class Wrong(SystemExit):
    """Tells what is wrong; what answers for a handler that fails does not hide it."""


class Killed(SystemExit):
    """Ends the threads of a worker that is killed."""


class Plan(NamedTuple):
    """What becomes of a batch's commit, when, and what lets it go on."""

    outcome: str
    moment: str
    go: threading.Event


class World:
    """What is stored, and what clients were told."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.model = uuid.uuid4().hex
        settings = StoreSettings(
            model=self.model,
            version="1.0",
            state_version="",
            owner=server_identity(),
            lease=600,
            lifetime=600,
            kept=3,
            remembered=600,
            most_ids=1000,
        )
        self.other = FileStore(settings, str(path), fsync=False)
        self.totals: dict[str, int] = defaultdict(int)
        self.applied: Counter[str] = Counter()  # by job id
        self.plans: dict[str, Plan] = {}  # by job id
        self.unanswered: dict[str, list[int]] = defaultdict(list)  # the batches of each job id
        self.latest = 0
        self.under_way = 0
        self.dies: str | None = None

    def let(self, *moments: str) -> None:
        """Let the commits go on whose moment has come."""
        for plan in self.plans.values():
            if plan.moment in moments:
                plan.go.set()

    def answered(self, row: Any) -> None:
        """Note an answer when it leaves."""
        job_id, cause = row.job_id, row.news.cause if row.news is not None else ""
        assert self.unanswered[job_id], "a second answer"
        assert self.unanswered[job_id][0] >= self.latest, "an answer after those of a later batch"
        self.latest = self.unanswered[job_id].pop(0)
        if cause != "outcome_unknown":
            assert self.applied[job_id] == (row.error is None), f"an answer that is not true: {row}"


class Watched:
    """The store of one worker: used by one thread at a time, with commits as they are planned."""

    def __init__(self, store: Any, world: World) -> None:
        self._store = store
        self._world = world
        self._in_use = threading.Lock()
        self._is_silent = False

    def __getattr__(self, name: str) -> Any:
        method = getattr(type(self), f"do_{name}", None)
        method = getattr(self._store, name) if method is None else partial(method, self)

        def alone(*arguments: Any) -> Any:
            assert self._in_use.acquire(blocking=False), f"{name} while another thread uses the store"
            try:
                return method(*arguments)
            finally:
                self._in_use.release()

        return alone

    def do_commit(self, commits: Sequence[Commit]) -> Any:
        world = self._world
        outcome, _, go = world.plans[commits[0].kept[0].step.request_id]
        self._is_silent = outcome.endswith("silence")
        is_meanwhile = threading.current_thread() is not threading.main_thread()
        if is_meanwhile:
            world.under_way += 1
            assert go.wait(DEADLINE_SECONDS)
            if world.dies == "before the commit":
                raise Killed
        if outcome.startswith("not written"):
            raise StoreError("there is no room")
        if outcome == "taken over":
            self._take_over(commits[0].lease.sequence_id)
        written = self._store.commit(commits)
        for commit, was_written in zip(commits, written, strict=True):
            if was_written:
                state = None if commit.closed else commit.state
                total = 0 if state is None else msgpack.unpackb(state)[0]["total"]
                world.totals[commit.lease.sequence_id] = total
                world.applied.update(kept.step.request_id for kept in commit.kept)
        if is_meanwhile and world.dies == "after the commit":
            raise Killed
        if outcome.startswith("reply lost"):
            raise StoreError("the reply was lost")
        return written

    def do_settle(self, commits: Sequence[Commit]) -> Any:
        if self._is_silent:
            raise StoreError("nobody answers")
        return self._store.settle(commits)

    def do_end(self, leases: Sequence[Lease]) -> None:
        self._store.end(leases)
        self._world.totals.update((lease.sequence_id, 0) for lease in leases)

    def _take_over(self, sequence_id: str) -> None:
        """Another worker applies a step of its own."""
        store, totals = self._world.other, self._world.totals
        ((lease, *_),) = store.acquire([sequence_id])
        assert lease is not None
        record = lease.record
        if record.closed or not record.has_begun:
            record.begin(uuid.uuid4().hex, "1.0", "")
        totals[sequence_id] += 100
        kept = KeptStep(record.last + 1, "of another", b"")
        record.apply(kept, 3)
        state = StateEncoding(None, None).encode({"total": totals[sequence_id]})
        assert store.commit([Commit(lease, state, "", [KeptAnswer(kept, b"")], b"", kept.number == 1)]) == [True]


class FakeConnection:
    """Takes answers; further messages always wait."""

    has_more = is_plain = True

    def __init__(self, world: World) -> None:
        self.cancelled: set[str] = set()
        self._world = world

    def look(self) -> None:
        """Nothing arrives."""

    def send_results(self, rows: Sequence[Any], seconds: float, metrics: Sequence[Any] = ()) -> None:
        for row in rows:
            self._world.answered(row)


class AlwaysPays:
    """Stands for `CommitOverlap`."""

    pays = True

    def ran(self, began: float, ended: float, *, is_followed: bool) -> None:
        """Measure nothing."""

    def committed(self, seconds: float) -> None:
        """Measure nothing."""


class Worker:
    """A worker that lives until it is killed."""

    def __init__(self, world: World, handler: Path) -> None:
        cache = {
            "store": "file",
            "module": "ts.sequences.sqlite.open_sqlite",
            "durable": True,
            "capacity": 2,
            "path": str(world.path),
            "fsync": False,
            "owner": server_identity(),
            "lease": 600.0,
            "lifetime": 600.0,
            "kept": 3,
            "restart_expired": False,
            "require_start": False,
            "remembered": 600.0,
            "most_ids": 1000,
            "most_state": 2**28,
            "checkpoint_steps": 100,
            "kept_states": 1,
            "rebuilt_at_once": 8,
            "state_version": "",
        }
        message: Any = load_message(handler.parent, handler.name, model_name=world.model, sequences=True, cache=cache)
        self._world = world
        open_store = stored_opening.open_store
        with patch.object(stored_opening, "open_store", lambda *about: Watched(open_store(*about), world)):
            self.service = load_service(message)
        self.connection: Any = FakeConnection(world)
        self.runtime = TorchServeHandler(self.service, self.connection, message)
        self.is_killed = False
        self.module.probe = self.called

    @property
    def module(self) -> Any:
        return sys.modules[self.service.entry_point.__module__]

    def called(self, sequence_id: str, total: int, begins: str | None) -> None:
        """The handler runs on a state."""
        stored = 0 if begins else self._world.totals[sequence_id]
        if total != stored:
            raise Wrong(f"the state of {sequence_id} is {total}, and {stored} is stored")
        if self.is_killed:
            raise Killed
        self._world.let("in the handler")

    def run(self, number: int, rows: list[Any], *, again: bool = False, ask: str = "") -> None:
        sent_before = {row[0] for row in rows if row[0] in self._world.unanswered}
        for row in rows:
            if not again:
                self._world.unanswered[row[0]].append(number)
        self.runtime.admit(InferFrame(rows, dict.fromkeys(sent_before, StepHistory(-math.inf, True, ask)), None))
        self.runtime.step()

    def rest(self) -> None:
        """Do what there is to do before the worker waits for a message."""
        while self.runtime.is_busy:
            self.runtime.step()


def play(world: World, worker: Worker, events: Sequence[Any], first: int = 0) -> None:
    """Let things happen, which are numbered."""
    sent: list[list[Any]] = []
    for number, (name, what, *plan) in enumerate(events, first):
        if name == "batch":
            rows = [step(f"{number}{each}", each, word, start=word == "9") for each, word in what.items()]
            shared = Plan(*plan, threading.Event())
            if shared.moment == "at once":
                shared.go.set()
            world.plans |= {row[0]: shared for row in rows}
            sent += rows
            worker.connection.cancelled.update(f"{number}{each}" for each, word in what.items() if word == "left")
            worker.run(number, rows)
        elif name == "end":
            worker.runtime.end_sequences([EndedSequence(what, "ended", 0.0)])
        elif name in {"repeat", "ask"} and (earlier := [row for row in sent if row[0].endswith(what)]):
            worker.run(number, earlier[-1:], ask="worker_died" if name == "ask" else "")
        elif name == "idle":
            worker.rest()


@pytest.fixture
def handler(tmp_path: Path, model: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file with the handler; commits are made meanwhile whenever that is allowed."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(stored_steps, "CommitOverlap", AlwaysPays)
    return tmp_path / model(HANDLER)


@pytest.fixture(autouse=True)
def waits_are_seen(monkeypatch: pytest.MonkeyPatch) -> list[World]:
    """The world whose commits go on when a worker waits for them, if it is in this list."""
    worlds: list[World] = []
    wait = CommitThread.wait

    def seen(thread: CommitThread) -> None:
        for world in worlds:
            world.let("awaited", "in the handler")
        wait(thread)

    monkeypatch.setattr(CommitThread, "wait", seen)
    return worlds


def stored_totals(world: World) -> dict[str, int]:
    """What another worker finds."""
    acquired = zip(SEQUENCES, world.other.acquire(SEQUENCES), strict=True)
    return {each: msgpack.unpackb(found.state)[0]["total"] if found.state else 0 for each, found in acquired}


ANY = settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])


@ANY
@given(orders)
def test_any_order(handler: Path, waits_are_seen: list[World], events: list[Any]) -> None:
    world = World(handler.with_name(f"{uuid.uuid4()}.db"))
    waits_are_seen[:] = [world]
    worker = Worker(world, handler)
    play(world, worker, events)
    worker.rest()
    assert not any(world.unanswered.values())
    assert stored_totals(world) == {each: world.totals[each] for each in SEQUENCES}
    event(f"commits under way: {min(world.under_way, 5)}")


@ANY
@given(orders, st.sampled_from(["before the commit", "after the commit"]))
def test_a_worker_is_killed_while_a_commit_is_under_way_and_the_next_batch_runs(
    handler: Path, waits_are_seen: list[World], events: list[Any], dies: str
) -> None:
    world = World(handler.with_name(f"{uuid.uuid4()}.db"))
    waits_are_seen[:] = [world]
    worker = Worker(world, handler)
    play(world, worker, events)
    last = [
        ("batch", dict.fromkeys("ab", "1"), "fine", "awaited"),
        ("batch", dict.fromkeys("cd", "1"), "fine", "awaited"),
    ]
    before = world.under_way
    play(world, worker, last[:1], 1000)
    worker.is_killed = True
    with pytest.raises(Killed):
        play(world, worker, last[1:], 1001)
    world.dies = dies
    with suppress(Killed):
        worker.service.steps.wait_for_commit()
    event("a commit was under way" if world.under_way > before else "no commit was under way")
    world.dies = None
    successor = Worker(world, handler)
    for number, ids in ((1000, "ab"), (1001, "cd")):
        rows = [step(f"{number}{each}", each, "1") for each in ids if world.unanswered[f"{number}{each}"]]
        if rows:
            successor.run(number, rows, again=True)
    successor.rest()
    assert not any(world.unanswered.values())
    assert all(world.applied[f"{number}{each}"] == 1 for number, ids in ((1000, "ab"), (1001, "cd")) for each in ids)
    assert stored_totals(world) == {each: world.totals[each] for each in SEQUENCES}
