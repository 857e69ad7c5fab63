"""Random interleavings of steps, moves and deaths, with workers that count: each step runs once, a state has one place.

The dispatcher and its `Handover` are the real ones. A worker here is a dictionary of counters; what it is asked and
what it is sent waits in its queue, in order, until the test lets it do the next thing.
"""

import asyncio
import random
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from tests.core.dispatch.shell import Shell, stateful

from torchserve_py.base.causes import Cause
from torchserve_py.core.dispatch.dispatcher import Dispatcher
from torchserve_py.core.dispatch.ownership import Ownership
from torchserve_py.core.handover.handover import Handover, Move
from torchserve_py.core.handover.left_files import in_folder
from torchserve_py.core.handover.left_sequences import ServerHandover
from torchserve_py.core.handover.next_server import Inheritance
from torchserve_py.core.handover.storage import Storage
from torchserve_py.core.jobs.call import Call, SequenceRequest
from torchserve_py.core.jobs.parts import JobFailed, part_of
from torchserve_py.core.scheduling.closed import ClosedSequences
from torchserve_py.core.workers.worker import Worker
from torchserve_py.net.running_time import running_time
from ts.protocol.messages import GIVE, GIVE_AHEAD, GIVES_AHEAD, TAKE

SEQUENCES = "stuv"
#: Those with states that are sent ahead.
LARGE = "uv"


class CountingWorker:
    """A worker whose state of a sequence is how many of its steps have run."""

    def __init__(self, worker_id: str, world: "World") -> None:
        self.id = self.label = worker_id
        self.world = world
        self.dispatcher = world.shell.dispatcher
        self.sent_at, self.paused, self.hands_over, self.takes_ahead = 0.0, False, True, True
        self.loss_cause, self.left_unread = Cause.worker_died, False
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.counts: dict[str, int] = {}
        self.arriving: dict[str, list[bytes]] = {}
        self.copies: dict[str, int] = {}  # of the counts of `LARGE`, which are sent ahead
        self.told: list[str] = []  # the sequences of whose end it was told
        self.relays: dict[int, Callable[[bytes], None]] = {}
        self.to_do: deque[Callable[[], None]] = deque()

    @property
    def ready(self) -> bool:
        return not self.ended.done()

    # What the dispatcher and the hand-over call.

    def send(self, jobs: Sequence[Call], moment_of: Any) -> None:
        self.to_do.append(lambda: self.run(jobs))

    def begin(self, now: float) -> None: ...

    def cancel(self, job_ids: Sequence[str]) -> None: ...

    def end_sequence(self, sequence_id: str, reason: str, moment: float) -> None:
        self.told.append(sequence_id)
        self.to_do.append(lambda: self.drop(sequence_id))

    def send_state(self, sequence_id: str, piece: bytes) -> None:
        self.to_do.append(lambda: self.arriving.setdefault(sequence_id, []).append(piece))

    async def ask(self, kind: str, limit: float, *fields: Any) -> Any:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        answers = {GIVE: self.give, GIVE_AHEAD: self.give_ahead, TAKE: self.take}
        self.to_do.append(lambda: answers[kind](answer, *fields))
        await asyncio.wait([answer, self.ended], timeout=limit, return_when=asyncio.FIRST_COMPLETED)
        return answer.result() if answer.done() else None

    # What it does when it is its turn.

    def run(self, jobs: Sequence[Call]) -> None:
        rows = []
        for job in jobs:
            count = self.counts[job.sequence_id or ""] = self.counts.get(job.sequence_id or "", 0) + 1
            rows.append([job.id, False, 200, "", [], str(count).encode(), None, None])
        parts = [part_of(row) for row in rows]
        self.dispatcher.results(cast("Worker", self), parts, 0.001, running_time().now())

    def drop(self, sequence_id: str) -> None:
        self.counts.pop(sequence_id, None)
        self.copies.pop(sequence_id, None)
        self.arriving.pop(sequence_id, None)

    def give(self, answer: asyncio.Future[Any], sequence_id: str, number: int, ahead: int | None) -> None:
        copy = self.copies.pop(sequence_id, None)
        if self.world.refuses.pop(sequence_id, False):
            answer.set_result(["not_encodable", "it is a test"])
            return
        if ahead == 0 and sequence_id in LARGE:
            answer.set_result([GIVES_AHEAD])
            return
        count = self.counts[sequence_id]
        state = str(count).encode() if not ahead or copy is None else b"%+d" % (count - copy)
        for piece in (state[:1], state[1:]):
            self.relay(number, piece)
        answer.set_result([len(state)])

    def give_ahead(self, answer: asyncio.Future[Any], sequence_id: str, number: int, sent: int) -> None:
        if sent == 0 and sequence_id in self.counts:
            self.copies[sequence_id] = self.counts[sequence_id]
        pieces = f"{self.copies.get(sequence_id, 0):03}".encode()
        if sent < 0 or sequence_id not in self.copies or self.world.refuses.pop(sequence_id, False):
            self.copies.pop(sequence_id, None)
            answer.set_result(["failed", "it is a test"])
            return
        self.relay(number, pieces[sent : sent + 1])
        answer.set_result([sent + 1, len(pieces)])

    def relay(self, number: int, piece: bytes) -> None:
        if relay := self.relays.get(number):
            relay(piece)

    def take(self, answer: asyncio.Future[Any], sequence_id: str, size: int, version: str, ahead: int = 0) -> None:
        pieces = self.arriving.pop(sequence_id, [])
        copy, state = b"".join(pieces[:ahead]), b"".join(pieces[ahead:])
        if len(state) != size or self.world.refuses.pop(sequence_id, False):
            answer.set_result(["failed", "it is a test"])
            return
        assert sequence_id not in self.counts, "it has another state of the sequence"
        self.counts[sequence_id] = int(state) + (int(copy) if state.startswith(b"+") else 0)
        answer.set_result([])


class World:
    """A version of a model with workers that come and go, and clients that count their answers."""

    def __init__(self, storage: Callable[[], Storage] | None = None) -> None:
        self.storage = storage
        self.workers: dict[str, CountingWorker] = {}
        self.made = 0
        self.calls: list[tuple[str, Call]] = []
        self.refuses: dict[str, bool] = {}
        self.moving: set[asyncio.Task[Any]] = set()
        self.reloading: list[asyncio.Task[Any]] = []
        self.leaving: set[str] = set()
        self.ends: Counter[str] = Counter()

    async def start_server(self) -> None:
        """Start a server, which has no worker yet."""
        if self.storage is not None:
            self.handover = ServerHandover(self.storage())
            await self.handover.look()
        self.over = ClosedSequences(86_400.0)
        self.shell = Shell(stateful(), 0, self.over)
        self.dispatcher = self.shell.dispatcher
        self.dispatcher.set_workers(4)
        if self.storage is not None:
            self.left = self.handover.of("m")
            self.dispatcher.join(Ownership({self.shell.version: self.shell}, ()), self.shell)
            self.dispatcher.inherit(self.left, self.shell.version)
            self.share()

    def share(self) -> None:
        """Let the server tell others of its sequences."""
        self.handover.share(self.is_open, self.leave, self.give_up)

    def reload(self) -> None:
        """Load the version again, as for a changed file: the new one gets all calls, and the sequences."""
        old = self.dispatcher
        self.shell = Shell(stateful(), 0, self.over)
        self.dispatcher = self.shell.dispatcher
        self.dispatcher.set_workers(4)
        self.dispatcher.join(Ownership({self.shell.version: self.shell}, ()), self.shell)
        self.dispatcher.inherit(self.left, self.shell.version)
        self.add_worker()
        self.add_worker()
        old.leave_to(self.dispatcher)
        self.reloading = [asyncio.ensure_future(self._end_old(old))]
        self.moving.update(self.reloading)

    async def _end_old(self, old: Dispatcher) -> None:
        await old.inheritance.leave_all(100.0)
        await old.drain(100.0, Cause.unregistered)
        await old.close(Cause.unregistered)
        for name, worker in list(self.workers.items()):
            if worker.dispatcher is old:
                worker.ended.set_result("was stopped")
                del self.workers[name]

    async def restart(self) -> None:
        """Stop the server as on SIGTERM, and start the next one."""
        self.dispatcher.refuse_new_jobs(Cause.draining)
        leaving = asyncio.ensure_future(self.inheritance.leave_all(100.0))
        while not leaving.done() or any(not each.done() for each in self.moving):
            for number in range(len(self.workers)):
                self.work(number)
            await asyncio.sleep(0.001)
        leaving.result()
        await self.handover.has_left(self.names())
        await self.dispatcher.close(Cause.draining)
        for worker in self.workers.values():
            worker.ended.set_result("was stopped")
        self.workers = {}
        await self.start_server()
        self.add_worker()
        self.add_worker()

    @property
    def inheritance(self) -> Inheritance:
        assert self.dispatcher.inheritance is not None
        return self.dispatcher.inheritance

    def is_open(self, model: str, sequence_id: str) -> bool:
        return self.inheritance.is_here(sequence_id)

    def leave(self, wanted: Iterable[tuple[str, str]]) -> None:
        """Leave what another server on the folder asks for."""
        self.moving.add(asyncio.ensure_future(self.inheritance.leave_wanted([each for _, each in wanted], 100.0)))

    def give_up(self, is_among: Callable[[str, str], bool]) -> None:
        self.inheritance.give_up(partial(is_among, "m"))

    def names(self) -> list[tuple[str, str]]:
        """Return the model and the ids of the sequences that have states."""
        return [("m", each.id) for each in self.dispatcher.scheduler.sequences() if each.has_state]

    def add_worker(self) -> None:
        self.made += 1
        worker = self.workers[f"w{self.made}"] = CountingWorker(f"w{self.made}", self)
        self.dispatcher.worker_up(cast("Worker", worker))

    def submit(self, sequence_id: str) -> None:
        self.calls.append((sequence_id, self.shell.submit("", sequence_id)))

    def submit_first(self, sequence_id: str) -> None:
        """Submit a step that begins a sequence."""
        call = Call((), "", "text/plain", sequence=SequenceRequest(sequence_id, True, False, ()), by_default=True)
        self.calls.append((sequence_id, self.shell.run(call)))

    def end(self, sequence_id: str) -> None:
        """An operator ends a sequence; the next step of its id begins another one, which counts from 1."""
        if self.dispatcher.scheduler.sequence(sequence_id) is not None:
            self.ends[sequence_id] += 1
            self.dispatcher.close_sequence(sequence_id, keep_stored=False)

    def vacate(self, pick: int, *, retires: bool) -> None:
        """Let a worker leave, for good if it ``retires``, if another one stays."""
        worker = self.picked(pick)
        if worker is None or worker.id in self.leaving:
            return
        staying = [name for name, each in self.workers.items() if each.dispatcher is worker.dispatcher]
        if len({*staying} - self.leaving) > 1:
            self.leaving.add(worker.id)
            self.moving.add(asyncio.ensure_future(self._leave(worker, retires=retires)))

    async def _leave(self, worker: CountingWorker, *, retires: bool) -> None:
        if retires:
            await worker.dispatcher.retire(cast("Worker", worker), 100.0)
            if self.workers.get(worker.id) is worker:
                del self.workers[worker.id]
                worker.ended.set_result("was stopped")
        else:
            await worker.dispatcher.vacate(cast("Worker", worker), 100.0)
            worker.dispatcher.reopen(cast("Worker", worker))
        self.leaving.discard(worker.id)

    def kill(self, pick: int) -> None:
        worker = self.picked(pick)
        if worker is not None:
            del self.workers[worker.id]
            worker.ended.set_result("was killed")
            worker.dispatcher.worker_lost(cast("Worker", worker))
            if (
                worker.dispatcher is self.dispatcher and pick % 2
            ):  # its successor is up before those who have waited for it run again
                again = self.workers[worker.id] = CountingWorker(worker.id, self)
                self.dispatcher.worker_up(cast("Worker", again))

    def picked(self, pick: int) -> CountingWorker | None:
        return [*self.workers.values()][pick % len(self.workers)] if self.workers else None

    def work(self, pick: int) -> None:
        worker = self.picked(pick)
        if worker is not None and worker.to_do:
            worker.to_do.popleft()()

    def check_places(self) -> None:
        """The owner of each sequence that has begun and rests has its state."""
        for sequence in self.dispatcher.scheduler.sequences():
            owner = self.workers.get(sequence.lane.worker_id or "")
            if sequence.has_state and not sequence.in_flight and owner is not None:
                assert sequence.id in owner.counts, f"{sequence} is not where its steps run"

    async def settle(self) -> None:
        """Let the workers do all that is left, and moves end."""
        self.dispatcher.set_workers(1)  # so that each has room for all
        if not self.workers:
            self.add_worker()
        while (
            any(worker.to_do for worker in self.workers.values())
            or any(not each.done() for each in self.moving)
            or self.dispatcher.scheduler.jobs
        ):
            for number in range(len(self.workers)):
                self.work(number)
            await asyncio.sleep(0.001)
        for each in self.moving:
            each.result()


async def started(folder: Path | None = None, *, is_shared: bool = False) -> World:
    """Return a world with a server, whose folder other servers share, if so."""
    world = World(None if folder is None else partial(in_folder, folder, is_shared=is_shared))
    await world.start_server()
    return world


WHAT = ["submit"] * 8 + ["work"] * 12 + ["turn"] * 6 + ["vacate", "vacate", "retire", "kill", "add", "refuse", "end"]


@pytest.mark.parametrize("kills", [False, True])
def test_each_step_counts_once_wherever_its_sequence_goes(kills: bool) -> None:
    for seed in range(150):
        choice = random.Random(seed)
        steps = [(choice.choice(WHAT), choice.randrange(1_000)) for _ in range(choice.randrange(20, 150))]
        asyncio.run(play(steps, kills=kills))


@pytest.mark.parametrize("kills", [False, True])
def test_each_step_counts_once_whichever_server_it_comes_to(kills: bool, tmp_path: Path) -> None:
    for seed in range(100):
        choice = random.Random(seed)
        what = [*WHAT, "restart", "reload"]
        steps = [(choice.choice(what), choice.randrange(1_000)) for _ in range(choice.randrange(20, 150))]
        asyncio.run(play(steps, kills=kills, folder=tmp_path / str(seed)))


async def play(steps: list[tuple[str, int]], *, kills: bool, folder: Path | None = None) -> None:
    world = await started(folder)
    world.add_worker()
    world.add_worker()
    for what, pick in steps:
        match what:
            case "submit":
                world.submit(SEQUENCES[pick % len(SEQUENCES)])
            case "work":
                world.work(pick)
            case "turn":
                await asyncio.sleep(0.003 if pick % 7 == 0 else 0)
            case "vacate" | "retire":
                world.vacate(pick, retires=what == "retire")
            case "kill" if kills:
                world.kill(pick)
            case "add" if len(world.workers) < 4:
                world.add_worker()
            case "restart" if all(each.done() for each in world.reloading):
                await world.restart()
                if kills:  # the next server does not know what this one has lost
                    world.ends.update(SEQUENCES)
            case "reload" if all(each.done() for each in world.reloading):
                world.reload()
            case "end":
                world.end(SEQUENCES[pick % len(SEQUENCES)])
            case "refuse" if kills:
                world.refuses[SEQUENCES[pick % len(SEQUENCES)]] = True
        world.check_places()
    await world.settle()
    world.check_places()
    for each in world.workers.values():
        assert (each.arriving, each.copies) == ({}, {}), "what was sent ahead is dropped"
    counts: Counter[str] = Counter()
    lost: set[str] = set()
    for sequence_id, call in world.calls:
        try:
            count = int(bytes((await call.next()).body))
        except JobFailed as failed:
            if failed.cause not in (Cause.sequence_queue_full, Cause.draining):
                assert kills, f"a step was refused: {failed.cause}"
                lost.add(sequence_id)
            continue
        if count == 1 and (counts[sequence_id] or sequence_id in lost):
            world.ends[sequence_id] -= 1
            assert world.ends[sequence_id] >= 0, f"{sequence_id} has begun anew"
            counts[sequence_id] = 0
            lost.discard(sequence_id)
        assert sequence_id not in lost, "a sequence that is lost goes on"
        counts[sequence_id] += 1
        assert count == counts[sequence_id], f"a step of {sequence_id} is lost, or counts twice"


@pytest.mark.parametrize("defect", ["copy_stays_when_the_sequence_ends", "copy_of_another_worker_is_used"])
def test_hand_overs_with_a_defect_are_found(defect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Handover._move_ahead

    def moved(handover: Handover, sequence_id: str, giver: Worker, to: Any) -> Any:
        move, taker = real(handover, sequence_id, giver, to), handover.successor()
        return move if move is None or taker is None else Move(giver, taker, move.ahead, is_at_taker=True)

    if defect == "copy_stays_when_the_sequence_ends":
        monkeypatch.setattr(Handover, "closed", lambda handover, sequence_id: None)
    else:
        monkeypatch.setattr(Handover, "_move_ahead", moved)
    with pytest.raises(AssertionError):
        for seed in range(300):
            choice = random.Random(seed)
            steps = [(choice.choice(WHAT), choice.randrange(1_000)) for _ in range(choice.randrange(20, 150))]
            asyncio.run(play(steps, kills=seed % 2 == 0))
