"""What becomes of the jobs that a worker had when it was lost: which run again, which only ask, and which are over.

A job that was with a worker that died is a suspect: it may be what killed the worker, or it only shared the worker with
what did. A suspect runs again, alone, so that it can harm no other job, and no job waits for its answer because of
another one. A job that was with two workers that died does not run a third time; a worker that had not read it does
not count.
"""

from torchserve_py.base.causes import Cause
from torchserve_py.core.scheduling.job import CANCELLED, JOB_TRANSITIONS, RUNNING, STREAMING, Job
from torchserve_py.core.scheduling.lane import SharedState, WorkerLoad

#: How many workers a job is sent to, to run there, while each of them dies.
MOST_RUNS = 2
#: How many workers a job of a stored sequence is sent to at most: to run, and then only to ask what has become of it.
MOST_SENDS = 2 * MOST_RUNS

#: Seconds within which a worker must be found that can tell what has become of a job.
OUTCOME_LIMIT = 30.0


def spare_unread(worker: WorkerLoad) -> None:
    """Do not count that a suspect was sent to a worker that was lost before it has read it: others have ended that.

    It is what the worker was sent last: nothing is sent ahead behind a suspect.
    """
    latest = next(reversed(worker.in_flight.values()), None)
    if latest is not None and latest.was_sent_before and latest.state is RUNNING:
        latest.sends -= 1


def lose_stored(shared: SharedState, job: Job, cause: Cause, now: float) -> None:
    """The worker of a job of a stored sequence is gone: the job is sent again, or ends.

    It is sent again if its client has seen no part of an answer, since the store knows whether it was applied. After
    `MOST_RUNS`, and if a worker was silent about it for too long, since it would silence the next one too, it only asks
    for its outcome.
    """
    if job.unbatched or job.state is CANCELLED:
        shared.leave(job, cause)
        return
    asks_in_vain = job.sends >= MOST_SENDS or (job.expires_at is not None and job.expires_at <= now)
    if job.state is STREAMING or (job.asks_after and asks_in_vain):
        shared.leave(job, Cause.outcome_unknown)
        return
    job.state = JOB_TRANSITIONS[job.state, "requeue"]
    if not job.asks_after and (job.sends >= MOST_RUNS or cause is Cause.response_timeout):
        job.asks_after, job.expires_at = cause.value, now + OUTCOME_LIMIT
        shared.deadlines.bring_forward(job, now)  # its client may have been ready to wait for longer
    shared.deadlines.start_timer(job, now)
    if job.is_suspect:
        shared.alone[job.id] = job


def lose_stateless(shared: SharedState, job: Job, cause: Cause, now: float) -> bool:
    """The worker of a job without a sequence is gone: return whether the job runs again; if not, it is over.

    It does not if its client has seen a part of the answer, or has sent the worker some of its inputs; after
    `MOST_RUNS`; or if a worker was silent about it for too long, since it would silence the next one too.
    """
    is_seen = job.state in (STREAMING, CANCELLED) or job.open_ended
    is_late = job.expires_at is not None and job.expires_at <= now
    if is_seen or is_late or job.sends >= MOST_RUNS or cause is not Cause.worker_died:
        shared.leave(job, cause)
        return False
    job.state = JOB_TRANSITIONS[job.state, "requeue"]
    shared.deadlines.start_timer(job, now)
    shared.alone[job.id] = job
    return True
