"""What the dispatcher records of jobs and calls of the handler, with the values that a test does not name."""

from collections.abc import Sequence

from torchserve_py.metrics.model_metrics import BatchRecord, JobRecord, ModelMetrics
from torchserve_py.scheduling.effects import Cause

#: When all of it happens (seconds since 1970).
AT = 1_700_000_000.0


def end_job(
    model: ModelMetrics,
    took: float = 0.0,
    *,
    waited: float | None = None,
    by_default: bool = False,
    via: str = "http",
    told: Cause | int = 200,
    failed: bool = False,
    at: float = AT,
    ended_at: float = 100.0,
) -> None:
    """A job has its outcome after so many seconds, of which it waited some; None: it was never sent."""
    begun_at = ended_at - took
    sent_at = 0.0 if waited is None else begun_at + waited
    model.ended(JobRecord(at, begun_at, sent_at, ended_at, by_default, via, told, failed, "job", (), "", "", "", 0))


def end_batch(
    model: ModelMetrics,
    seconds: float,
    round_trip: float,
    answered: int = 1,
    job_ids: Sequence[str] = ("job",),
    at: float = AT,
) -> None:
    """A call of the handler took so long, and answered so many jobs."""
    model.batches.append(BatchRecord(at, seconds, round_trip, answered, job_ids))
