"""The workers of one model version: how many there should be, and the place of each."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torchserve_py.metrics.model_metrics import ModelMetrics
from torchserve_py.workers.events import PoolEvents
from torchserve_py.workers.startup import WorkerFailed
from torchserve_py.workers.supervisor import Supervisor
from torchserve_py.workers.worker import Worker

logger = logging.getLogger(__name__)

#: How long workers may take to go once their own limit has passed: until SIGKILL, and what the system needs (seconds).
_KILL_LIMIT = 20.0


@dataclass(frozen=True)
class Place:
    """Where a worker is to be: the id of its place, which place that is (from 0), and how many there are to be."""

    worker_id: str
    index: int
    count: int


class WorkerPool:
    """Grows and shrinks between ``min_workers`` and ``max_workers``; every place is kept filled by a supervisor.

    Args:
        new_place: Given a new place, returns what makes the workers that fill it in turn.
        new_worker_id: Returns an id that no worker of the server has had.
        max_retry: How long a failing worker is started again (seconds).
        stop_limit: How long a worker that is to go may finish its jobs (seconds).
        renew_to_scale: Whether all workers are replaced when their number changes: each has its share of something.
    """

    def __init__(
        self,
        new_place: Callable[[Place], Callable[[], Worker]],
        new_worker_id: Callable[[], str],
        events: PoolEvents,
        metrics: ModelMetrics,
        max_retry: float,
        stop_limit: float,
        *,
        renew_to_scale: bool = False,
    ) -> None:
        self.min_workers = 0
        self.max_workers = 0
        self._new_place = new_place
        self._new_worker_id = new_worker_id
        self._events = events
        self._metrics = metrics
        self._max_retry = max_retry
        self._stop_limit = stop_limit
        self._renew_to_scale = renew_to_scale
        self._supervisors: list[Supervisor] = []
        self._leaving: set[Supervisor] = set()

    @property
    def supervisors(self) -> Sequence[Supervisor]:
        """The places, oldest first."""
        return self._supervisors

    @property
    def ready_count(self) -> int:
        """How many workers take jobs."""
        return sum(supervisor.ready for supervisor in self._supervisors)

    @property
    def healthy(self) -> bool:
        """Whether enough workers are up, starting, or being replaced: TorchServe's idea of health."""
        return sum(not supervisor.gave_up for supervisor in self._supervisors) >= self.min_workers

    async def scale(self, min_workers: int, max_workers: int) -> None:
        """Start workers up to ``min_workers``, stop the newest above ``max_workers``, replace those that gave up.

        Returns once every worker is ready, including those that were starting already, and every stopped worker is gone
        or survives SIGKILL.

        Raises:
            WorkerFailed: A worker failed to get ready; like a worker that dies it is started again.
        """
        self.min_workers, self.max_workers = min_workers, max_workers
        leaving = [supervisor for supervisor in self._supervisors if supervisor.gave_up]
        staying = [supervisor for supervisor in self._supervisors if not supervisor.gave_up]
        leaving += staying[max_workers:]
        staying = staying[:max_workers]
        count = max(min_workers, len(staying))
        if self._renew_to_scale and count != len(self._supervisors):
            leaving, staying = list(self._supervisors), []
        started = [self._start(Place(self._new_worker_id(), index, count)) for index in range(len(staying), count)]
        self._supervisors = staying + started
        self._tell_expected()
        outcomes = await asyncio.gather(
            *(supervisor.attempt() for supervisor in self._supervisors),
            *(self._stop(supervisor, self._stop_limit) for supervisor in leaving),
        )
        for failure in outcomes:
            if isinstance(failure, WorkerFailed):
                raise failure

    async def stop(self, limit: float) -> list[int]:
        """Stop every worker, and wait for those that are leaving already.

        Each may finish its jobs for at most ``limit`` seconds.

        Returns:
            The ids of the processes that survive even SIGKILL.
        """
        earlier = list(self._leaving)
        leaving, self._supervisors = self._supervisors, []
        self.min_workers = self.max_workers = 0
        await asyncio.gather(
            *(self._stop(supervisor, limit) for supervisor in leaving),
            *(supervisor.stopped(limit + _KILL_LIMIT) for supervisor in earlier),
        )
        return [supervisor.pid for supervisor in self._leaving]

    def _start(self, place: Place) -> Supervisor:
        supervisor = Supervisor(place.worker_id, self._new_place(place), self._events, self._max_retry)
        supervisor.on_ready = self._ready
        supervisor.on_restart = self._metrics.worker_restarts.inc
        supervisor.on_hopeless = self._tell_expected
        return supervisor

    def _ready(self, label: str, seconds: float) -> None:
        self._metrics.worker_load_time(label, seconds * 1000)
        self._tell_expected()

    async def _stop(self, supervisor: Supervisor, limit: float) -> None:
        """Stop a worker, but do not wait for ever: a process that hangs inside the kernel survives even SIGKILL."""
        self._leaving.add(supervisor)
        stopping = asyncio.create_task(supervisor.stop(limit))
        stopping.add_done_callback(lambda _: self._left(supervisor))
        await asyncio.wait([stopping], timeout=limit + _KILL_LIMIT)
        if stopping.done():
            await stopping
        else:
            logger.error("Worker %s (pid %d) does not end, not even by SIGKILL", supervisor.id, supervisor.pid)

    def _left(self, supervisor: Supervisor) -> None:
        self._leaving.discard(supervisor)
        if supervisor.worker is not None:
            self._metrics.forget_worker(supervisor.worker.label)

    def _tell_expected(self) -> None:
        """Requests are accepted while a worker that serves them can be expected."""
        trying = [supervisor for supervisor in self._supervisors if not supervisor.gave_up]
        self._events.set_workers(len(trying) if any(supervisor.expected for supervisor in trying) else 0)
