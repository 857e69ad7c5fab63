"""The source of stateless models: one queue of jobs for all workers, first in, first out unless an `Order` says more.

While `overload` says so, the newest job goes first.
"""

from collections.abc import Iterable
from itertools import takewhile
from typing import Any

from torchserve_py.base.causes import Cause, CloseReason
from torchserve_py.core.scheduling.job import Job
from torchserve_py.core.scheduling.lane import Lane, SharedState, WorkerLoad
from torchserve_py.core.scheduling.order import NewOrder
from torchserve_py.core.scheduling.overload import QueuePosition


class JobLane(Lane[Job]):
    """Waiting jobs; its members are as many as the queue may hold."""

    __slots__ = ("size",)

    def __init__(self, size: int, delay: float, order: NewOrder | None) -> None:
        super().__init__(delay, None if order is None else order(lambda job: job, True))
        self.size = size

    @property
    def members(self) -> int:
        """As many as the queue holds."""
        return self.size

    def may_go_ahead(self, room: int, now: float) -> bool:
        """Whether the batch is full or has waited its delay, and no job that comes later may go before it."""
        is_settled = self.order is None or self.order.is_settled
        return is_settled and (len(self.items) >= room or not self.waits(now))

    def take(self, room: int, only: Job | None = None) -> list[Job]:
        """The first jobs."""
        if only is not None:
            self.pop(only)
            return [only]
        return [self.take_first() for _ in range(min(room, len(self.items)))]


class Fifo:
    """With `tickets`, a job is accepted only while a worker has room (TorchServe's useJobTicket)."""

    def __init__(
        self,
        shared: SharedState,
        queue_size: int,
        delay: float = 0.0,
        *,
        tickets: bool = False,
        order: NewOrder | None = None,
    ) -> None:
        self.lane = JobLane(queue_size, delay, order)
        self._shared = shared
        self._tickets = tickets

    def admit(self, job: Job, now: float) -> Cause | None:
        """Queue the job unless the queue is full; a full one may make room for a job, at the cost of another."""
        lane, shared = self.lane, self._shared
        if self._tickets and not lane.free:
            return Cause.queue_full
        if len(lane.items) + lane.jobs_ahead >= lane.size and not self._make_room(job, now):
            return Cause.queue_full
        job.number = -shared.accepted if lane.put(job, now) else shared.accepted
        if lane.free or lane.busy:
            shared.lanes_to_serve.append(lane)
        return None

    def _make_room(self, job: Job, now: float) -> bool:
        """End the job that the order of the queue gives up for this one; return whether there is one."""
        other = None if self.lane.order is None else self.lane.order.makes_room(job, self.lane.items)
        if other is None:
            return False
        self.withdraw(other, now)
        self._shared.leave(other, Cause.queue_full)
        return True

    def lane_of(self, job: Job) -> JobLane:
        """Return the one lane."""
        return self.lane

    def item_in(self, lane: Lane[Any], job: Job) -> Job | None:
        """Return the job: whichever worker has room may take it."""
        return job

    def place_of(self, job: Job, now: float) -> QueuePosition:
        """Return where a new job would wait."""
        return QueuePosition(self.lane, self.lane.jobs_ahead + self.lane.before(job, now))

    def withdraw(self, job: Job, now: float) -> None:
        """Take a waiting job that has ended out of the queue."""
        self.lane.withdraw(job)

    def take_back(self, jobs: list[Job], now: float) -> None:
        """Queue jobs again that were sent, in their old places: before all but others that were taken back."""
        items, youngest = self.lane.items, max(job.number for job in jobs)
        older = list(takewhile(lambda job: job.number < youngest, items))
        for job in sorted([*older, *jobs], key=lambda job: job.number, reverse=True):
            self.lane.put_first(job, job.submitted_at)

    def worker_up(self, worker_id: str, now: float) -> WorkerLoad:
        """Return a new worker, which takes from the one lane like every other."""
        return WorkerLoad(worker_id, self.lane)

    def close(self, reason: CloseReason, now: float) -> None:
        """Forget every waiting job."""
        for job in list(self.lane.items):
            self.lane.withdraw(job)

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
