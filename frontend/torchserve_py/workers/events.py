"""Events of the workers of a model version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from torchserve_py.jobs.inference_job import InferenceJob
from torchserve_py.jobs.parts import Part
from torchserve_py.scheduling.effects import Cause

if TYPE_CHECKING:
    from torchserve_py.workers.worker import Worker


class WorkerEvents(Protocol):
    """Takes what workers send and what becomes of them, and knows their jobs. It is `core.dispatcher.Dispatcher`."""

    def results(self, worker: Worker, results: Sequence[Part], handler_seconds: float) -> None:
        """Take parts of responses."""

    def taken(self, worker: Worker, job_id: str, count: int) -> None:
        """Note that the model has taken ``count`` further inputs of a job."""

    def model_metrics(self, entries: list[list[Any]]) -> None:
        """Take metrics that the handler has emitted."""

    def jobs_of(self, worker: Worker) -> Mapping[str, InferenceJob]:
        """Return the jobs that the worker has, by id."""

    def cancel(self, job: InferenceJob, cause: Cause) -> None:
        """End a job for this cause, and tell its worker to drop it."""

    def set_workers(self, count: int) -> None:
        """Take how many workers can be expected to take jobs."""

    def worker_up(self, worker: Worker) -> None:
        """Give jobs to the worker from now on."""

    def take_out(self, worker: Worker) -> None:
        """Give the worker no more jobs."""

    def worker_lost(self, worker: Worker) -> None:
        """End the jobs of a worker whose connection is gone."""

    async def retire(self, worker: Worker, limit: float) -> None:
        """Give the worker no more jobs, and wait at most ``limit`` seconds until it has none left."""
