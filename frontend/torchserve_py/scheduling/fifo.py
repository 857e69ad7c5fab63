"""The source of stateless models: one queue of jobs for all workers, first in, first out within a priority."""

from torchserve_py.scheduling.effects import Cause, EndReason
from torchserve_py.scheduling.job import Job
from torchserve_py.scheduling.lane import Lane, Worker
from torchserve_py.scheduling.ledger import Ledger
from torchserve_py.scheduling.ranking import Ranking


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

    def take(self, room: int) -> list[Job]:
        """The oldest jobs of those with the highest priority."""
        items = self.items
        if self.ranking:
            return self._take_ranked(min(room, len(items)))
        return [items.popitem(last=False)[0] for _ in range(min(room, len(items)))]

    def _take_ranked(self, number: int) -> list[Job]:
        jobs = []
        for _ in range(number):
            job = self.ranking.pop(self.items)
            del self.items[job]
            jobs.append(job)
        return jobs


class Fifo:
    """With `tickets`, a job is accepted only while a worker has room (TorchServe's useJobTicket)."""

    def __init__(self, ledger: Ledger, queue_size: int, delay: float = 0.0, *, tickets: bool = False) -> None:
        self.lane = JobLane(queue_size, delay)
        self._ledger = ledger
        self._tickets = tickets

    def continues(self, job: Job) -> bool:
        """A job stands for itself."""
        return False

    def admit(self, job: Job, now: float) -> Cause | None:
        """Queue the job unless the queue is full."""
        if len(self.lane.items) >= self.lane.size or (self._tickets and not self.lane.free):
            return Cause.queue_full
        if job.priority or self.lane.ranking:
            self.lane.ranking.add(job, job.priority, self.lane.items)
        self.lane.items[job] = now
        self._ledger.stirred.append(self.lane)
        return None

    def withdraw(self, job: Job, now: float) -> None:
        """The job leaves the queue."""
        del self.lane.items[job]
        self.lane.ranking.left(self.lane.items)

    def streams(self, job: Job, now: float) -> None:
        """Of no consequence to other jobs."""

    def returned(self, job: Job, now: float) -> None:
        """Of no consequence to other jobs."""

    def worker_up(self, worker_id: str, now: float) -> Worker:
        """Every worker takes from the one lane."""
        return Worker(worker_id, self.lane)

    def retire(self, worker: Worker, now: float) -> None:
        """The queue stays for the others."""

    def worker_lost(self, worker: Worker, now: float) -> None:
        """The queue stays for the others."""

    def set_workers(self, count: int, now: float) -> None:
        """The queue's size does not depend on it."""

    def end_sequence(self, sequence_id: str, reason: EndReason, now: float) -> None:
        """There are none."""

    def end_idle(self, reason: EndReason, now: float, most: int | None) -> None:
        """There are none."""

    def close(self, reason: EndReason, now: float) -> None:
        """Nothing waits any more."""
        self.lane.items.clear()
        self.lane.ranking.left(self.lane.items)

    @property
    def remaining_capacity(self) -> int:
        """How many more jobs may wait."""
        return self.lane.size - len(self.lane.items)
