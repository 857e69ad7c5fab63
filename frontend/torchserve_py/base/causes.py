"""Why jobs and sequences end and why the number of workers changes, as answers, handlers, logs and metrics name it."""

from enum import StrEnum


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
    deadline_missed = "deadline_missed"
    deadline_capacity = "deadline_capacity"
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


class Reason(StrEnum):
    """Why the number of workers changes."""

    waiting = "waiting"  # jobs wait longer than the target
    request = "request"  # there is no worker, and a job has come
    spare = "spare"  # fewer workers are enough
    idle = "idle"  # nothing was asked for
