"""Triton's statistics of models, for the REST door and the gRPC door.

Clients take the difference of two answers. Some, like perf_analyzer, rely on more than the protocol says: every
duration has a count and a time, the queue counts every request, and the three compute counts are equal. Decoding and
encoding are not measured separately. Inferences and executions are those that succeeded. A request is one inference,
whatever the number of rows in its tensors.
"""

import time
from collections.abc import Mapping
from typing import Any, Final

from torchserve_py.core.observed import Activity
from torchserve_py.core.serving import ServedModel, Serving

_NEVER: Final = {"count": 0, "ns": 0}


def of_models(serving: Serving, name: str | None, version: str | None) -> list[dict[str, Any]]:
    """Return the statistics of one version, of all versions of a model (None), or of all models (None).

    Raises ModelNotFound: no such model; ModelVersionNotFound: no such version of it.
    """
    if name is None:
        return [entry for each in serving.models() for entry in of_models(serving, each.name, None)]
    wanted = serving.versions(name) if version is None else [serving.get(name, version)]
    return [_of(serving, model) for model in wanted]


def _of(serving: Serving, model: ServedModel) -> dict[str, Any]:
    activity = serving.activity(model)
    executions = _executions(serving, model, activity)
    untimed = _duration(activity.succeeded, 0.0)
    last = time.time() - (time.monotonic() - activity.last_at) if activity.last_at else 0.0
    return {
        "name": model.name,
        "version": model.version,
        "last_inference": int(last * 1000),
        "inference_count": activity.succeeded,
        "execution_count": sum(count for count, _ in executions.values()),
        "inference_stats": {
            "success": _duration(activity.succeeded, activity.succeeded_seconds),
            "fail": _duration(activity.failed, activity.failed_seconds),
            "queue": _duration(sum(activity.waiting.counts), activity.waiting.seconds),
            "compute_input": untimed,
            "compute_infer": _duration(activity.succeeded, activity.running_seconds),
            "compute_output": untimed,
            "cache_hit": _NEVER,
            "cache_miss": _NEVER,
        },
        "response_stats": {},
        "batch_stats": [
            {
                "batch_size": size,
                "compute_input": _duration(count, 0.0),
                "compute_infer": _duration(count, seconds),
                "compute_output": _duration(count, 0.0),
            }
            for size, (count, seconds) in sorted(executions.items())
        ],
        "memory_usage": [{"type": "CPU", "id": 0, "byte_size": activity.memory}] if activity.memory else [],
    }


def _executions(serving: Serving, model: ServedModel, activity: Activity) -> Mapping[int, tuple[int, float]]:
    """Return the number and the seconds of the model's calls by the number of jobs that a call answered.

    If each request is a separate call, several answers may arrive together, so their number says nothing.
    """
    is_alone = model.config.async_communication and not serving.declared(model).get("max_batch_size")
    if not activity.succeeded or (activity.executions and not is_alone):
        return activity.executions
    return {1: (activity.succeeded, activity.running_seconds)}


def _duration(count: int, seconds: float) -> dict[str, int]:
    return {"count": count, "ns": int(seconds * 1e9)}
