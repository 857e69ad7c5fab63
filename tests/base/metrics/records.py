"""What the dispatcher records of jobs and calls of the handler, with the values that a test does not name."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torchserve_py.base.causes import Cause
from torchserve_py.base.metrics.model_metrics import BatchRecord, ModelMetrics
from ts.protocol.request_names import header_among

#: When all of it happens (seconds since 1970).
AT = 1_700_000_000.0


@dataclass(frozen=True)
class Ended:
    """A job that has its outcome, as metrics and plugins see it: a `metrics.model_metrics.EndedJob`."""

    submitted_at: float
    sent_at: float
    ended_at: float
    told: Cause | int = 200
    succeeded: bool = True
    id: str = "job"
    at: float = AT
    by_default: bool = True
    via: str = "http"
    headers: Iterable[tuple[Any, Any]] = ()
    trace_id: str | None = None
    sequence_id: str | None = None
    worker_id: str = ""
    state_size: int = 0
    opens: bool = False

    def header(self, name: str) -> str | None:
        return header_among(self.headers, name)


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
    model.ended(Ended(begun_at, sent_at, ended_at, told, not failed, at=at, by_default=by_default, via=via))


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
