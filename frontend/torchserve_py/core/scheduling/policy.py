"""What one model version asks of its scheduler."""

import math
from dataclasses import dataclass
from typing import Final

DEADLINE_SAFETY: Final = 0.1


@dataclass(frozen=True, slots=True)
class SequencePolicy:
    """Limits of the sequences of a stateful model."""

    max_idle: float  # seconds without a job after which a sequence closes (sequenceMaxIdleMSec, expireSec)
    timeout: float | None = None  # seconds that a sequence may live, None for ever (sequenceTimeoutMSec)
    queue_size: int = 1  # jobs that may wait in one sequence, those in flight not counted (maxSequenceJobQueueSize)
    #: Sequences that may be open, never less than the workers' batches hold (maxNumSequence). One more is refused; if a
    #: store has the states, a sequence that rests leaves its worker instead.
    max_sequences: int = 1
    #: A job of a closed sequence opens a new one instead of being refused (onExpiredSequence: restart).
    restart_expired: bool = False
    #: A store has the sequences' states, and knows which jobs were applied: a lost worker's sequences continue with
    #: another one, and a drain does not wait for sequences (handler.cache.store).
    durable: bool = False
    #: Only a job with the start marker, or step 1, opens a sequence (requireStart).
    require_start: bool = False
    remembered: float = 86_400.0  # seconds for which the end of a sequence is remembered (rememberEndedSec)
    #: Seconds without a job after which a stored sequence leaves its worker; it goes on from the store
    #: (sequenceMaxIdleMSec where expireSec is set).
    max_rest: float = math.inf


@dataclass(frozen=True, slots=True)
class Policy:
    """How the jobs of a model version are batched."""

    batch_size: int = 1  # jobs per batch; with `continuous`, jobs (or sequences) running at once per worker
    max_batch_delay: float = 0.0  # seconds that a job may wait for a fuller batch; without meaning if `continuous`
    queue_size: int = 100  # jobs that may wait, if the model has no sequences (jobQueueSize)
    continuous: bool = False  # jobs join a worker's running ones at once instead of waiting for the next batch
    #: A worker that runs a batch may be sent its next one; without meaning if `continuous`, or if `job_ticket` counts.
    ahead: bool = False
    #: A job is accepted only while a worker can take it at once; ignored for sequences (useJobTicket).
    job_ticket: bool = False
    deadline_safety: float = DEADLINE_SAFETY  # the share of the time that guarantees leave free (deadlineSafety)
    sequences: SequencePolicy | None = None  # None for a stateless model
