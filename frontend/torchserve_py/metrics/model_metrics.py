"""The metrics of one model version. `docs/metrics.md` lists every series."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from torchserve_py.metrics.families import ServerFamilies
from torchserve_py.metrics.instruments import Counter, Gauge, Histogram
from torchserve_py.metrics.metric_log import EventLines
from torchserve_py.scheduling.effects import Cause, CloseReason
from torchserve_py.scheduling.scaling import Reason

#: `model_version` of requests that name no version, as in TorchServe.
DEFAULT_VERSION_LABEL = "default"

#: Takes the milliseconds of a call of the handler, and result rows, each of which begins with the id of its job.
RecordPrediction: TypeAlias = Callable[[float, Sequence[Sequence[Any]]], None]

#: The cause of an answer that the handler (or the worker on its behalf) chose: an exception in it, or its own status.
HANDLER_ERROR: Final = "handler_error"
#: In the count of outcomes: the handler has answered; it has failed with a status below 500, for the client's fault.
ANSWERED: Final = "answered"
REFUSED_BY_HANDLER: Final = "refused_by_handler"
#: The places of times in the lines of an answered request, see `ModelMetrics.answered`.
_TOOK, _QUEUED, _WAITED = "%(took).3f", "%(queued).3f", "%(waited).3f"
#: Positions in a result row, see `ts.protocol.messages.ResultRow`.
_MORE: Final = 1
_ERROR: Final = 6


@dataclass(slots=True)
class Outcomes:
    """Outcomes and durations of jobs, in more detail than the metrics at `/metrics` have.

    Sums since the model was registered, added to on the hot path; times are seconds.
    """

    succeeded: int = 0  # jobs that were answered
    succeeded_seconds: float = 0.0  # how long they took, from admission to the last part
    running_seconds: float = 0.0  # how much of that time they spent in a worker
    #: Jobs that were refused, failed, or were given up by their client, by cause.
    failures: dict[str, int] = field(default_factory=dict)
    failed_seconds: float = 0.0  # how long they took
    last_at: float = 0.0  # when the last job ended (monotonic); 0 if none has
    #: How often the handler answered so many jobs at once without an error, and how long that took.
    executions: dict[int, tuple[int, float]] = field(default_factory=dict)

    @property
    def failed(self) -> int:
        """How many jobs have failed, whatever the cause, but for those that the handler has refused."""
        return sum(self.failures.values()) - self.failures.get(REFUSED_BY_HANDLER, 0)

    def answered(self, submitted_at: float, sent_at: float, now: float) -> None:
        """Count a job that has its last part."""
        self.succeeded += 1
        self.succeeded_seconds += now - submitted_at
        self.running_seconds += now - sent_at
        self.last_at = now

    def went_wrong(self, told: Cause | int, submitted_at: float, now: float) -> None:
        """Count a job that has ended in any other way: the cause, or the status of the error that its handler gave."""
        name = told.value if isinstance(told, Cause) else (REFUSED_BY_HANDLER, HANDLER_ERROR)[told >= 500]
        self.failures[name] = self.failures.get(name, 0) + 1
        self.failed_seconds += now - submitted_at
        self.last_at = now

    def executed(self, rows: Sequence[Sequence[Any]], seconds: float) -> None:
        """The handler has run for that long and given these rows; errors, and parts but the last, do not count."""
        answered = [row[_MORE] or row[_ERROR] is not None for row in rows].count(False)
        if answered:
            count, total = self.executions.get(answered, (0, 0.0))
            self.executions[answered] = count + 1, total + seconds


class RequestCounters:
    """TorchServe's three counters of requests, for one value of the label `model_version`."""

    def __init__(self, families: ServerFamilies, lines: EventLines, labels: Mapping[str, str]) -> None:
        self.requests_total = families.child(Counter, "ts_inference_requests_total", labels)
        self.inference_latency_microseconds = families.child(Counter, "ts_inference_latency_microseconds", labels)
        self.queue_latency_microseconds = families.child(Counter, "ts_queue_latency_microseconds", labels)
        model = [labels["model_name"], labels["model_version"]]
        #: The line of a request that is admitted, and those of one that is answered; empty where there are none.
        self.admitted_line = lines.form(model, ts_inference_requests_total="1.0")
        latencies = {"ts_inference_latency_microseconds": _TOOK, "ts_queue_latency_microseconds": _QUEUED}
        parts = (lines.form(model, **latencies), lines.form(["Host"], QueueTime=_WAITED))
        self.answered_lines = "\n".join(filter(None, parts))


class ModelMetrics:
    """The instruments of one model version, bound to their labels once; made by `ServerMetrics.model`."""

    def __init__(
        self,
        families: ServerFamilies,
        lines: EventLines,
        name: str,
        version: str,
        hostname: str,
        record_prediction: RecordPrediction,
    ) -> None:
        labels = {"model_name": name, "model_version": version, "hostname": hostname}
        self._families = families
        self._lines = lines
        self._worker_thread_line = lines.form(["Host"], WorkerThreadTime="%(value).3f")
        self._labels = labels
        self._hostname = hostname
        self._record_prediction = record_prediction
        self._workers: set[str] = set()
        #: Of requests that name the version, and of requests that name none.
        self.by_version = RequestCounters(families, lines, labels)
        self.by_default = RequestCounters(families, lines, {**labels, "model_version": DEFAULT_VERSION_LABEL})
        #: TorchServe's gauges of the last value, in milliseconds, of the whole server.
        of_host = {"Level": "Host", "Hostname": hostname}
        self.queue_time = families.child(Gauge, "QueueTime", of_host)
        self.worker_thread_time = families.child(Gauge, "WorkerThreadTime", of_host)
        self.queue_seconds = families.child(Histogram, "ts_queue_seconds", labels)
        self.handler_seconds = families.child(Histogram, "ts_handler_seconds", labels)
        self.request_seconds = families.child(Histogram, "ts_request_seconds", labels)
        self.batch_size = families.child(Histogram, "ts_batch_size", labels)
        self.outcomes = Outcomes()
        self.open_sequences = families.child(Gauge, "ts_open_sequences", labels)
        self.queue_depth = families.child(Gauge, "ts_queue_depth", labels)
        self.worker_restarts = families.child(Counter, "ts_worker_restarts_total", labels)
        self.workers_wanted = families.child(Gauge, "ts_workers_wanted", labels)
        self.workers_ready = families.child(Gauge, "ts_workers_ready", labels)
        self.scalings = {each: families.child(Counter, "ts_scaling_total", self._labels_with(each)) for each in Reason}
        #: By how the request came, and why it ended.
        self._ended: dict[tuple[str, str], Counter] = {}
        self.sequences_closed = {
            each: families.child(Counter, "ts_sequences_closed_total", self._labels_with(each)) for each in CloseReason
        }

    def admitted(self, *, by_default: bool = False) -> None:
        """A job was submitted. by_default: its request named no version."""
        counters = self.by_default if by_default else self.by_version
        counters.requests_total.value += 1
        if counters.admitted_line:
            self._lines.note((counters.admitted_line, {}))

    def observe_queue(self, seconds: float, *, by_default: bool = False) -> None:
        """A job has waited that long and goes to a worker. by_default: its request named no version."""
        self.queue_seconds.observe(seconds)
        counters = self.by_default if by_default else self.by_version
        counters.queue_latency_microseconds.value += seconds * 1e6
        self.queue_time.set(seconds * 1e3)

    def observe_handler(self, seconds: float, round_trip: float, rows: Sequence[Sequence[Any]] = ()) -> None:
        """A call of the handler took that long, and its batch that long from the frontend's view, and gave `rows`."""
        self.handler_seconds.observe(seconds)
        self.outcomes.executed(rows, seconds)
        self._record_prediction(seconds * 1e3, rows)
        # A batch that was sent ahead begins before the frontend has received the answers to the one before.
        self.worker_thread_time.value = besides = max(0.0, round_trip - seconds) * 1e3
        if self._worker_thread_line:
            self._lines.note((self._worker_thread_line, {"value": besides}))

    def answered(self, submitted_at: float, sent_at: float, now: float, *, by_default: bool = False) -> None:
        """A job has its last part. by_default: its request named no version."""
        self.outcomes.answered(submitted_at, sent_at, now)
        if form := (self.by_default if by_default else self.by_version).answered_lines:
            waited = (sent_at - submitted_at) * 1e3
            self._lines.note((form, {"took": (now - submitted_at) * 1e6, "queued": waited * 1e3, "waited": waited}))

    def observe_request(self, seconds: float, *, by_default: bool = False) -> None:
        """A job has its outcome, that long after it was submitted. by_default: its request named no version."""
        self.request_seconds.observe(seconds)
        counters = self.by_default if by_default else self.by_version
        counters.inference_latency_microseconds.value += seconds * 1e6

    def ended(self, via: str, told: Cause | int, *, failed: bool) -> None:
        """Count a job that came so and has its outcome: the status of its answer, or the cause why it has none.

        failed: whether the handler has said that the answer is an error.
        """
        if isinstance(told, Cause):
            cause = told.value
        elif told >= 500:
            cause = HANDLER_ERROR
        else:
            cause = REFUSED_BY_HANDLER if failed else ANSWERED
        counter = self._ended.get((via, cause))
        if counter is None:
            counter = self._families.child(Counter, "ts_outcomes_total", self._outcome_labels(via, cause))
            self._ended[via, cause] = counter
        counter.value += 1

    def worker_load_time(self, worker_name: str, milliseconds: float) -> None:
        """The worker (`W-<id>-<model>_<version>`) took that long from its launch until it was ready."""
        self._workers.add(worker_name)
        self._families.child(Gauge, "WorkerLoadTime", self._worker_labels(worker_name)).set(milliseconds)
        if form := self._lines.form([worker_name, "Host"], WorkerLoadTime="%(value).1f"):
            self._lines.note((form, {"value": milliseconds}))

    def worker_gpu_memory(self, worker_name: str, size: int) -> None:
        """The worker has that many bytes on GPUs."""
        self._workers.add(worker_name)
        self._families.child(Gauge, "ts_worker_gpu_memory_bytes", self._worker_labels(worker_name)).set(size)

    def forget_worker(self, worker_name: str) -> None:
        """The worker is gone for good, and its series with it."""
        self._workers.discard(worker_name)
        self._families.remove(self._worker_labels(worker_name))

    def forget(self, *, last_version: bool) -> None:
        """Takes all series of this version away, and if it is the model's last also those of its default version."""
        for worker_name in list(self._workers):
            self.forget_worker(worker_name)
        self._families.remove(self._labels)
        if last_version:
            self._families.remove({**self._labels, "model_version": DEFAULT_VERSION_LABEL})
        for reason in (*CloseReason, *Reason):
            self._families.remove(self._labels_with(reason))
        for via, cause in self._ended:
            self._families.remove(self._outcome_labels(via, cause))

    def _outcome_labels(self, via: str, cause: str) -> dict[str, str]:
        *model, hostname = self._labels.items()
        return dict([*model, ("protocol", via), ("cause", cause), hostname])

    def _labels_with(self, reason: CloseReason | Reason) -> dict[str, str]:
        """In the order of `metrics.catalog`, as all labels are."""
        *model, hostname = self._labels.items()
        return dict([*model, ("reason", reason.value), hostname])

    def _worker_labels(self, worker_name: str) -> dict[str, str]:
        return {"WorkerName": worker_name, "Level": "Host", "Hostname": self._hostname}
