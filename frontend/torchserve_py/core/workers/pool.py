"""The workers of one model version: how many there should be, and the place of each."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from torchserve_py.base.background_tasks import in_background
from torchserve_py.base.metrics.model_metrics import ModelMetrics
from torchserve_py.core.scheduling.demand import WorkerCounts
from torchserve_py.core.serving.serving import WorkerCountChange
from torchserve_py.core.workers.startup import WorkerFailed
from torchserve_py.core.workers.supervisor import Supervisor, TakeRoom
from torchserve_py.core.workers.worker import Worker, WorkerEvents

logger = logging.getLogger(__name__)

#: How long workers may take to go once their own limit has passed: until SIGKILL, and what the system needs (seconds).
_KILL_LIMIT = 20.0
#: How long a worker that the load no longer needs may finish its jobs (seconds): as long as their own limits let them.
_FINISH_LIMIT = 86_400.0
#: The status of a `WorkerFailed` whose worker was stopped because a later call has changed the number of workers.
OVERTAKEN: Final = 409


@dataclass(frozen=True)
class PoolPlace:
    """Where a worker is to be: the id of its place, which place that is (from 0), and how many there are to be."""

    worker_id: str
    index: int
    count: int


@dataclass(eq=False)
class WorkerPool:
    """Grows and shrinks between ``min_workers`` and ``max_workers``; every place is kept filled by a supervisor."""

    new_place: Callable[[PoolPlace], Callable[[], Worker]]  # returns what makes the workers that fill a place in turn
    end_place: Callable[[str], None]  # called with the id of a place whose last worker is gone
    new_worker_id: Callable[[], str]  # returns an id that no worker of the server has had
    events: WorkerEvents
    metrics: ModelMetrics
    max_retry: float  # after how long a failing worker is given up, and started only now and then (seconds)
    stop_limit: float  # how long a worker that is to go may finish its jobs (seconds)
    renew_to_scale: bool = False  # all workers are replaced when their number changes: each has its share of something
    on_demand: bool = False  # requests wait for a worker even where there is none, because `resize` starts one for them

    def __post_init__(self) -> None:
        self.min_workers = self.max_workers = 0
        #: The latest change by `resize`.
        self.latest_change: WorkerCountChange | None = None
        #: What workers ask before they start, see `Supervisor.take_room`.
        self.take_room: TakeRoom | None = None
        self._supervisors: list[Supervisor] = []
        self._leaving: set[Supervisor] = set()
        #: The renewals under way, by the ids of the places.
        self._renewals: dict[str, asyncio.Task[WorkerFailed | None]] = {}
        #: Workers that are up and get no work before `resume`; None while all workers get work.
        self._held: list[Worker] | None = None
        self._requests_wait = False  # for a worker that is to come, though there is to be none now
        self.metrics.workers_wanted.read_from(lambda: self.counts.wanted)
        self.metrics.workers_ready.read_from(lambda: self.ready_count)
        self.metrics.workers_given_up.read_from(lambda: len(self._supervisors) - len(self._trying))

    @property
    def supervisors(self) -> Sequence[Supervisor]:
        """The places, oldest first."""
        return self._supervisors

    @property
    def ready_count(self) -> int:
        """How many workers take jobs."""
        return sum(supervisor.ready for supervisor in self._supervisors)

    @property
    def counts(self) -> WorkerCounts:
        """How many workers there are to be, whether they start or not."""
        wanted = self._wanted
        failing = any(supervisor.failure for supervisor in wanted)
        return WorkerCounts(len(wanted), self.ready_count, failing, self.min_workers, self.max_workers)

    @property
    def loads_on_demand(self) -> bool:
        """Whether there may be no worker, and a request starts one; False while workers fail to load the model."""
        return self.on_demand and not self.min_workers and self.max_workers > 0 and not self.counts.failing

    @property
    def load_failure(self) -> str:
        """Why the first worker could not load the model at its last attempt; empty unless no worker could."""
        failures = [supervisor.failure for supervisor in self.supervisors]
        return failures[0] if failures and all(failures) else ""

    @property
    def starts_at(self) -> float | None:
        """When the next worker is started (seconds since 1970), if none takes jobs and requests do not wait for one."""
        if any(each.expected for each in self._supervisors):
            return None
        return min((each.starts_at for each in self._supervisors if each.starts_at is not None), default=None)

    @property
    def healthy(self) -> bool:
        """Whether enough workers are up, starting, or being replaced: TorchServe's idea of health."""
        return len(self._trying) >= self.min_workers

    async def scale(self, min_workers: int, max_workers: int, count: int | None = None) -> None:
        """Start workers up to ``min_workers``, stop the newest above ``max_workers``, replace those that gave up.

        Between the two numbers ``count`` says how many there are to be, or there remain as many as there are. Returns
        once every worker is ready, including those that were starting already, and every stopped worker is gone or
        survives SIGKILL.

        Raises WorkerFailed: a worker failed to get ready; like a worker that dies it is started again. With the status
        `OVERTAKEN`: it was stopped, because the numbers were changed meanwhile.
        """
        self.min_workers, self.max_workers = min_workers, max_workers
        count = max(min_workers, min(max_workers, len(self._wanted) if count is None else count))
        leaving = self._change(self._trying[count:], count)
        outcomes = await asyncio.gather(
            *(supervisor.attempt() for supervisor in self._supervisors),
            *(self._stop(supervisor, self.stop_limit) for supervisor in leaving),
        )
        for failure in outcomes:
            if isinstance(failure, WorkerFailed):
                if (self.min_workers, self.max_workers) != (min_workers, max_workers):
                    raise WorkerFailed(OVERTAKEN, "another call has changed the number of workers meanwhile")
                raise failure

    async def renew(self, worker_id: str) -> None:
        """Put another worker in a place, if it is still there, see `Supervisor.renew`.

        A worker whose sequences can move goes only once its successor is ready and they have moved. Otherwise it stays.
        If the place is being renewed already, this waits for that.

        Raises WorkerFailed: the other worker did not get ready, or sequences cannot move.
        """
        if (renewal := self._renewals.get(worker_id)) is None:
            renewal = self._renewals[worker_id] = in_background(self._renew(worker_id), f"renewing worker {worker_id}")
            renewal.add_done_callback(lambda _: self._renewals.pop(worker_id))
        if (failure := await asyncio.shield(renewal)) is not None:
            raise failure

    async def _renew(self, worker_id: str) -> WorkerFailed | None:
        supervisor = next((each for each in self._trying if each.id == worker_id), None)
        if supervisor is None:
            return None
        worker = supervisor.worker
        if worker is not None and self.events.hands_over(worker):
            return await self._succeed(supervisor, worker)
        return await supervisor.renew(self.stop_limit)

    async def _succeed(self, leaving: Supervisor, worker: Worker) -> WorkerFailed | None:
        """Start a worker in a place beside one that is to leave, which goes if all its sequences can move; or why not.

        Nothing more is done if the number of workers changes meanwhile, so that one of the two goes anyway.
        """
        index = self._supervisors.index(leaving)
        successor = self._start(PoolPlace(self.new_worker_id(), index, len(self._supervisors)))
        self._supervisors.insert(index, successor)
        failure = await successor.attempt()
        if failure is None and (why := await self.events.vacate(worker, self.stop_limit)):
            self.events.reopen(worker)
            failure = WorkerFailed(409, f"worker {worker.id} stays, since sequences cannot leave its memory ({why})")
            began = successor.worker
            if began is not None and await self.events.vacate(began, self.stop_limit):
                self.events.reopen(began)  # both stay: it has got some that cannot go back
                return failure
        if leaving in self._supervisors and successor in self._supervisors:
            going = leaving if failure is None else successor
            self._supervisors.remove(going)
            self._tell_expected()
            await self._stop(going, self.stop_limit)
        elif failure is None and leaving in self._supervisors:
            self.events.reopen(worker)  # it stays, since its successor has gone meanwhile
        return failure

    def resize(self, count: int, movable: Sequence[str], why: str) -> None:
        """Start workers up to ``count``, or let workers go down to it once they have finished their jobs.

        First go workers that are not ready, then those of the ``movable`` ids, in that order. One whose sequences can
        move gives them to others before; it stays if some cannot.
        """
        trying = self._trying
        self.latest_change = WorkerCountChange(time.time(), len(self._wanted), count, why)
        by_id = {supervisor.id: supervisor for supervisor in trying}
        may_go = [supervisor for supervisor in reversed(trying) if not supervisor.ready]
        may_go += [by_id[worker_id] for worker_id in movable if worker_id in by_id and by_id[worker_id] not in may_go]
        for supervisor in self._change(may_go[: max(0, len(trying) - count)], count):
            worker = supervisor.worker
            if worker is not None and self.events.hands_over(worker):
                leaving = self._let_go(supervisor, worker, self.max_workers)
            else:
                if worker is not None:
                    self.events.take_out(worker)  # now: no further sequence is to begin there
                leaving = self._stop(supervisor, _FINISH_LIMIT)
            in_background(leaving, f"taking worker {supervisor.id} away")

    async def _let_go(self, supervisor: Supervisor, worker: Worker, most: int) -> None:
        """Stop a worker that the load no longer needs once its sequences have moved; put it back if some cannot.

        For a while there may be more than ``most`` then: the load may be back, or a worker is being replaced.
        """
        self._leaving.add(supervisor)
        why = await self.events.vacate(worker, self.stop_limit)
        if why and worker.ready and self.max_workers >= most:  # else somebody has wanted fewer since, or none
            logger.info("Worker %s stays, since sequences cannot leave its memory (%s)", worker.label, why)
            self._leaving.discard(supervisor)
            self._supervisors.append(supervisor)
            self._tell_expected()
            self.events.reopen(worker)
        else:
            await self._stop(supervisor, _FINISH_LIMIT)

    def let_requests_wait(self, *, wait: bool) -> None:
        """Accept requests while there is to be no worker, because one is to come; or accept them no longer."""
        self._requests_wait = wait
        self._tell_expected()

    def hold(self) -> None:
        """Give no work to workers before `resume` is called."""
        self._held = []

    def resume(self) -> None:
        """Give work to the workers that came up since `hold` was called."""
        held, self._held = self._held, None
        for worker in held or ():
            if worker.ready:
                self.events.worker_up(worker)

    async def stop(self, limit: float) -> list[int]:
        """Stop every worker, and wait for those that are leaving already; return the processes that survive SIGKILL.

        Each may finish its jobs for at most ``limit`` seconds.
        """
        earlier = list(self._leaving)
        leaving, self._supervisors = self._supervisors, []
        self.min_workers = self.max_workers = 0
        await asyncio.gather(
            *(self._stop(supervisor, limit) for supervisor in leaving),
            *(supervisor.stopped(limit + _KILL_LIMIT) for supervisor in earlier),
        )
        return [supervisor.pid for supervisor in self._leaving]

    @property
    def _trying(self) -> list[Supervisor]:
        """The places that are not given up."""
        return [supervisor for supervisor in self._supervisors if not supervisor.gave_up]

    @property
    def _wanted(self) -> list[Supervisor]:
        """The places that there are to be: of those that were given up all, unless the next request starts another."""
        return self._supervisors if self._tries_on() else self._trying

    def _tries_on(self) -> bool:
        return bool(self.min_workers) or not self.on_demand

    def _change(self, leaving: Sequence[Supervisor], count: int) -> list[Supervisor]:
        """Take places away, renew those that gave up, and add places up to ``count``; return those that are to end."""
        gone = [supervisor for supervisor in self._supervisors if supervisor.gave_up or supervisor in leaving]
        staying = [supervisor for supervisor in self._supervisors if supervisor not in gone]
        if self.renew_to_scale and count != len(self._supervisors):
            gone, staying = list(self._supervisors), []
        started = [self._start(PoolPlace(self.new_worker_id(), index, count)) for index in range(len(staying), count)]
        self._supervisors = staying + started
        self._tell_expected()
        return gone

    def _start(self, place: PoolPlace) -> Supervisor:
        supervisor = Supervisor(place.worker_id, self.new_place(place), self.events, self.max_retry)
        supervisor.take_room = self.take_room
        supervisor.on_up = self._up
        supervisor.on_ready = self._ready
        supervisor.on_restart = self.metrics.worker_restarts.inc
        supervisor.on_unavailable = self._tell_expected
        supervisor.tries_on = self._tries_on
        return supervisor

    def _up(self, worker: Worker) -> None:
        if self._held is None:
            self.events.worker_up(worker)
        else:
            self._held.append(worker)

    def _ready(self, label: str, seconds: float) -> None:
        self.metrics.worker_load_time(label, seconds * 1000)
        self._tell_expected()

    async def _stop(self, supervisor: Supervisor, limit: float) -> None:
        """Stop a worker, but do not wait for ever: a process that hangs inside the kernel survives even SIGKILL."""
        self._leaving.add(supervisor)
        stopping = in_background(supervisor.stop(limit), f"stopping worker {supervisor.id}")
        stopping.add_done_callback(lambda _: self._left(supervisor))
        await asyncio.wait([stopping], timeout=limit + _KILL_LIMIT)
        if stopping.done():
            await stopping
        else:
            logger.error("Worker %s (pid %d) does not end, not even by SIGKILL", supervisor.id, supervisor.pid)

    def _left(self, supervisor: Supervisor) -> None:
        self._leaving.discard(supervisor)
        self.end_place(supervisor.id)
        if supervisor.worker is not None:
            self.metrics.forget_worker(supervisor.worker.label)

    def _tell_expected(self) -> None:
        """Requests are accepted while a worker that serves them can be expected."""
        places = self._wanted
        expected = any(each.expected for each in places) if places else self.loads_on_demand or self._requests_wait
        self.events.set_workers(max(1, len(places)) if expected else 0)
