"""What models have done so far, as Triton's statistics have it: for the REST door and the gRPC door.

Clients that measure take the difference of two answers. Some, like perf_analyzer, rely on more than the protocol says:
every duration has both numbers, a version is a whole number, the queue counts every request, and the three compute
counts are always equal. Decoding and encoding are part of what a worker does, and are not measured on their own.
Inferences and executions are those that succeeded; a request is one inference, however many rows its tensors have.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from torchserve_py.models.model import Model
    from torchserve_py.models.registry import ModelRegistry

_NEVER: Final = {"count": 0, "ns": 0}
#: Versions are 64 bit integers to those who read them.
_MAX_DIGITS: Final = 18


def of_models(registry: ModelRegistry, name: str | None, version: str | None) -> list[dict[str, Any]]:
    """The statistics of one version, of all versions of a model, or of all models.

    Args:
        registry: The models.
        name: The model; None for all.
        version: Its version; None for all.

    Raises:
        ModelNotFound: No such model.
        ModelVersionNotFound: No such version of it.
    """
    if name is None:
        return [entry for each, _ in registry.models() for entry in of_models(registry, each, None)]
    versions = registry.versions(name)
    wanted = versions if version is None else [registry.get(name, version)]
    numbers = version_numbers([model.version for model in versions])
    return [of(model, numbers[model.version]) for model in wanted]


def of(model: Model, version: str) -> dict[str, Any]:
    """The statistics of one model, under that version."""
    outcomes, queue = model.metrics.outcomes, model.metrics.queue_seconds
    executions = _executions(model)
    untimed = _duration(outcomes.succeeded, 0.0)
    memory = sum(worker.memory for worker in model.workers)
    last = time.time() - (time.monotonic() - outcomes.last_at) if outcomes.last_at else 0.0
    return {
        "name": model.name,
        "version": version,
        "last_inference": int(last * 1000),
        "inference_count": outcomes.succeeded,
        "execution_count": sum(count for count, _ in executions.values()),
        "inference_stats": {
            "success": _duration(outcomes.succeeded, outcomes.succeeded_seconds),
            "fail": _duration(outcomes.failed, outcomes.failed_seconds),
            "queue": _duration(sum(queue.counts), queue.sum),
            "compute_input": untimed,
            "compute_infer": _duration(outcomes.succeeded, outcomes.running_seconds),
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
        "memory_usage": [{"type": "CPU", "id": 0, "byte_size": memory}] if memory else [],
    }


def _executions(model: Model) -> Mapping[int, tuple[int, float]]:
    """By how many jobs a call of the model answered: how often, and what it took.

    Where each request is a call of its own what several have answered may have come together.
    """
    outcomes = model.metrics.outcomes
    is_alone = model.config.async_communication and not model.declared.get("max_batch_size")
    if not outcomes.succeeded or (outcomes.executions and not is_alone):
        return outcomes.executions
    return {1: (outcomes.succeeded, outcomes.running_seconds)}


def version_numbers(versions: Sequence[str]) -> dict[str, str]:
    """A whole number for each version, in decimal: itself where it is one, else the lowest that is free."""
    numbers = {version: version for version in versions if _is_number(version)}
    taken = set(numbers.values())
    free = (str(number) for number in range(1, 2 * len(versions) + 1))
    for version in versions:
        if version not in numbers:
            numbers[version] = next(number for number in free if number not in taken)
    return numbers


def _is_number(version: str) -> bool:
    """Whether a client that reads it as a number and writes that gets the same text."""
    return version.isdecimal() and len(version) <= _MAX_DIGITS and version == str(int(version))


def _duration(count: int, seconds: float) -> dict[str, int]:
    return {"count": count, "ns": int(seconds * 1e9)}
