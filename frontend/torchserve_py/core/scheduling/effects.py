"""What the scheduler asks of the world: values that the shell around it performs, in order."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from torchserve_py.base.causes import Cause, CloseReason


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


class Fetch(NamedTuple):
    """Give the worker what another server has left of this sequence, which waits; then call `Scheduler.fetched`."""

    worker_id: str
    sequence: Any


class Released(NamedTuple):
    """The retired worker has no jobs in flight any more and may be stopped."""

    worker_id: str


Effect = Send | SendAhead | Begin | Finish | Cancel | CloseSequence | Fetch | Released
Effects = Sequence[Effect]
