"""What a scheduler and its sources share: every live job, the deadlines, and what the present event brings about."""

from typing import Any

from torchserve_py.scheduling.deadlines import Deadlines
from torchserve_py.scheduling.effects import Cause, Effect, Finish
from torchserve_py.scheduling.job import ACCEPT, ANSWER, CANCELLED, FINISH, JOB_TRANSITIONS, Job
from torchserve_py.scheduling.lane import Lane


class Ledger:
    """`jobs` are those accepted and not yet over.

    `effects` and `stirred` (lanes of which something may be sent that could not before) are what the present event has
    brought about so far; both are empty between events.
    """

    __slots__ = ("deadlines", "effects", "jobs", "stirred")

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self.deadlines = Deadlines()
        self.effects: list[Effect] = []
        self.stirred: list[Lane[Any]] = []

    def accept(self, job: Job, now: float) -> None:
        """A job comes in: from here on it leaves once, through `leave`."""
        job.state = JOB_TRANSITIONS[job.state, ACCEPT]
        self.jobs[job.id] = job
        if job.expires_at is not None:
            self.deadlines.watch(job, now)

    def leave(self, job: Job, cause: Cause | None) -> None:
        """The one way out for a job: its worker has answered it (None), or this is the cause why it is over.

        A cancelled job that was in flight has had its outcome already and gets no other.
        """
        if cause is None:
            job.state = JOB_TRANSITIONS[job.state, ANSWER]
        else:
            if job.state is not CANCELLED:
                self.effects.append(Finish(job, cause))
            job.state = JOB_TRANSITIONS[job.state, FINISH]
        self.jobs.pop(job.id, None)
