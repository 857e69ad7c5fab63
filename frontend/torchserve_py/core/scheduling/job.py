"""A job: one inference request inside the server, from admission to its last byte.

    NEW ─ accept ▶ WAITING ─ send ▶ RUNNING ─ stream ▶ STREAMING
                      ◀── requeue ────┘└──── cancel ──────┴──── cancel ▶ CANCELLED

    sent to a worker that still runs other jobs:     WAITING ─ send_ahead ▶ AHEAD ─ begin ▶ RUNNING
                                                        ◀── take_back ────────┘

    sent, then answered by its worker:     answer ▶ DONE
    ended in any other way, sent or not:   finish ▶ DONE

A CANCELLED job has its outcome, but its worker still holds it: its client has left or reads too slowly, or the worker
is silent or sends nonsense. A job that is AHEAD does not count as sent. One that another version is to run is DONE
here, and NEW again there (`Call.begin_again`).
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, TypeAlias

from torchserve_py.core.scheduling.timing import Timing
from torchserve_py.core.scheduling.transitions import Transitions


class JobState(StrEnum):
    """Where a job is between admission and its last byte."""

    NEW = "new"
    WAITING = "waiting"
    AHEAD = "ahead"
    RUNNING = "running"
    STREAMING = "streaming"
    CANCELLED = "cancelled"
    DONE = "done"


# Reading a member off its class takes 100 ns in Python 3.11; reading a module's constant takes a fifth of that.
NEW, WAITING, AHEAD, RUNNING, STREAMING, CANCELLED, DONE = JobState

JobEvent: TypeAlias = Literal[
    "accept", "send", "requeue", "send_ahead", "begin", "take_back", "stream", "cancel", "answer", "finish"
]
JOB_TRANSITIONS = Transitions[JobState, JobEvent](
    {
        (NEW, "accept"): WAITING,
        (NEW, "finish"): DONE,
        (WAITING, "send"): RUNNING,
        (WAITING, "finish"): DONE,
        (WAITING, "send_ahead"): AHEAD,
        (AHEAD, "begin"): RUNNING,
        (AHEAD, "take_back"): WAITING,
        (RUNNING, "requeue"): WAITING,
        (RUNNING, "stream"): STREAMING,
        (RUNNING, "cancel"): CANCELLED,
        (RUNNING, "answer"): DONE,
        (RUNNING, "finish"): DONE,
        (STREAMING, "stream"): STREAMING,
        (STREAMING, "cancel"): CANCELLED,
        (STREAMING, "answer"): DONE,
        (STREAMING, "finish"): DONE,
        (CANCELLED, "stream"): CANCELLED,
        (CANCELLED, "answer"): DONE,
        (CANCELLED, "finish"): DONE,
    }
)


@dataclass(slots=True, eq=False)
class Job:
    """One request. Its owner sets the first group of fields, the scheduler keeps the second. Owners may add more."""

    id: str
    sequence_id: str | None = None
    starts_sequence: bool = False
    ends_sequence: bool = False
    step: int | None = None  # the number of the job in its sequence, from 1, if its client says so
    token: str | None = None  # what names the sequence among all with its id, if the client says so
    open_ended: bool = False  # its client decides how long it runs, by further inputs
    unbatched: bool = False  # a describe: it travels in a batch of one and belongs to no sequence
    priority: int = 0  # jobs of priority 1 go first, then those of 2 and so on; those of 0 go last
    client: str = ""  # whose job it is, for an order in which clients take turns
    weight: float = 1.0  # how many turns its client has beside one with 1
    #: When the client stops waiting (monotonic seconds): a job that was not sent by then is never sent. For a job that
    #: only asks: until when the scheduler looks for a worker that can tell.
    expires_at: float | None = None
    #: By when the client wants the whole answer, if it has said so; `expires_at` is no later then.
    answer_by: float | None = None
    #: Its deadline, if it has one.
    timing: Timing | None = None
    #: The version that had the job before, and found that it does not run the sequence.
    handed_over_by: object | None = None

    state: JobState = field(default=NEW, init=False)
    #: Of jobs without a sequence the one with the lowest number goes first: how many were accepted before it, and that
    #: below zero if the newest go first.
    number: int = field(default=0, init=False)
    worker_id: str = field(default="", init=False)  # the worker that the job was sent to last; empty before that
    submitted_at: float = field(default=0.0, init=False)
    sent_at: float = field(default=0.0, init=False)
    sends: int = field(default=0, init=False)  # how often the job was sent
    ready_since: float = field(default=0.0, init=False)  # since when the job could be sent, if it is one of a sequence
    opens: bool = field(default=False, init=False)  # whether the job is the first of its sequence for its worker
    #: For a job that opens: since when the sequence is known not to have been idle for too long.
    active_since: float = field(default=0.0, init=False)
    failed: bool = field(default=False, init=False)  # whether its answer is an error
    #: Why its worker was lost, if the job is sent only to ask whether that worker has applied it.
    asks_after: str = field(default="", init=False)
    timer: int = field(default=0, init=False, repr=False)  # kept by `Deadlines`

    @property
    def is_part_of_another(self) -> bool:
        """Whether it belongs to a job that was accepted before."""
        return False

    @property
    def is_timed(self) -> bool:
        """Whether it tells how long steps take: it runs with others, and as long as its model likes."""
        return not (self.unbatched or self.asks_after or self.open_ended)

    def due(self, now: float) -> float | None:
        """When the job expires while it waits for a worker.

        None for a step of a sequence once it was sent to be run, since it may have run.
        """
        may_have_run = self.sends and not self.asks_after and self.sequence_id is not None
        return self.expires_at if self.state in (WAITING, AHEAD) and not may_have_run else None

    @property
    def is_suspect(self) -> bool:
        """Whether the job, which waits, may be what killed the worker that it was sent to before."""
        return bool(self.sends) and not self.asks_after

    @property
    def was_sent_before(self) -> bool:
        """Whether another worker was sent the job to run it."""
        return self.sends > (self.state is not AHEAD)
