"""The source of stateless models: one queue of jobs for all workers, first in, first out within a priority.

While `overload` says so, the newest job of a priority goes first.
"""

from collections.abc import Iterable
from itertools import takewhile
from typing import Any

from torchserve_py.scheduling.effects import Cause, CloseReason
from torchserve_py.scheduling.job import Job
from torchserve_py.scheduling.lane import Lane, Ranking, SharedState, WorkerLoad, is_more_urgent
from torchserve_py.scheduling.overload import Place


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

    def before(self, job: Job, now: float) -> int:
        """Return how many waiting jobs a new one would have to let go first."""
        newest_first = self.is_newest_first(now)
        if self.ranking:
            return self.ranking.before(job.priority, newest_first=newest_first)
        return 0 if job.priority or newest_first else len(self.items)

    def last(self) -> Job:
        """Return the waiting job that would go last."""
        return self.ranking.last(self.items) if self.ranking else next(reversed(self.items))

    def take(self, room: int) -> list[Job]:
        """The first jobs of those with the highest priority."""
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
        """Queue the job unless the queue is full; a full one makes room for a job that is more urgent than another."""
        if self._tickets and not self.lane.free:
            return Cause.queue_full
        if len(self.lane.items) + self.lane.jobs_ahead >= self.lane.size and not self._make_room(job, now):
            return Cause.queue_full
        newest_first = self.lane.put(job, now)
        job.number = -self._shared.accepted if newest_first else self._shared.accepted
        if job.priority or self.lane.ranking:
            self.lane.ranking.add(job, job.priority, self.lane.items, newest_first=newest_first)
        self._shared.lanes_to_serve.append(self.lane)
        return None

    def _make_room(self, job: Job, now: float) -> bool:
        """End the job that would go last, if it is less urgent than this one; return whether it was."""
        if not job.priority or not self.lane.items:
            return False
        last = self.lane.last()
        if not is_more_urgent(job.priority, last.priority):
            return False
        self.withdraw(last, now)
        self._shared.leave(last, Cause.queue_full)
        return True

    def lane_of(self, job: Job) -> JobLane:
        """Return the one lane."""
        return self.lane

    def place_of(self, job: Job, now: float) -> Place:
        """Return where a new job would wait."""
        return Place(self.lane, self.lane.jobs_ahead + self.lane.before(job, now))

    def withdraw(self, job: Job, now: float) -> None:
        """Take a waiting job that has ended out of the queue."""
        del self.lane.items[job]
        self.lane.ranking.withdraw(self.lane.items)

    def take_back(self, jobs: list[Job], now: float) -> None:
        """Queue jobs again that were sent ahead, in their old places: before all but others that were taken back."""
        items, youngest = self.lane.items, max(job.number for job in jobs)
        older = list(takewhile(lambda job: job.number < youngest, items))
        for job in sorted([*older, *jobs], key=lambda job: job.number, reverse=True):
            self.lane.put_first(job, job.submitted_at)

    def worker_up(self, worker_id: str, now: float) -> WorkerLoad:
        """Return a new worker, which takes from the one lane like every other."""
        return WorkerLoad(worker_id, self.lane)

    def close(self, reason: CloseReason, now: float) -> None:
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
