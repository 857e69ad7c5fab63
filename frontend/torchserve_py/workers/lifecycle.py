"""The lifecycle of a worker process, its limits, and who is told of it.

    STARTING ──connected──▶ LOADING ──loaded──▶ READY ──stop──▶ STOPPING ──exited──▶ STOPPED
        │                      │                  │                 ▲
        │                      └──────stop────────┼─────────────────┘
        └──────────────any of them: died──────────┴──▶ DIED

A ready worker is busy while it has jobs; that is no state of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

from torchserve_py.jobs.inference_job import InferenceJob
from torchserve_py.jobs.parts import Part
from torchserve_py.scheduling.effects import Cause

if TYPE_CHECKING:
    from torchserve_py.workers.worker import Worker


class WorkerState(StrEnum):
    """Where a worker process is between its launch and its exit."""

    STARTING = "starting"  # launched, not yet connected
    LOADING = "loading"  # told to load the model
    READY = "ready"  # takes jobs
    STOPPING = "stopping"  # told to stop
    STOPPED = "stopped"  # gone, after a stop
    DIED = "died"  # gone, on its own


@dataclass(frozen=True)
class WorkerLimits:
    """How long a worker may take, in seconds."""

    connect: float  # from launch to its connection
    load: float  # to load the model
    response: float  # without a word while it has jobs
    stop: float  # from the stop message to its exit
    heartbeat: float  # without answering a ping, once loaded


class WorkerEvents(Protocol):
    """Takes what workers send and what becomes of them, and knows their jobs: see `core.dispatcher.Dispatcher`."""

    def results(self, worker: Worker, results: Sequence[Part], handler_seconds: float) -> None: ...
    def taken(self, worker: Worker, job_id: str, count: int) -> None: ...
    def model_metrics(self, entries: list[list[Any]]) -> None: ...
    def jobs_of(self, worker: Worker) -> Mapping[str, InferenceJob]: ...
    def cancel(self, job: InferenceJob, cause: Cause) -> None: ...
    def set_workers(self, count: int) -> None: ...
    def worker_up(self, worker: Worker) -> None: ...
    def take_out(self, worker: Worker) -> None: ...
    def worker_lost(self, worker: Worker) -> None: ...
    async def retire(self, worker: Worker, limit: float) -> None: ...
