"""What becomes of the jobs that a worker had when it was lost."""

from torchserve_py.scheduling.effects import Cause
from torchserve_py.scheduling.job import CANCELLED, JOB_TRANSITIONS, STREAMING, Job
from torchserve_py.scheduling.lane import SharedState

#: How many workers a job is sent to while each of them dies.
MOST_SENDS = 3

#: Seconds within which a worker must be found that can tell what has become of a job.
OUTCOME_LIMIT = 30.0


def lose(shared: SharedState, job: Job, cause: Cause, now: float, *, durable: bool) -> None:
    """The job's worker is gone: another worker runs the job, or tells whether it was applied, or the job ends.

    A job of a stored sequence is sent again if its client has seen no part of an answer, since the store knows
    whether the job was applied. A job that was with every worker that died may be what kills them, and a job that a
    worker was silent about for too long would silence the next one too: these jobs only ask for their outcome.
    """
    if not durable or job.unbatched or job.state is CANCELLED:
        shared.leave(job, cause)
    elif job.state is STREAMING or (job.asks_after and job.expires_at is not None and job.expires_at <= now):
        shared.leave(job, Cause.outcome_unknown)
    else:
        job.state = JOB_TRANSITIONS[job.state, "requeue"]
        if not job.asks_after and (job.sends >= MOST_SENDS or cause is Cause.response_timeout):
            job.asks_after, job.expires_at = cause.value, now + OUTCOME_LIMIT
            shared.deadlines.bring_forward(job, now)  # its client may have been ready to wait for longer
        shared.deadlines.start_timer(job, now)
