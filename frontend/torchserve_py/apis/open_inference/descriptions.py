"""What the server says of itself and its models in the Open Inference Protocol: metadata, configuration, statistics.

Plain values with the names of the protocol's JSON; the gRPC endpoint makes its messages of the same.

The statistics are Triton's. Clients take the difference of two answers. Some, like perf_analyzer, rely on more than the
protocol says: every duration has a count and a time, the queue counts every request, and the three compute counts are
equal. Decoding and encoding are not measured separately. Inferences and executions are those that succeeded. A request
is one inference, whatever the number of rows in its tensors.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from torchserve_py.apis.open_inference.open_inference_settings import OpenInferenceSettings
from torchserve_py.base.settings.table import Settings
from torchserve_py.core.serving.model_activity import Activity
from torchserve_py.core.serving.serving import ServedModel, Serving
from torchserve_py.endpoints.failures import EndpointError
from torchserve_py.version import __version__

SERVER_NAME: Final = "torchserve-py"
_BATCH: Final = -1  # a leading dimension of any size
#: Seconds within which a model must say whether it is healthy; its code may block the worker's loop meanwhile.
_HEALTH_LIMIT: Final = 30.0
_NEVER: Final = {"count": 0, "ns": 0}


def server_metadata(settings: Settings) -> dict[str, Any]:
    """Return the server's name, version, and the extensions of the protocol that are switched on."""
    extensions = ["model_configuration", "binary_tensor_data", "parameters", "statistics"]
    extensions += ["sequence", "sequence(string_id)", "generate", "infer_stream"]
    if settings.enable_model_api:
        extensions.insert(0, "model_repository")
    if settings.of(OpenInferenceSettings).shared_memory_keys:
        extensions.append("system_shared_memory")
    return {"name": SERVER_NAME, "version": __version__, "extensions": extensions}


async def model_ready(serving: Serving, model: ServedModel) -> bool:
    """Return whether a model has its minimum of workers and says that it is healthy."""
    return serving.status(model).ready and await serving.check_health(model, _HEALTH_LIMIT)


def model_metadata(serving: Serving, name: str, version: str | None) -> dict[str, Any]:
    """Return a model's metadata: its versions, and the inputs and outputs that it has declared.

    The versions are those that requests can name, unless the model declares others: MLServer's tell what a model was
    made with.

    Raises ModelNotFound: no such model; ModelVersionNotFound: no such version of it.
    """
    model = serving.get_latest(name, version)
    versions = [version] if version is not None else [each.version for each in serving.versions(name)]
    declared = serving.declared(model)
    metadata: dict[str, Any] = {
        "name": name,
        "versions": [str(each) for each in declared.get("versions") or versions],
        "platform": _platform(model, declared),
        "inputs": [_tensor_metadata(each) for each in declared.get("inputs") or ()],
        "outputs": [_tensor_metadata(each) for each in declared.get("outputs") or ()],
    }
    if model.contract.parameters:
        metadata["parameters"] = dict(declared.get("parameters") or {})
    return metadata


def model_config(serving: Serving, model: ServedModel) -> dict[str, Any]:
    """Return a model's configuration in the form of Triton's ``ModelConfig`` in JSON."""
    declared, config = serving.declared(model), model.config
    max_batch_size = max_batch_size_of(declared)
    description: dict[str, Any] = {
        "name": model.name,
        "platform": _platform(model, declared),
        "backend": model.contract.name,
        "version_policy": {"specific": {"versions": [int(model.version)]}}
        if model.version.isdecimal() and int(model.version) < 2**63
        else {"all": {}},
        "max_batch_size": max_batch_size,
        "input": [_tensor_config(each, max_batch_size) for each in declared.get("inputs") or ()],
        "output": [_tensor_config(each, max_batch_size) for each in declared.get("outputs") or ()],
        "instance_group": [
            {
                "name": model.name,
                "kind": "KIND_GPU" if config.device_type == "gpu" else "KIND_CPU",
                "count": serving.status(model).max_workers,
            }
        ],
    }
    if model.is_stateful:
        description["sequence_batching"] = {
            "max_sequence_idle_microseconds": config.sequence_max_idle_ms * 1000,
            "oldest": {
                "max_candidate_sequences": config.max_num_sequence,
                "max_queue_delay_microseconds": config.max_batch_delay_ms * 1000,
            },
        }
    elif max_batch_size or (config.batch_size > 1 and not config.continuous):
        delay = declared.get("max_batch_time", config.max_batch_delay_ms / 1000)
        description["dynamic_batching"] = {"max_queue_delay_microseconds": int(delay * 1_000_000)}
    if declared.get("response_cache"):
        description["response_cache"] = {"enable": True}
    description["model_transaction_policy"] = {"decoupled": bool(declared.get("decoupled"))}
    description["parameters"] = {
        "contract": {"string_value": model.contract.name},
        "batchSize": {"string_value": str(config.batch_size)},
    }
    return description


def _platform(model: ServedModel, declared: Mapping[str, Any]) -> str:
    """Return the platform that the model names, else that of its contract."""
    return str(declared.get("platform") or model.contract.platform)


def max_batch_size_of(declared: Mapping[str, Any]) -> int:
    """Return how many rows clients may send in one request, or 0 where the first dimension is not a batch.

    The protocol wants that dimension to be open in all of the model's shapes; where one is declared in which it is not,
    there is no batch size that clients could use, however many requests the server itself puts together.
    """
    size = int(declared.get("max_batch_size") or 0)
    tensors: Sequence[Mapping[str, Any]] = [*(declared.get("inputs") or ()), *(declared.get("outputs") or ())]
    batched = all(each["shape"] and each["shape"][0] == _BATCH for each in tensors)
    return size if size > 1 and batched else 0


def _tensor_metadata(tensor: Mapping[str, Any]) -> dict[str, Any]:
    metadata = {"name": tensor["name"], "datatype": tensor["datatype"], "shape": list(tensor["shape"])}
    if tensor.get("parameters"):
        metadata["parameters"] = dict(tensor["parameters"])
    return metadata


def _tensor_config(tensor: Mapping[str, Any], max_batch_size: int) -> dict[str, Any]:
    datatype = tensor["datatype"]
    dims = list(tensor["shape"])
    return {
        "name": tensor["name"],
        "data_type": "TYPE_STRING" if datatype == "BYTES" else f"TYPE_{datatype}",
        "dims": dims[1:] if max_batch_size else dims,
    }


def statistics(
    serving: Serving, name: str | None, version: str | None, account: Callable[[str], object]
) -> list[dict[str, Any]]:
    """Return the statistics of one version, of all versions of a model (None), or of all models (None).

    Models are left out for which ``account`` raises EndpointError: the client's key is not for them.

    Raises ModelNotFound: no such model; ModelVersionNotFound: no such version of it.
    """
    if name is None:
        open_to_it = (each.name for each in serving.models() if _opens(account, each.name))
        wanted = [model for each in open_to_it for model in serving.versions(each)]
    else:
        wanted = [*serving.versions(name)] if version is None else [serving.get(name, version)]
    return [_statistics_of(serving, model) for model in wanted]


def _opens(account: Callable[[str], object], name: str) -> bool:
    try:
        account(name)
    except EndpointError:
        return False
    return True


def _statistics_of(serving: Serving, model: ServedModel) -> dict[str, Any]:
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
