"""Where a worker's next jobs come from. Two sources: `Fifo` (one queue) and `Sequences` (a queue per sequence)."""

from typing import Protocol

from torchserve_py.scheduling.effects import Cause, EndReason
from torchserve_py.scheduling.job import Job
from torchserve_py.scheduling.lane import WorkerLoad


class Source(Protocol):
    """Holds the waiting jobs in lanes, and names a lane as one to serve when something of it may be sent anew."""

    def admit(self, job: Job, now: float) -> Cause | None:
        """Queue a new job, or say why it is refused."""

    def withdraw(self, job: Job, now: float) -> None:
        """Take a waiting job, which is over, out of its queue."""

    def worker_up(self, worker_id: str, now: float) -> WorkerLoad:
        """Return a new worker with the lane that it takes its jobs from."""

    def close(self, reason: EndReason, now: float) -> None:
        """Forget every job, and end every sequence that had one."""

    @property
    def remaining_capacity(self) -> int:
        """How much more is accepted at present: jobs of a stateless model, sequences of a stateful one."""
