"""What a scheduler and its sources share: every live job, the deadlines, and the effects of the present event."""

from typing import Any

from torchserve_py.scheduling.deadlines import Deadlines
from torchserve_py.scheduling.effects import Cause, Effect, Finish
from torchserve_py.scheduling.job import CANCELLED, JOB_TRANSITIONS, Job
from torchserve_py.scheduling.lane import Lane


class SharedState:
    """`jobs` are those accepted and not yet over, `accepted` is the number of all so far.

    `effects` are those of the present event so far, `lanes_to_serve` the lanes in which it has made something sendable;
    both are empty between events.
    """

    __slots__ = ("accepted", "deadlines", "effects", "jobs", "lanes_to_serve")

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self.deadlines = Deadlines()
        self.effects: list[Effect] = []
        self.lanes_to_serve: list[Lane[Any]] = []
        self.accepted = 0

    def accept(self, job: Job, now: float) -> None:
        """Add a job; it leaves once, through `leave`."""
        job.state = JOB_TRANSITIONS[job.state, "accept"]
        self.jobs[job.id] = job
        job.number = self.accepted
        self.accepted += 1
        if job.expires_at is not None:
            self.deadlines.start_timer(job, now)

    def leave(self, job: Job, cause: Cause | None) -> None:
        """Remove a job; there is no other way out. `cause` is None if its worker has answered it.

        A cancelled job that was in flight has had its outcome already and gets no other.
        """
        if cause is None:
            job.state = JOB_TRANSITIONS[job.state, "answer"]
        else:
            if job.state is not CANCELLED:
                self.effects.append(Finish(job, cause))
            job.state = JOB_TRANSITIONS[job.state, "finish"]
        self.jobs.pop(job.id, None)
