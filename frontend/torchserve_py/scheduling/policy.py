"""What one model version asks of its scheduler."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SequencePolicy:
    """Limits of the sequences of a stateful model.

    max_idle         seconds without a job after which a sequence closes (sequenceMaxIdleMSec)
    timeout          seconds that a sequence may live, None for ever (sequenceTimeoutMSec)
    queue_size       jobs that may wait in one sequence, those in flight not counted (maxSequenceJobQueueSize)
    max_sequences    sequences that may be open; never less than the workers' batches hold (maxNumSequence)
    restart_expired  a job of a closed sequence opens a new one instead of being refused (onExpiredSequence: restart)
    durable          a store has the sequences' states, and knows which jobs were applied: the sequences of a lost
                     worker go on with another one, and a drain does not wait for sequences (handler.cache.store)
    """

    max_idle: float
    timeout: float | None = None
    queue_size: int = 1
    max_sequences: int = 1
    restart_expired: bool = False
    durable: bool = False


@dataclass(frozen=True, slots=True)
class Policy:
    """How the jobs of a model version are batched.

    batch_size       jobs per batch; with `continuous`, jobs (or sequences) running at once per worker
    max_batch_delay  seconds that a job may wait for a fuller batch; without meaning if `continuous`
    queue_size       jobs that may wait, if the model has no sequences (jobQueueSize)
    continuous       jobs join a worker's running ones at once instead of waiting for the next batch
    ahead            a worker that runs a batch may be sent its next one; without meaning if `continuous`, or if
                     `job_ticket` counts
    job_ticket       a job is accepted only while a worker can take it at once; ignored for sequences (useJobTicket)
    sequences        None for a stateless model
    """

    batch_size: int = 1
    max_batch_delay: float = 0.0
    queue_size: int = 100
    continuous: bool = False
    ahead: bool = False
    job_ticket: bool = False
    sequences: SequencePolicy | None = None
