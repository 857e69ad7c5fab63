"""Where a worker's next jobs come from. Two sources: `Fifo` (one queue) and `Sequences` (a queue per sequence)."""

from typing import Protocol

from torchserve_py.scheduling.admission import Admission, WhenIdle, WhileBelow
from torchserve_py.scheduling.effects import Cause, EndReason
from torchserve_py.scheduling.fifo import Fifo
from torchserve_py.scheduling.job import Job
from torchserve_py.scheduling.lane import WorkerLoad
from torchserve_py.scheduling.policy import Policy
from torchserve_py.scheduling.sequences import Sequences
from torchserve_py.scheduling.shared_state import SharedState


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


def compose(policy: Policy, shared: SharedState) -> tuple[Source, Admission]:
    """Return what a policy asks for. A job ticket is for one job, so it makes batches of one."""
    size = policy.batch_size
    if policy.sequences is not None:
        if policy.continuous:
            return Sequences(shared, policy.sequences, size, 0.0, joins=True), WhileBelow(2 * size)
        return Sequences(shared, policy.sequences, size, policy.max_batch_delay, joins=False), WhenIdle(size)
    if policy.continuous:
        return Fifo(shared, policy.queue_size, tickets=policy.job_ticket), WhileBelow(size)
    size = 1 if policy.job_ticket else size
    return Fifo(shared, policy.queue_size, policy.max_batch_delay, tickets=policy.job_ticket), WhenIdle(size)
