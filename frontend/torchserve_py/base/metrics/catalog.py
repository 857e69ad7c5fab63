"""Every metric that the server itself has: its name, type, unit and dimensions. `docs/metrics.md` explains them.

`configs/metrics.yaml` says the same in the form in which operators change it, and which `ops.metrics` reads.
"""

from typing import Final, NamedTuple

COUNTER: Final = "counter"
GAUGE: Final = "gauge"
HISTOGRAM: Final = "histogram"
KINDS: Final = (COUNTER, GAUGE, HISTOGRAM)

#: TorchServe's buckets for custom histograms, in whatever unit they are.
CUSTOM_BOUNDS: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
SECONDS_BOUNDS: Final = (
    0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0,
)  # fmt: skip
BATCH_BOUNDS: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0)


class Declaration(NamedTuple):
    """A metric as it is declared; ``description`` is its HELP text, None for TorchServe's, ``bounds`` a histogram's.

    The last dimension of a metric of the server is the host's name; metrics of handlers get one more, `Hostname`, that
    is not declared.
    """

    name: str
    kind: str
    unit: str
    dimensions: tuple[str, ...]
    description: str | None = None
    bounds: tuple[float, ...] = CUSTOM_BOUNDS


def _by_name(*declarations: Declaration) -> dict[str, Declaration]:
    return {each.name: each for each in declarations}


def _of_seconds(name: str, description: str) -> Declaration:
    return Declaration(name, HISTOGRAM, "Seconds", _MODEL, description, SECONDS_BOUNDS)


_HOST = ("Level", "Hostname")
_DEVICE = ("Level", "DeviceId", "Hostname")
_WORKER = ("WorkerName", "Level", "Hostname")
_MODEL = ("model_name", "model_version", "hostname")
_OUTCOME = ("model_name", "model_version", "protocol", "cause", "hostname")
_REASON = ("model_name", "model_version", "reason", "hostname")

#: The host's, renewed every `metric_time_interval` seconds.
HOST_GAUGES: Final = (
    Declaration("CPUUtilization", GAUGE, "Percent", _HOST),
    Declaration("MemoryUsed", GAUGE, "Megabytes", _HOST),
    Declaration("MemoryAvailable", GAUGE, "Megabytes", _HOST),
    Declaration("MemoryUtilization", GAUGE, "Percent", _HOST),
    Declaration("DiskUsage", GAUGE, "Gigabytes", _HOST),
    Declaration("DiskAvailable", GAUGE, "Gigabytes", _HOST),
    Declaration("DiskUtilization", GAUGE, "Percent", _HOST),
)
#: The same for each GPU.
GPU_GAUGES: Final = (
    Declaration("GPUMemoryUtilization", GAUGE, "Percent", _DEVICE),
    Declaration("GPUMemoryUsed", GAUGE, "Megabytes", _DEVICE),
    Declaration("GPUUtilization", GAUGE, "Percent", _DEVICE),
)

#: What `metrics_mode=legacy` shows at `/metrics`, and nothing else.
LEGACY_NAMES: Final = frozenset(
    {"ts_inference_requests_total", "ts_inference_latency_microseconds", "ts_queue_latency_microseconds"}
)

#: What the server measures, by name.
SERVER_METRICS: Final = _by_name(
    Declaration("Requests2XX", COUNTER, "Count", _HOST),
    Declaration("Requests4XX", COUNTER, "Count", _HOST),
    Declaration("Requests5XX", COUNTER, "Count", _HOST),
    Declaration("ts_inference_requests_total", COUNTER, "Count", _MODEL),
    Declaration("ts_inference_latency_microseconds", COUNTER, "Microseconds", _MODEL),
    Declaration("ts_queue_latency_microseconds", COUNTER, "Microseconds", _MODEL),
    Declaration("QueueTime", GAUGE, "Milliseconds", _HOST),
    Declaration("WorkerThreadTime", GAUGE, "Milliseconds", _HOST),
    Declaration("WorkerLoadTime", GAUGE, "Milliseconds", _WORKER),
    *HOST_GAUGES,
    *GPU_GAUGES,
    # TorchServe does not have those that follow.
    Declaration("ts_http_requests_total", COUNTER, "Count", ("method", "route", "status", "hostname")),
    _of_seconds("ts_queue_seconds", "Seconds that a request waited before it went to a worker"),
    _of_seconds("ts_handler_seconds", "Seconds that one call of the handler took"),
    _of_seconds("ts_request_seconds", "Seconds from a request's admission to its outcome"),
    _of_seconds("ts_time_to_first_part_seconds", "Seconds from a request's admission to the first part of its stream"),
    _of_seconds("ts_time_between_parts_seconds", "Seconds from one part of a stream to the next"),
    _of_seconds("ts_deadline_lateness_seconds", "Seconds from a request's deadline to its answer, if that was late"),
    _of_seconds("ts_deadline_slack_seconds", "Seconds from a request's answer to its deadline, if that was in time"),
    Declaration("ts_deadline_misses_total", COUNTER, "Count", _REASON, "Requests not answered by their deadline"),
    Declaration("ts_guaranteed_sessions", GAUGE, "Count", _MODEL, "Sessions whose steps are guaranteed to be in time"),
    Declaration("ts_guaranteed_share", GAUGE, "Ratio", _MODEL, "Share of the time that may be promised that is"),
    Declaration("ts_batch_size", HISTOGRAM, "Count", _MODEL, "Requests sent to a worker together", BATCH_BOUNDS),
    Declaration("ts_queue_depth", GAUGE, "Count", _MODEL, "Requests that wait for a worker"),
    Declaration("ts_open_sequences", GAUGE, "Count", _MODEL, "Sequences that are open"),
    Declaration("ts_sequences_migrated_total", COUNTER, "Count", _MODEL, "Sequences of other versions that moved here"),
    Declaration("ts_migration_failures_total", COUNTER, "Count", _MODEL, "Sequences that could not be migrated"),
    Declaration("ts_sequences_moved_total", COUNTER, "Count", _MODEL, "Sequences in memory that changed their worker"),
    Declaration(
        "ts_sequence_moves_refused_total", COUNTER, "Count", _REASON, "Sequences that could not change their worker"
    ),
    Declaration("ts_sequences_given_up_total", COUNTER, "Count", _MODEL, "Sequences that another server had, too"),
    Declaration("ts_workers_wanted", GAUGE, "Count", _MODEL, "Workers that there are to be"),
    Declaration("ts_workers_ready", GAUGE, "Count", _MODEL, "Workers that take requests"),
    Declaration("ts_workers_given_up", GAUGE, "Count", _MODEL, "Workers that fail for long and are tried now and then"),
    Declaration(
        "ts_scaling_total", COUNTER, "Count", _REASON, "Changes of the number of workers by the load, by reason"
    ),
    Declaration("ts_worker_restarts_total", COUNTER, "Count", _MODEL, "Workers that died and were started again"),
    Declaration("ts_outcomes_total", COUNTER, "Count", _OUTCOME, "Requests to a model that have ended, by cause"),
    Declaration("ts_worker_gpu_memory_bytes", GAUGE, "Bytes", _WORKER, "Memory of a worker on GPUs"),
    Declaration("ts_sequences_forgotten_total", COUNTER, "Count", _MODEL, "Sequences that were forgotten too early"),
    Declaration("ts_sequence_store_bytes", GAUGE, "Bytes", _MODEL, "What the store of the model's sequences has"),
    Declaration("ts_sequence_store_sequences", GAUGE, "Count", _MODEL, "Sequences in that store, open and over"),
    Declaration("ts_redis_evicts", GAUGE, "Count", _MODEL, "Whether Redis may drop sequences by itself"),
    Declaration("ts_redis_evicted_keys_total", COUNTER, "Count", _MODEL, "Keys that Redis has dropped by itself"),
    Declaration("ts_sequences_closed_total", COUNTER, "Count", _REASON, "Sequences that ended, by reason"),
)

HANDLER_TIME: Final = "HandlerTime"
PREDICTION_TIME: Final = "PredictionTime"
#: What every model has, by name: milliseconds of the last BaseHandler.handle, and of the last call of any handler.
MODEL_METRICS: Final = _by_name(
    Declaration(HANDLER_TIME, GAUGE, "ms", ("ModelName", "Level")),
    Declaration(PREDICTION_TIME, GAUGE, "ms", ("ModelName", "Level")),
)
