"""What is measured of one model version. `docs/metrics.md` lists every series."""

from collections.abc import Callable, Iterator, Mapping

from torchserve_py.metrics.families import Family, torchserve_description
from torchserve_py.metrics.instruments import Counter, Gauge, Histogram, Instrument
from torchserve_py.scheduling.effects import EndReason

SECONDS_BOUNDS = (
    0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0,
)  # fmt: skip
BATCH_BOUNDS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0)
DEFAULT_VERSION_LABEL = "default"
"""`model_version` of requests that name no version, as in TorchServe."""


class ModelFamilies:
    """The families that every model version has a part in."""

    def __init__(self) -> None:
        counter, gauge = torchserve_description("counter", "{}").format, torchserve_description("gauge", "{}").format
        self.requests = Family("ts_inference_requests_total", Counter, counter("Count"))
        self.inference_latency = Family("ts_inference_latency_microseconds", Counter, counter("Microseconds"))
        self.queue_latency = Family("ts_queue_latency_microseconds", Counter, counter("Microseconds"))
        self.worker_load_time = Family("WorkerLoadTime", Gauge, gauge("Milliseconds"))
        self.queue_seconds = _seconds("ts_queue_seconds", "Seconds that a request waited before it went to a worker")
        self.handler_seconds = _seconds("ts_handler_seconds", "Seconds that one call of the handler took")
        self.request_seconds = _seconds("ts_request_seconds", "Seconds from a request's admission to its outcome")
        self.batch_size = Family("ts_batch_size", lambda: Histogram(BATCH_BOUNDS), "Requests sent to a worker together")
        self.open_sequences = Family("ts_open_sequences", Gauge, "Sequences that are open")
        self.queue_depth = Family("ts_queue_depth", Gauge, "Requests that wait for a worker")
        self.worker_restarts = Family("ts_worker_restarts_total", Counter, "Workers that died and were started again")
        self.sequences_closed = Family("ts_sequences_closed_total", Counter, "Sequences that ended, by reason")

    def __iter__(self) -> Iterator[Family[Instrument]]:
        return iter(vars(self).values())


def _seconds(name: str, description: str) -> Family[Histogram]:
    return Family(name, lambda: Histogram(SECONDS_BOUNDS), description)


class RequestCounters:
    """TorchServe's three counters of requests, for one value of the label `model_version`."""

    __slots__ = ("inference_latency_microseconds", "queue_latency_microseconds", "requests_total")

    def __init__(self, families: ModelFamilies, labels: Mapping[str, str]) -> None:
        self.requests_total = families.requests.child(labels)
        self.inference_latency_microseconds = families.inference_latency.child(labels)
        self.queue_latency_microseconds = families.queue_latency.child(labels)


class ModelMetrics:
    """The instruments of one model version, bound to their labels once; made by `ServerMetrics.model`.

    `queue_time`, `worker_thread_time` (of the whole server) and `prediction_time` (of all versions of the model) are
    TorchServe's gauges of the last value, in milliseconds.
    """

    __slots__ = (
        "_families",
        "_host_labels",
        "_labels",
        "_workers",
        "batch_size",
        "by_default",
        "handler_seconds",
        "inference_latency_microseconds",
        "open_sequences",
        "prediction_time",
        "queue_depth",
        "queue_latency_microseconds",
        "queue_seconds",
        "queue_time",
        "request_seconds",
        "requests_total",
        "sequences_closed",
        "worker_restarts",
        "worker_thread_time",
    )

    def __init__(
        self,
        families: ModelFamilies,
        name: str,
        version: str,
        hostname: str,
        *,
        queue_time: Gauge,
        worker_thread_time: Gauge,
        prediction_time: Gauge,
    ) -> None:
        labels = {"model_name": name, "model_version": version, "hostname": hostname}
        self._families = families
        self._labels = labels
        self._host_labels = {"Level": "Host", "Hostname": hostname}
        self._workers: set[str] = set()
        counters = RequestCounters(families, labels)
        self.requests_total = counters.requests_total
        self.inference_latency_microseconds = counters.inference_latency_microseconds
        self.queue_latency_microseconds = counters.queue_latency_microseconds
        #: The same three for requests that name no version.
        self.by_default = RequestCounters(families, {**labels, "model_version": DEFAULT_VERSION_LABEL})
        self.queue_time = queue_time
        self.worker_thread_time = worker_thread_time
        self.prediction_time = prediction_time
        self.queue_seconds = families.queue_seconds.child(labels)
        self.handler_seconds = families.handler_seconds.child(labels)
        self.request_seconds = families.request_seconds.child(labels)
        self.batch_size = families.batch_size.child(labels)
        self.open_sequences = families.open_sequences.child(labels)
        self.queue_depth = families.queue_depth.child(labels)
        self.worker_restarts = families.worker_restarts.child(labels)
        self.sequences_closed = {
            reason: families.sequences_closed.child({**labels, "reason": reason.value}) for reason in EndReason
        }

    def observe_state(self, *, queue_depth: Callable[[], int], open_sequences: Callable[[], int]) -> None:
        """Says where the depth of the queue and the number of open sequences are read when they are shown."""
        self.queue_depth.read_from(queue_depth)
        self.open_sequences.read_from(open_sequences)

    def observe_submission(self, *, by_default: bool = False) -> None:
        """A job was submitted. by_default: its request named no version."""
        counters = self.by_default if by_default else self
        counters.requests_total.value += 1

    def observe_queue(self, seconds: float, *, by_default: bool = False) -> None:
        """A job has waited that long and goes to a worker. by_default: its request named no version."""
        self.queue_seconds.observe(seconds)
        counters = self.by_default if by_default else self
        counters.queue_latency_microseconds.value += seconds * 1e6
        self.queue_time.value = seconds * 1e3

    def observe_handler(self, seconds: float, round_trip: float) -> None:
        """A call of the handler took that long, and its batch that long from the frontend's view."""
        self.handler_seconds.observe(seconds)
        self.prediction_time.value = seconds * 1e3
        self.worker_thread_time.value = (round_trip - seconds) * 1e3

    def observe_request(self, seconds: float, *, by_default: bool = False) -> None:
        """A job has its outcome, that long after it was submitted. by_default: its request named no version."""
        self.request_seconds.observe(seconds)
        counters = self.by_default if by_default else self
        counters.inference_latency_microseconds.value += seconds * 1e6

    def worker_load_time(self, worker_name: str, milliseconds: float) -> None:
        """The worker (`W-<id>-<model>_<version>`) took that long from its launch until it was ready."""
        self._workers.add(worker_name)
        self._families.worker_load_time.child(self._worker_labels(worker_name)).set(milliseconds)

    def forget_worker(self, worker_name: str) -> None:
        """The worker is gone for good, and its series with it."""
        self._workers.discard(worker_name)
        self._families.worker_load_time.remove(self._worker_labels(worker_name))

    def forget(self, *, last_version: bool) -> None:
        """Takes all series of this version away, and if it is the model's last also those of its default version."""
        for worker_name in list(self._workers):
            self.forget_worker(worker_name)
        for family in self._families:
            family.remove(self._labels)
            if last_version:
                family.remove({**self._labels, "model_version": DEFAULT_VERSION_LABEL})
        for reason in EndReason:
            self._families.sequences_closed.remove({**self._labels, "reason": reason.value})

    def _worker_labels(self, worker_name: str) -> dict[str, str]:
        return {"WorkerName": worker_name, **self._host_labels}
