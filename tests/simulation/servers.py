"""A server: the real dispatcher and scheduler, what HTTP endpoints make of a request and its outcome, and workers."""

import asyncio
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

from tests.simulation.history import Answer, Step
from tests.simulation.model import simulated_words
from tests.simulation.workers import HANDLER, MODEL_FOLDER, WorkerEnd, start_worker
from tests.simulation.world import Machine, Process, World

from torchserve_py.base.background_tasks import in_background
from torchserve_py.base.causes import Cause, CloseReason
from torchserve_py.base.metrics.model_metrics import HANDLER_ERROR
from torchserve_py.base.metrics.server_metrics import ServerMetrics
from torchserve_py.core.dispatch.dispatcher import Dispatcher
from torchserve_py.core.handover.left_files import in_folder
from torchserve_py.core.handover.left_sequences import IsNamed, ServerHandover
from torchserve_py.core.handover.next_server import Inheritance
from torchserve_py.core.handover.storage import name_of
from torchserve_py.core.jobs.call import Call
from torchserve_py.core.jobs.parts import Part
from torchserve_py.core.models.served_models import ModelVersions
from torchserve_py.core.scheduling.closed import ClosedIds, ClosedSequences
from torchserve_py.core.scheduling.policy import Policy, SequencePolicy
from torchserve_py.core.scheduling.remembered import Remembered
from torchserve_py.core.scheduling.sequence import Sequence
from torchserve_py.endpoints.failures import EndpointError, failure_of_job
from torchserve_py.endpoints.sequences import SequenceHeaders
from ts.sequences.steps.server_identity import server_identity

#: How long it takes until a lost worker is replaced, and a server restarted (seconds), at most.
_RESTART: Final = 3.0
#: How long a server that is told to stop waits for its workers, and sequences may take to leave one (seconds).
_STOP_LIMIT: Final = 20.0
#: How long all that is left may take to leave a server that stops (seconds).
_LEAVE_LIMIT: Final = 10.0
_HEADER_KEYS: Final = ["ts_request_sequence_id", "ts_request_sequence_start", "ts_request_sequence_end"]
_HEADERS: Final = SequenceHeaders(
    SimpleNamespace(  # type: ignore[arg-type]
        ts_header_key_sequence_id=_HEADER_KEYS[0],
        ts_header_key_sequence_start=_HEADER_KEYS[1],
        ts_header_key_sequence_end=_HEADER_KEYS[2],
    )
)
_SERVER_METRICS: Final = ServerMetrics()
_METRICS: Final = _SERVER_METRICS.model("words", "1.0")

#: Takes an answer back to the client.
Reply = Callable[[Answer], None]


class _Received(Call):
    """A call whose first part, or failure, a function gets."""

    then: Callable[[Part | Cause], None]

    def first(self, outcome: Part | Cause) -> None:
        self.then(outcome)


class _ToldIds(ClosedIds):
    """What a server remembers of sequences that were in memory: the checker is told which it has lost.

    It is told, too, which have ended at a server of a fleet: others do not know that.
    """

    def __init__(self, names: Remembered, server: "Server") -> None:
        super().__init__(names)
        self._server = server

    def remember(self, sequence_id: str, reason: CloseReason, now: float) -> None:
        server, world = self._server, self._server.process.world
        if reason is not CloseReason.worker_lost:
            if server.is_in_fleet and reason is CloseReason.suspended:
                world.history.gave_up(world.now, server.name, sequence_id)
            elif server.is_in_fleet:
                world.history.over(world.now, server.name, sequence_id, reason.value)
        elif not server.has_open(sequence_id):
            world.history.lost(world.now, server.name, frozenset((sequence_id,)))
            if not (server.is_in_fleet or server.has_lost_a_worker):  # in a fleet another server may have lost it
                world.errors.append(f"{sequence_id} is lost with a worker that {server.name} lets go")
        elif server.is_up and any(each.has_open(sequence_id) for each in server.all if each is not server):
            world.history.doubted(world.now, server.name, sequence_id)
        super().remember(sequence_id, reason, now)


class Version(NamedTuple):
    """A version of the model on a server: what a `torchserve_py.core.models.model.Model` is to `ModelVersions`."""

    version: str
    dispatcher: Dispatcher

    durable: bool

    def continues(self, other: "Version") -> bool:
        """Whether its handler migrates states that are stored."""
        return self.durable and self.version in simulated_words.Handler.migrating


@dataclass(eq=False)
class Place:
    """The place of a worker, which another one takes when it is lost: what a `Supervisor` is to a `WorkerPool`.

    Attributes:
        ends: Whether no other one takes it.
    """

    model: Version
    number: int
    worker: WorkerEnd
    ends: bool = False


class Server:
    """A server by its name, through all of its restarts.

    Args:
        folder: Where the servers of a fleet leave each other their sequences in memory.
    """

    def __init__(
        self,
        world: World,
        name: str,
        machine: Machine,
        cache: Mapping[str, Any],
        workers: int,
        versions: tuple[str, ...],
        folder: Path | None = None,
    ) -> None:
        self._folder, self._handover = folder, None
        self.name, self.machine, self._served = name, machine, versions
        #: All servers of the world.
        self.all: list[Server] = [self]
        #: The version that requests are for which name none.
        self.default = versions[0]
        self._world, self._cache, self._count = world, cache, workers
        self.process: Process
        self._places: list[Place] = []
        self._numbers = itertools.count()
        self._versions: ModelVersions
        self._reading: dict[int, Call] = {}
        self._is_stopping = False
        self._start()

    @property
    def is_in_fleet(self) -> bool:
        return self._folder is not None

    @property
    def is_up(self) -> bool:
        return not self.process.is_dead

    @property
    def workers(self) -> list[WorkerEnd]:
        """The workers whose processes are not known to be gone."""
        return [each.worker for each in self._places if not each.worker.ended.done()]

    @property
    def has_lost_a_worker(self) -> bool:
        """Whether a worker is dead that was not told to end, of which the server hears now; or all are about to end."""
        return self._is_stopping or any(each.process.is_dead for each in self.workers)

    def _start(self) -> None:
        world = self._world
        _METRICS.fold()  # else what has ended in worlds before would be kept
        _SERVER_METRICS._fold_due()  # else a timer of a world before would be waited for
        self.process = process = world.process(self.name, self.machine)
        self._is_stopping, self._reading, self._places = False, {}, []
        self._numbers = itertools.count(self._count)
        process.on_death.append(self._died)
        cache = self._cache
        sequences = SequencePolicy(
            max_idle=cache["lifetime"],
            timeout=cache["longest"],
            queue_size=3,
            max_sequences=100,
            require_start=cache["require_start"],
            remembered=cache["remembered"],
            durable=cache["durable"],
        )
        with world.running(process):
            self._owner = server_identity()
            policy = Policy(batch_size=2, ahead=True, sequences=sequences)
            over = ClosedSequences(cache["remembered"])
            if not cache["durable"]:
                over.ids = _ToldIds(over.ids.names, self)
            models = [
                Version(each, Dispatcher(policy, _METRICS, 2**20, lambda metrics: None, over=over), cache["durable"])
                for each in self._served
            ]
            self._versions = ModelVersions(models[0], lambda: None)  # type: ignore[arg-type]
            if self._folder is not None:
                self._handover = ServerHandover(in_folder(self._folder, is_shared=True))
            for model in models:
                self._versions.add(model)  # type: ignore[arg-type]
                if self._handover is not None:
                    model.dispatcher.inherit(self._handover.of("words"), model.version)
                    self._handover.share(self._has, self._leave_wanted, self._give_up)
                model.dispatcher.set_workers(self._count)
                self._places += [self._start_place(model, number) for number in range(self._count)]

    def _start_place(self, model: Version, number: int) -> Place:
        place = Place(model, number, self._start_worker(model, number))
        place.worker.on_loss = lambda: self._replace(place)
        return place

    def _start_worker(self, model: Version, number: int) -> WorkerEnd:
        name = f"{self.name}.v{model.version}.w{number}" if len(self._served) > 1 else f"{self.name}.w{number}"
        process = self._world.process(name, self.machine)
        return start_worker(f"w{number}", process, self.process, model.dispatcher, self._load(model.version))

    def _replace(self, place: Place) -> None:
        if not self._is_stopping and not place.ends:
            self.process.after(self._world.random.uniform(0.1, _RESTART), self._fill, place)

    def _fill(self, place: Place) -> None:
        if not place.ends:
            place.worker = self._start_worker(place.model, place.number)
            place.worker.on_loss = lambda: self._replace(place)

    def _died(self) -> None:
        """The kernel kills the workers of a dead server, in a moment; the server is started again."""
        if not self._cache["durable"]:
            self._note_loss()
        for worker in self.workers:
            self._world.fates.after(self._world.random.uniform(0.0, 0.01), worker.process.kill)
        self._world.fates.after(self._world.random.uniform(0.1, _RESTART), self._start)

    def _load(self, version: str) -> dict[str, Any]:
        return {
            "contract": "torchserve",
            "model_name": "words",
            "model_version": version,
            "model_dir": MODEL_FOLDER,
            "manifest": {},
            "handler": HANDLER,
            "gpu_id": None,
            "gpu_room": None,
            "batch_size": 2,
            "continuous": False,
            "asynchronous": False,
            "sequences": True,
            "envelope": None,
            "decode_input_request": True,
            "limit_max_image_pixels": True,
            "server_version": "0",
            "max_response_size": 1_000_000,
            "max_call_size": 0,
            "metrics": [],
            "protocols": {},
            "observers": {},
            "steps": "ts.sequences.steps.opening",
            "adapters": [],
            "forms": "",
            "preparations": {},
            "processors": 1,
            "header_keys": _HEADER_KEYS,
            "cache": {**self._cache, "owner": self._owner},
        }

    # Requests

    def receive(self, delivery: int, step: Step, headers: Mapping[str, str], reply: Reply) -> None:
        """Answer a request, at once or later; called in a turn of the server."""
        try:
            sequence = _HEADERS.of(headers)
        except EndpointError as error:
            reply(Answer(error.failure.status, error.failure.cause or "bad_request", 0, (), ""))
            return
        pairs = tuple((name.encode(), value.encode()) for name, value in headers.items())
        call = _Received(pairs + sequence.headers, step.word.encode(), "text/plain", sequence=sequence, by_default=True)
        call.only_ask = step.asks and self._cache["durable"]
        model = self._versions.models[self.default]
        chosen = model if sequence is None else self._versions.choose_for(call, sequence.id, model)
        assert chosen is not None, "the request names no version"
        chosen.dispatcher.submit(call)
        self._reading[delivery] = call

        def then(outcome: Part | Cause) -> None:
            del self._reading[delivery]
            reply(_answer_of(outcome))

        call.then = then
        call.await_first()

    def hung_up(self, delivery: int) -> bool:
        """Give up a request whose client has closed its connection; return whether it was not answered before."""
        call = self._reading.pop(delivery, None)
        if call is not None:
            call.cancel()
        return call is not None

    # Moves of sequences in memory

    def renew_worker(self) -> None:
        """Put another worker in the place of one, as `WorkerPool.renew` does."""
        if (leaving := self._movable(1)) is not None:
            self.process.loop.create_task(self._renew(leaving))

    async def _renew(self, leaving: Place) -> None:
        dispatcher, worker = leaving.model.dispatcher, leaving.worker
        successor = self._add_place(leaving.model)
        stays = not await successor.worker.loaded
        if not stays and (stays := bool(await dispatcher.vacate(worker, _STOP_LIMIT))):  # type: ignore[arg-type]
            dispatcher.reopen(worker)  # type: ignore[arg-type]
            if await dispatcher.vacate(successor.worker, _STOP_LIMIT):  # type: ignore[arg-type]
                dispatcher.reopen(successor.worker)  # type: ignore[arg-type]
                return
        if not (leaving.ends or successor.ends):
            await self._end(successor if stays else leaving)
        elif not (stays or leaving.ends):
            dispatcher.reopen(worker)  # type: ignore[arg-type]

    def remove_worker(self) -> None:
        """Let a worker go that the load no longer needs, as `WorkerPool.resize` does."""
        if (leaving := self._movable(2)) is not None:
            leaving.ends = True
            self._tell_expected(leaving.model)
            self.process.loop.create_task(self._let_go(leaving))

    async def _let_go(self, leaving: Place) -> None:
        dispatcher, worker = leaving.model.dispatcher, leaving.worker
        if await dispatcher.vacate(worker, _STOP_LIMIT) and worker.ready:  # type: ignore[arg-type]
            leaving.ends = False
            self._tell_expected(leaving.model)
            dispatcher.reopen(worker)  # type: ignore[arg-type]
        else:
            await self._end(leaving)

    def add_worker(self) -> None:
        """Start another worker."""
        self._add_place(self._versions.models[self.default])

    def exchange_version(self) -> None:
        """Make another version the default, and let it have all sequences, as the end of a roll-out does."""
        old = self._versions.models[self.default]
        new = next((each for each in self._versions.models.values() if each is not old), old)
        if new is not old and new.version in simulated_words.Handler.migrating:
            self.default = new.version
            self._versions.choose(new)
            old.dispatcher.hand_over(new)
            self.process.loop.create_task(old.dispatcher.move_to(new.dispatcher, old.version, _STOP_LIMIT))

    def _movable(self, least: int) -> Place | None:
        """Return a place of the default version with a worker that is up, if so many places stay."""
        staying = [each for each in self._places if each.model.version == self.default and not each.ends]
        up = [each for each in staying if each.worker.ready]
        return self._world.random.choice(up) if up and len(staying) >= least and not self._is_stopping else None

    def _add_place(self, model: Version) -> Place:
        place = self._start_place(model, next(self._numbers))
        self._places.append(place)
        self._tell_expected(model)
        return place

    async def _end(self, place: Place) -> None:
        """Let a worker finish its jobs, and end it: what `Supervisor.stop` does."""
        place.ends = True
        self._tell_expected(place.model)
        worker = place.worker
        if worker.ready:
            await place.model.dispatcher.retire(worker, _STOP_LIMIT)  # type: ignore[arg-type]
            worker.stop()
            await asyncio.wait([worker.ended], timeout=_STOP_LIMIT)
        if not worker.ended.done():
            worker.kill("it was told to stop")

    def _tell_expected(self, model: Version) -> None:
        model.dispatcher.set_workers(sum(each.model is model and not each.ends for each in self._places))

    # Life

    def stop(self) -> None:
        """Stop as a server does that is told to, and start again."""
        self._is_stopping = True
        self.process.loop.create_task(self._stop())

    async def _stop(self) -> None:
        dispatchers = [each.dispatcher for each in self._versions.models.values()]
        if self._handover is not None:
            for each in dispatchers:
                each.refuse_new_jobs(Cause.draining)
            for inheritance in self._inheritances:
                in_background(inheritance.leave_resting(_STOP_LIMIT), "leaving sequences that rest")
        await asyncio.gather(*(each.drain(_STOP_LIMIT, Cause.draining) for each in dispatchers))
        if self._handover is not None:
            await self._handover.settle()
            await asyncio.gather(*(each.leave_all(_LEAVE_LIMIT) for each in self._inheritances))
            self._note_loss()
            await self._handover.has_left([("words", each.id) for each in self._open_sequences()])
        for each in dispatchers:
            await each.close(Cause.draining)
        for worker in self.workers:
            worker.stop()
        end = self._world.now + _STOP_LIMIT
        while self.workers and self._world.now < end:
            await asyncio.sleep(0.1)
        self.process.kill()

    @property
    def _inheritances(self) -> list[Inheritance]:
        found = [each.dispatcher.inheritance for each in self._versions.models.values()]
        return [each for each in found if each is not None]

    def _open_sequences(self) -> Iterator[Sequence]:
        for model in self._versions.models.values():
            yield from (each for each in model.dispatcher.scheduler.sequences() if each.has_state or each.is_left)

    def has_open(self, sequence_id: str) -> bool:
        """Whether a sequence is open here, or about to be."""
        models = self._versions.models.values()
        return any(each.dispatcher.scheduler.sequence(sequence_id) is not None for each in models)

    def _has(self, _: str, sequence_id: str) -> bool:
        return any(each.is_here(sequence_id) for each in self._inheritances)

    def _leave_wanted(self, wanted: Iterable[tuple[str, str]]) -> None:
        ids = [each for _, each in wanted]
        for inheritance in self._inheritances if ids else ():
            in_background(inheritance.leave_wanted(ids, _LEAVE_LIMIT), "leaving sequences that are asked for")

    def _give_up(self, is_among: IsNamed) -> None:
        for inheritance in self._inheritances:
            inheritance.give_up(partial(is_among, "words"))

    def _note_loss(self) -> None:
        """Note what is lost with this server: all that it has, unless others have it in a file."""
        lost: frozenset[str] | None = None
        if self._folder is not None:
            files = self._folder / name_of("words")
            lost = frozenset(each.id for each in self._open_sequences() if _is_only_here(each, files))
        self._world.history.lost(self._world.now, self.name, lost)


def _is_only_here(sequence: Sequence, files: Path) -> bool:
    """Whether a sequence is lost with its server: what that has not left to others, or has taken of it."""
    name = name_of(sequence.id)
    is_here = sequence.has_state or any(files.glob(f".taken-{name}-*"))
    return is_here and not (files / name).exists()


def _answer_of(outcome: Part | Cause) -> Answer:
    if isinstance(outcome, Cause):
        return Answer(failure_of_job(outcome, "words", None).status, outcome.value, 0, (), "")
    headers = {name.lower(): value for name, value in outcome.headers}
    if outcome.error is not None:
        return Answer(outcome.status, (outcome.news and outcome.news.cause) or HANDLER_ERROR, 0, (), "")
    run, *state = bytes(outcome.body).decode().split()
    return Answer(outcome.status, "", int(run), tuple(state), headers.get("ts_sequence_token", ""))
