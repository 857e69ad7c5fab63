"""A job: one inference request inside the server, from admission to its last byte.

    NEW ─ accept ▶ WAITING ─ send ▶ RUNNING ─ stream ▶ STREAMING
                      ◀── requeue ────┘└──── cancel ──────┴──── cancel ▶ CANCELLED

    sent to a worker that still runs other jobs:     WAITING ─ send_ahead ▶ AHEAD ─ begin ▶ RUNNING
                                                        ◀── take_back ────────┘

    sent, then answered by its worker:     answer ▶ DONE
    ended in any other way, sent or not:   finish ▶ DONE

A CANCELLED job has its outcome, but its worker still holds it. A job that is AHEAD does not count as sent.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from torchserve_py.scheduling.transitions import Transitions


class JobState(StrEnum):
    """Where a job is between admission and its last byte."""

    NEW = "new"
    WAITING = "waiting"
    AHEAD = "ahead"
    RUNNING = "running"
    STREAMING = "streaming"
    CANCELLED = "cancelled"
    DONE = "done"


class JobEvent(StrEnum):
    """What can happen to a job."""

    ACCEPT = "accept"
    SEND = "send"
    REQUEUE = "requeue"
    SEND_AHEAD = "send_ahead"
    BEGIN = "begin"
    TAKE_BACK = "take_back"
    STREAM = "stream"
    CANCEL = "cancel"
    ANSWER = "answer"
    FINISH = "finish"


# Reading a member off its class takes 100 ns in Python 3.11; reading a module's constant takes a fifth of that.
NEW, WAITING, AHEAD, RUNNING, STREAMING, CANCELLED, DONE = JobState
ACCEPT, SEND, REQUEUE, SEND_AHEAD, BEGIN, TAKE_BACK, STREAM, CANCEL, ANSWER, FINISH = JobEvent

JOB_TRANSITIONS = Transitions[JobState, JobEvent](
    {
        (NEW, ACCEPT): WAITING,
        (NEW, FINISH): DONE,
        (WAITING, SEND): RUNNING,
        (WAITING, FINISH): DONE,
        (WAITING, SEND_AHEAD): AHEAD,
        (AHEAD, BEGIN): RUNNING,
        (AHEAD, TAKE_BACK): WAITING,
        (RUNNING, REQUEUE): WAITING,
        (RUNNING, STREAM): STREAMING,
        (RUNNING, CANCEL): CANCELLED,
        (RUNNING, ANSWER): DONE,
        (RUNNING, FINISH): DONE,
        (STREAMING, STREAM): STREAMING,
        (STREAMING, CANCEL): CANCELLED,
        (STREAMING, ANSWER): DONE,
        (STREAMING, FINISH): DONE,
        (CANCELLED, STREAM): CANCELLED,
        (CANCELLED, ANSWER): DONE,
        (CANCELLED, FINISH): DONE,
    }
)


@dataclass(slots=True, eq=False)
class Job:
    """One request. The job's owner sets the first group of fields, the scheduler keeps the second. Owners may add more.

    once          whether the job is refused once its sequence has ended, instead of beginning it anew
    unbatched     a describe: it travels in a batch of one and belongs to no sequence
    priority      jobs of priority 1 go first, then those of 2 and so on; those of 0 go last
    expires_at    when the client stops waiting (monotonic seconds): a job that was not sent by then is never sent
    number        how many jobs were accepted before it
    worker_id     the worker that the job was sent to last; empty before that
    sends         how often the job was sent
    ready_since   since when the job could be sent, if it is one of a sequence
    opens         whether the job is the first of its sequence for its worker
    active_since  for a job that opens: since when the sequence is known not to have been idle for too long
    only_ask      why the job ends, if it is sent only to ask whether a worker that was lost has applied it
    timer         kept by `Deadlines`
    """

    id: str
    sequence_id: str | None = None
    starts_sequence: bool = False
    ends_sequence: bool = False
    once: bool = False
    unbatched: bool = False
    priority: int = 0
    expires_at: float | None = None

    state: JobState = field(default=NEW, init=False)
    number: int = field(default=0, init=False)
    worker_id: str = field(default="", init=False)
    submitted_at: float = field(default=0.0, init=False)
    sent_at: float = field(default=0.0, init=False)
    sends: int = field(default=0, init=False)
    ready_since: float = field(default=0.0, init=False)
    opens: bool = field(default=False, init=False)
    active_since: float = field(default=0.0, init=False)
    only_ask: str = field(default="", init=False)
    timer: int = field(default=0, init=False, repr=False)

    def due(self, now: float) -> float | None:
        """When the job expires; None once it was sent to be run, since it may have run."""
        return self.expires_at if not self.sends and self.state in (WAITING, AHEAD) else None

    @property
    def was_sent_before(self) -> bool:
        """Whether another worker was sent the job to run it."""
        return self.sends > (self.state is not AHEAD)


class OutcomeQuery:
    """The deadline of a job that is sent only to ask what has become of it: it ends without an answer `by` then."""

    __slots__ = ("by", "job", "timer")

    def __init__(self, job: Job, by: float) -> None:
        self.job = job
        self.by = by
        self.timer = 0

    def due(self, now: float) -> float | None:
        """When to give the job up while it waits for a worker; once a worker has it, the worker's limits hold."""
        if self.job.state in (WAITING, AHEAD):
            return self.by
        return max(self.by, now + 1.0) if self.job.state is RUNNING else None
