"""The source of stateless models: one queue of jobs for all workers, first in, first out within a priority."""

from collections.abc import Iterable
from itertools import takewhile
from typing import Any

from torchserve_py.scheduling.effects import Cause, EndReason
from torchserve_py.scheduling.job import Job
from torchserve_py.scheduling.lane import Lane, Ranking, SharedState, WorkerLoad


class JobLane(Lane[Job]):
    """Waiting jobs; its members are as many as the queue may hold."""

    __slots__ = ("ranking", "size")

    def __init__(self, size: int, delay: float) -> None:
        super().__init__(delay)
        self.size = size
        self.ranking = Ranking[Job]()

    @property
    def members(self) -> int:
        """As many as the queue holds."""
        return self.size

    def may_go_ahead(self, room: int, now: float) -> bool:
        """Whether the batch is full or has waited its delay, and no job that comes later may go before it."""
        return not self.ranking and (len(self.items) >= room or not self.waits(now))

    def take(self, room: int) -> list[Job]:
        """The oldest jobs of those with the highest priority."""
        jobs: list[Job] = []
        items = self.items
        while items and len(jobs) < room:
            if self.ranking:
                jobs.append(self.ranking.take(items))
                del items[jobs[-1]]
            else:
                jobs.append(items.popitem(last=False)[0])
        return jobs


class Fifo:
    """With `tickets`, a job is accepted only while a worker has room (TorchServe's useJobTicket)."""

    def __init__(self, shared: SharedState, queue_size: int, delay: float = 0.0, *, tickets: bool = False) -> None:
        self.lane = JobLane(queue_size, delay)
        self._shared = shared
        self._tickets = tickets

    def admit(self, job: Job, now: float) -> Cause | None:
        """Queue the job unless the queue is full."""
        if len(self.lane.items) + self.lane.jobs_ahead >= self.lane.size or (self._tickets and not self.lane.free):
            return Cause.queue_full
        if job.priority or self.lane.ranking:
            self.lane.ranking.add(job, job.priority, self.lane.items)
        self.lane.items[job] = now
        self._shared.lanes_to_serve.append(self.lane)
        return None

    def withdraw(self, job: Job, now: float) -> None:
        """Take a waiting job that has ended out of the queue."""
        del self.lane.items[job]
        self.lane.ranking.withdraw(self.lane.items)

    def take_back(self, jobs: list[Job], now: float) -> None:
        """Queue jobs again that were sent ahead, in their old places: before all but others that were taken back."""
        items = self.lane.items
        older = list(takewhile(lambda job: job.number < jobs[-1].number, items))
        for job in sorted([*older, *jobs], key=lambda job: job.number, reverse=True):
            items[job] = job.submitted_at
            items.move_to_end(job, last=False)

    def worker_up(self, worker_id: str, now: float) -> WorkerLoad:
        """Return a new worker, which takes from the one lane like every other."""
        return WorkerLoad(worker_id, self.lane)

    def close(self, reason: EndReason, now: float) -> None:
        """Forget every waiting job."""
        self.lane.items.clear()
        self.lane.ranking.withdraw(self.lane.items)

    @property
    def lanes(self) -> Iterable[Lane[Any]]:
        """The one lane."""
        return (self.lane,)

    def is_bound(self, worker: WorkerLoad) -> bool:
        """No worker has state that would be lost with it."""
        return False

    @property
    def remaining_capacity(self) -> int:
        """How many more jobs may wait."""
        return self.lane.size - len(self.lane.items) - self.lane.jobs_ahead
