"""A job: one inference request inside the server, from admission to its last byte.

    NEW ─ accept ▶ WAITING ─ send ▶ RUNNING ─ stream ▶ STREAMING
                      ◀── requeue ────┘└──── cancel ──────┴──── cancel ▶ CANCELLED

    sent, then answered by its worker:     answer ▶ DONE
    over in any other way, sent or not:    finish ▶ DONE

A CANCELLED job has its outcome, but its worker has not let go of it yet.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from torchserve_py.scheduling.lifecycle import Transitions


class JobState(StrEnum):
    """Where a job is between admission and its last byte."""

    NEW = "new"
    WAITING = "waiting"
    RUNNING = "running"
    STREAMING = "streaming"
    CANCELLED = "cancelled"
    DONE = "done"


class JobEvent(StrEnum):
    """What can happen to a job."""

    ACCEPT = "accept"
    SEND = "send"
    REQUEUE = "requeue"
    STREAM = "stream"
    CANCEL = "cancel"
    ANSWER = "answer"
    FINISH = "finish"


# Reading a member off its class takes 100 ns in Python 3.11; reading a module's constant takes a fifth of that.
NEW, WAITING, RUNNING, STREAMING, CANCELLED, DONE = JobState
ACCEPT, SEND, REQUEUE, STREAM, CANCEL, ANSWER, FINISH = JobEvent

JOB_TRANSITIONS = Transitions[JobState, JobEvent](
    {
        (NEW, ACCEPT): WAITING,
        (NEW, FINISH): DONE,
        (WAITING, SEND): RUNNING,
        (WAITING, FINISH): DONE,
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
    """One request. Its owner sets the first group of fields, the scheduler keeps the second.

    `alone` (a describe) travels in a batch of one and belongs to no sequence. Jobs of `priority` 1 go first, then those
    of 2 and so on, and those of 0 last. `expires_at` (monotonic seconds) is when its client stops waiting: a job that
    has not been sent by then never is. `payload` is never looked at. Until the job is sent, `worker_id` is empty and
    `sent_at` 0; `sends` counts how often it was. `opens` says that it is the first of its sequence for its worker, and
    `active_since` then since when the sequence is known not to have been idle for too long. With `only_ask`, the cause
    why the job ends, it is sent only to ask whether a worker that was lost has applied it.
    """

    id: str
    sequence_id: str | None = None
    starts_sequence: bool = False
    ends_sequence: bool = False
    alone: bool = False
    priority: int = 0
    expires_at: float | None = None
    payload: Any = None

    state: JobState = field(default=NEW, init=False)
    worker_id: str = field(default="", init=False)
    submitted_at: float = field(default=0.0, init=False)
    sent_at: float = field(default=0.0, init=False)
    sends: int = field(default=0, init=False)
    opens: bool = field(default=False, init=False)
    active_since: float = field(default=0.0, init=False)
    only_ask: str = field(default="", init=False)
    watched: bool = field(default=False, init=False, repr=False)

    def due(self, now: float) -> float | None:
        """When the job expires; None if it cannot any more: what was sent may have been run."""
        return self.expires_at if self.state is WAITING and not self.sends else None


class Unsettled:
    """A job that is sent only to ask what has become of it, and that ends without an answer `by` that moment."""

    __slots__ = ("by", "job", "watched")

    def __init__(self, job: Job, by: float) -> None:
        self.job = job
        self.by = by
        self.watched = False

    def due(self, now: float) -> float | None:
        """When to give it up while it waits for a worker; a worker that has it is watched by others."""
        if self.job.state is WAITING:
            return self.by
        return max(self.by, now + 1.0) if self.job.state is RUNNING else None
