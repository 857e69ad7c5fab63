"""A model version as the management API describes it: TorchServe's fields, in its order."""

from __future__ import annotations

from datetime import UTC
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchserve_py.core.serving import ModelStatus, ServedModel, WorkerStatus


def describe(model: ServedModel, status: ModelStatus) -> dict[str, Any]:
    """What ``GET /models/{model}`` shows of one version; times of workers are UTC."""
    config = model.config
    description: dict[str, Any] = {
        "modelName": model.name,
        "modelVersion": model.version,
        "modelUrl": model.url,
        "runtime": config.runtime,
        "minWorkers": status.min_workers,
        "maxWorkers": status.max_workers,
        "batchSize": config.batch_size,
        "maxBatchDelay": config.max_batch_delay_ms,
        "responseTimeout": config.response_timeout,
        "startupTimeout": config.startup_timeout,
        "maxRetryTimeoutInSec": config.max_retry_timeout,
        "clientTimeoutInMills": config.client_timeout_ms,
        "parallelType": config.parallel_type,
        "parallelLevel": config.parallel_level,
        "deviceType": config.device_type,
    }
    if config.device_ids is not None:
        description["deviceIds"] = list(config.device_ids)
    description.update(
        {
            "continuousBatching": config.continuous,
            "useJobTicket": config.use_job_ticket,
            "useVenv": config.use_venv,
            "stateful": config.stateful,
            "sequenceMaxIdleMSec": config.sequence_max_idle_ms,
            "sequenceTimeoutMSec": config.sequence_timeout_ms,
            "maxNumSequence": config.max_num_sequence,
            "maxSequenceJobQueueSize": config.max_sequence_job_queue_size,
            "loadedAtStartup": model.loaded_at_startup,
            "workers": [_worker(worker) for worker in status.workers],
            "jobQueueStatus": {
                "remainingCapacity": status.queue_remaining,
                "pendingRequests": status.queue_pending,
            },
        }
    )
    return description


def _worker(worker: WorkerStatus) -> dict[str, Any]:
    started = worker.started_at.astimezone(UTC).isoformat(timespec="milliseconds")
    return {
        "id": worker.id,
        "startTime": started.replace("+00:00", "Z"),
        "status": "READY" if worker.ready else "UNLOADING",
        "memoryUsage": worker.memory,
        "pid": worker.pid,
        "gpu": worker.gpu,
        "gpuUsage": worker.gpu_usage,
    }
