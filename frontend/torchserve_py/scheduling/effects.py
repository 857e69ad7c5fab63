"""What the scheduler asks of the world: values that the shell around it performs, in order."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, NamedTuple


class Cause(StrEnum):
    """Why a job ends without an answer from its handler; the client sees it as `ts-error-cause`."""

    no_worker = "no_worker"
    draining = "draining"
    interrupted = "interrupted"
    queue_full = "queue_full"
    overloaded = "overloaded"
    not_loaded = "not_loaded"
    sequence_queue_full = "sequence_queue_full"
    sequence_capacity = "sequence_capacity"
    sequence_expired = "sequence_expired"
    sequence_lost = "sequence_lost"
    sequence_ended = "sequence_ended"
    sequence_unknown = "sequence_unknown"
    sequence_open = "sequence_open"
    version_gone = "version_gone"
    migration_failed = "migration_failed"
    state_damaged = "state_damaged"
    step_applied = "step_applied"
    step_differs = "step_differs"
    step_gap = "step_gap"
    worker_died = "worker_died"
    response_timeout = "response_timeout"
    client_timeout = "client_timeout"
    rate_limited = "rate_limited"
    too_many_at_once = "too_many_at_once"
    too_many_tokens = "too_many_tokens"
    too_many_sequences = "too_many_sequences"
    unregistered = "unregistered"
    sequence_moved = "sequence_moved"
    sequence_store = "sequence_store"
    outcome_unknown = "outcome_unknown"
    request_running = "request_running"
    not_applied = "not_applied"
    cancelled = "cancelled"


class CloseReason(StrEnum):
    """Why a sequence is over; its handler gets it in `on_sequence_end`."""

    ended = "ended"
    idle = "idle"
    timeout = "timeout"
    evicted = "evicted"
    worker_lost = "worker_lost"
    suspended = "suspended"  # its state is stored, and no worker has it any more: the next job opens it again
    unregistered = "unregistered"
    drained = "drained"


class Send(NamedTuple):
    """Send these jobs to the worker as one batch."""

    worker_id: str
    jobs: Sequence[Any]  # of the type that the owner has submitted


class SendAhead(NamedTuple):
    """Send these jobs to a worker that runs others, to begin once it has answered those.

    `joins`: they join the batch that was sent ahead before, if the worker has not begun that when they arrive.
    """

    worker_id: str
    jobs: Sequence[Any]
    joins: bool


class Begin(NamedTuple):
    """The worker begins these jobs, which it was sent ahead."""

    worker_id: str
    jobs: Sequence[Any]


class Finish(NamedTuple):
    """Tell the client why its job is over without an answer from the handler. At most once per job."""

    job: Any
    cause: Cause


class Cancel(NamedTuple):
    """Tell the worker to drop these jobs; it still answers each with a last part."""

    worker_id: str
    job_ids: Sequence[str]


class CloseSequence(NamedTuple):
    """The sequence is over: its worker, None if it had none, may drop the state. Once per opened sequence.

    `at` is since when it is over: the next event may come long after a sequence has expired.
    """

    worker_id: str | None
    sequence_id: str
    reason: CloseReason
    at: float


class Released(NamedTuple):
    """The retired worker has no jobs in flight any more and may be stopped."""

    worker_id: str


Effect = Send | SendAhead | Begin | Finish | Cancel | CloseSequence | Released
Effects = Sequence[Effect]
