"""Where a worker's next jobs come from. Two sources: `Fifo` (one queue) and `Sequences` (a queue per sequence)."""

from typing import Protocol

from torchserve_py.scheduling.effects import Cause, EndReason
from torchserve_py.scheduling.job import Job
from torchserve_py.scheduling.lane import Worker


class Source(Protocol):
    """Holds the waiting jobs in lanes, and stirs a lane when something of it may be sent that could not before."""

    def continues(self, job: Job) -> bool:
        """Whether the job belongs to something open, and so is accepted even while draining."""

    def admit(self, job: Job, now: float) -> Cause | None:
        """Queue a new job, or say why it is refused."""

    def withdraw(self, job: Job, now: float) -> None:
        """A waiting job is over."""

    def streams(self, job: Job, now: float) -> None:
        """A job in flight has produced its first part, and more will follow."""

    def returned(self, job: Job, now: float) -> None:
        """A job in flight is over."""

    def worker_up(self, worker_id: str, now: float) -> Worker:
        """A worker is ready; it comes back with the lane that it takes from."""

    def retire(self, worker: Worker, now: float) -> None:
        """The worker takes nothing more; what it has in flight still returns."""

    def worker_lost(self, worker: Worker, now: float) -> None:
        """The worker is gone, and its jobs in flight are over."""

    def set_workers(self, count: int, now: float) -> None:
        """So many workers are wanted."""

    def end_sequence(self, sequence_id: str, reason: EndReason, now: float) -> None:
        """The sequence, if it is open, ends once nothing of it is in flight."""

    def close(self, reason: EndReason, now: float) -> None:
        """Every job is over: end every sequence that had one."""

    def end_idle(self, reason: EndReason, now: float, most: int | None) -> None:
        """End sequences that have no job: all of them (None), or so many at most."""

    @property
    def remaining_capacity(self) -> int:
        """How much more is accepted at present: jobs of a stateless model, sequences of a stateful one."""
