"""The metrics of one model version. `docs/metrics.md` lists every series.

A version that is registered and not used has only a few gauges: a server may have thousands of those. All other series
are shown from its first worker that is ready, or its first request.

Jobs and batches must not pay for their metrics: the dispatcher only records each that has ended, and `fold` adds up the
records soon after, and before any metric is read.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from operator import attrgetter
from time import time
from typing import Final, NamedTuple, Protocol, TypeAlias

from torchserve_py.base.causes import Cause, CloseReason, Reason
from torchserve_py.base.metrics.deadline_metrics import DeadlineCounts, DeadlineMetrics
from torchserve_py.base.metrics.families import ServerFamilies, U
from torchserve_py.base.metrics.handover_metrics import HandoverMetrics
from torchserve_py.base.metrics.instruments import Counter, Gauge, Histogram, Updatable
from torchserve_py.base.metrics.metric_lines import MetricLines
from ts.protocol.messages import MIGRATED, NOT_MIGRATED

#: `model_version` of requests that name no version, as in TorchServe.
DEFAULT_VERSION_LABEL = "default"

#: Takes the milliseconds of a call of the handler, the ids of the jobs that it has answered, and when that was.
RecordPrediction: TypeAlias = Callable[[float, Sequence[str], float], None]

#: The cause of an answer that the handler (or the worker on its behalf) chose: an exception in it, or its own status.
HANDLER_ERROR: Final = "handler_error"
#: In the count of outcomes: the handler has answered; it has failed with a status below 500, for the client's fault.
ANSWERED: Final = "answered"
REFUSED_BY_HANDLER: Final = "refused_by_handler"
#: The places of times in the lines of an answered request.
_TIMES: Final = ("took", "queued", "waited")
_TOOK, _QUEUED, _WAITED = "%(took).3f", "%(queued).3f", "%(waited).3f"


#: Is told the name and version of a model, and the jobs that have ended since the last call.
FollowJobs: TypeAlias = "Callable[[str, str, Sequence[EndedJob]], None]"


class EndedJob(Protocol):
    """A job that has its outcome: a `jobs.call.Call`, which nothing changes any more.

    Attributes:
        at: When it ended, in seconds since 1970.
        submitted_at, sent_at, ended_at: In seconds of the dispatcher's clock; ``sent_at`` is 0 if it was never sent.
        by_default: Whether its request named no version.
        via: How its request came.
        told: The status of its answer, or the cause why it has none.
        succeeded: Whether it has an answer, and that is no error.
        worker_id: Empty for none.
        state_size: How many bytes the state has that a store has written with it; 0 if it has written none.
        opens: Whether it is the first job of its sequence for its worker.
    """

    @property
    def id(self) -> str: ...
    @property
    def at(self) -> float: ...
    @property
    def submitted_at(self) -> float: ...
    @property
    def sent_at(self) -> float: ...
    @property
    def ended_at(self) -> float: ...
    @property
    def by_default(self) -> bool: ...
    @property
    def via(self) -> str: ...
    @property
    def told(self) -> Cause | int: ...
    @property
    def succeeded(self) -> bool: ...
    @property
    def trace_id(self) -> str | None: ...
    @property
    def sequence_id(self) -> str | None: ...
    @property
    def worker_id(self) -> str: ...
    @property
    def state_size(self) -> int: ...
    @property
    def opens(self) -> bool: ...

    def header(self, name: str) -> str | None:
        """Return a header of its request, whose name is given in lower case."""


#: Jobs of which this is equal are added up together.
_kind_of: Final = attrgetter("by_default", "via", "told", "succeeded")


class BatchRecord(NamedTuple):
    """A call of the handler.

    Attributes:
        at: When its results came, in seconds since 1970.
        seconds: How long it took.
        round_trip: How long its batch took, as the frontend sees it (seconds).
        answered: How many jobs have their last part by it, and that is no error.
        job_ids: The ids of the jobs that its results are of.
    """

    at: float
    seconds: float
    round_trip: float
    answered: int
    job_ids: Sequence[str]


@dataclass(slots=True)
class Outcomes:
    """Outcomes and durations of jobs, in more detail than the metrics at `/metrics` have.

    Sums since the model was registered; times are seconds.
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


class RequestCounters:
    """TorchServe's three counters of requests, for one value of the label `model_version`."""

    def __init__(self, families: ServerFamilies, lines: MetricLines, labels: Mapping[str, str]) -> None:
        self.requests_total = families.child(Counter, "ts_inference_requests_total", labels)
        self.inference_latency_microseconds = families.child(Counter, "ts_inference_latency_microseconds", labels)
        self.queue_latency_microseconds = families.child(Counter, "ts_queue_latency_microseconds", labels)
        model = [labels["model_name"], labels["model_version"]]
        latencies = {"ts_inference_latency_microseconds": _TOOK, "ts_queue_latency_microseconds": _QUEUED}
        counted = (model, {"ts_inference_requests_total": "1.0"})
        #: The lines of a request that is answered, and those of any other.
        self.answered_lines = lines.form(counted, (model, latencies), (["Host"], {"QueueTime": _WAITED}), values=_TIMES)
        self.line = lines.form(counted)


class Evictions:
    """What the store of a model's sequences may drop by itself, and has dropped."""

    def __init__(self, may_evict: Gauge, evicted: Counter) -> None:
        self._may_evict = may_evict
        self._evicted = evicted
        #: How many keys the store had dropped when a worker last looked; all workers report the same number.
        self._last: int | None = None

    def note(self, may_evict: bool, count: int) -> None:
        """Note whether the store may drop sequences by itself, and how many keys it has dropped ever."""
        self._may_evict.set(float(may_evict))
        if self._last is not None and count > self._last:
            self._evicted.inc(count - self._last)
        self._last = count


class ModelMetrics:
    """The instruments of one model version, bound to their labels once; made by `ServerMetrics.model`."""

    def __init__(
        self,
        families: ServerFamilies,
        lines: MetricLines,
        name: str,
        version: str,
        hostname: str,
        record_prediction: RecordPrediction,
        followers: Sequence[FollowJobs],
        soon: Callable[[Callable[[], None]], None],
    ) -> None:
        self._labels = labels = {"model_name": name, "model_version": version, "hostname": hostname}
        self._families = families
        self._lines = lines
        self._worker_thread_line = lines.form((["Host"], {"WorkerThreadTime": "%(value).3f"}), values=("value",))
        self._hostname = hostname
        self._record_prediction = record_prediction
        self._followers = followers
        self._soon = soon
        self._workers: set[str] = set()
        #: What is not folded yet: the sizes of batches that have begun, calls of the handler, jobs that have ended.
        self.begun: list[int] = []
        self.batches: list[BatchRecord] = []
        self.jobs: list[EndedJob] = []
        #: Seconds until the first part of each stream, and from each part to the next.
        self.part_times: tuple[list[float], list[float]] = ([], [])
        #: What is shown once the version is used: families, labels and instruments.
        self._unused: list[tuple[str, Mapping[str, str], Updatable]] = []
        #: TorchServe's gauges of the last value, in milliseconds, of the whole server.
        of_host = {"Level": "Host", "Hostname": hostname}
        self.queue_time = families.child(Gauge, "QueueTime", of_host)
        self.worker_thread_time = families.child(Gauge, "WorkerThreadTime", of_host)
        self.queue_seconds = self._later(Histogram, "ts_queue_seconds", labels)
        self.handler_seconds = self._later(Histogram, "ts_handler_seconds", labels)
        self.request_seconds = self._later(Histogram, "ts_request_seconds", labels)
        self.first_part_seconds = self._later(Histogram, "ts_time_to_first_part_seconds", labels)
        self.next_part_seconds = self._later(Histogram, "ts_time_between_parts_seconds", labels)
        self.batch_size = self._later(Histogram, "ts_batch_size", labels)
        self.outcomes = Outcomes()
        self.open_sequences = families.child(Gauge, "ts_open_sequences", labels)
        #: Sequences of other versions, by what came of moving them here; see `SequenceNews.migration`.
        self.migrations = {
            MIGRATED: self._later(Counter, "ts_sequences_migrated_total", labels),
            NOT_MIGRATED: self._later(Counter, "ts_migration_failures_total", labels),
        }
        #: Sequences that are over, and were forgotten before `rememberEndedSec`.
        self.sequences_forgotten = self._later(Counter, "ts_sequences_forgotten_total", labels)
        may_evict = self._later(Gauge, "ts_redis_evicts", labels)
        self.evictions = Evictions(may_evict, self._later(Counter, "ts_redis_evicted_keys_total", labels))
        self.queue_depth = families.child(Gauge, "ts_queue_depth", labels)
        self.worker_restarts = families.child(Counter, "ts_worker_restarts_total", labels)
        self.workers_wanted = families.child(Gauge, "ts_workers_wanted", labels)
        self.workers_ready = families.child(Gauge, "ts_workers_ready", labels)
        self.workers_given_up = families.child(Gauge, "ts_workers_given_up", labels)
        self.scalings = {each: self._later(Counter, "ts_scaling_total", self._labels_with(each)) for each in Reason}
        #: By how the request came, and why it ended.
        self._ended: dict[tuple[str, str], Counter] = {}
        self.sequences_closed = {
            each: self._later(Counter, "ts_sequences_closed_total", self._labels_with(each)) for each in CloseReason
        }

    @cached_property
    def by_version(self) -> RequestCounters:
        """The counters of requests that name the version; a request has come."""
        self.show()
        return RequestCounters(self._families, self._lines, self._labels)

    @cached_property
    def by_default(self) -> RequestCounters:
        """The counters of requests that name no version; a request has come."""
        self.show()
        labels = {**self._labels, "model_version": DEFAULT_VERSION_LABEL}
        return RequestCounters(self._families, self._lines, labels)

    @cached_property
    def deadlines(self) -> DeadlineMetrics:
        """The metrics of requests with deadlines; one has come."""
        return DeadlineMetrics(self._families, self._labels)

    @cached_property
    def handover(self) -> HandoverMetrics:
        """The metrics of sequences that move between workers; one has moved, or could not."""
        return HandoverMetrics(self._families, self._labels)

    @property
    def deadline_counts(self) -> DeadlineCounts | None:
        """What was counted of requests with deadlines; None if there were none."""
        metrics: DeadlineMetrics | None = self.__dict__.get("deadlines")
        return None if metrics is None else metrics.counts()

    def _later(self, kind: type[U], name: str, labels: Mapping[str, str]) -> U:
        """Return an instrument that `show` shows."""
        made = self._families.unshown(kind, name)
        self._unused.append((name, labels, made))
        return made

    def show(self) -> None:
        """Show all series: the version is used."""
        unused, self._unused = self._unused, []
        for name, labels, instrument in unused:
            self._families.show(name, labels, instrument)
        if unused:
            _ = self.by_version, self.by_default

    def note_store_size(self, size: int, sequences: int | None) -> None:
        """Note how many bytes the store of the model's sequences has, and how many sequences, if that is known."""
        self._families.child(Gauge, "ts_sequence_store_bytes", self._labels).set(float(size))
        if sequences is not None:
            self._families.child(Gauge, "ts_sequence_store_sequences", self._labels).set(float(sequences))

    def ended(self, job: EndedJob) -> None:
        """Record a job that has its outcome; it is kept until `fold` has added it up."""
        if not self.jobs:
            self._soon(self.fold)
        self.jobs.append(job)

    def fold(self) -> None:
        """Add up the records so far."""
        begun, batches, jobs = self.begun[:], self.batches[:], self.jobs[:]
        self.begun.clear()
        self.batches.clear()
        self.jobs.clear()
        if begun or batches or jobs:
            self.show()
        self.batch_size.observe_all(begun)
        for batch in batches:
            self._fold_batch(batch)
        for kind, alike in groupby(jobs, _kind_of):
            self._fold_jobs(kind, [*alike])
        for histogram, times in zip((self.first_part_seconds, self.next_part_seconds), self.part_times, strict=True):
            histogram.observe_all(times)
            times.clear()
        for follow in self._followers if jobs else ():
            follow(self._labels["model_name"], self._labels["model_version"], jobs)
        for job in reversed(jobs):
            if job.sent_at:
                self.queue_time.set((job.sent_at - job.submitted_at) * 1e3)
                break

    def _fold_batch(self, batch: BatchRecord) -> None:
        at, seconds, round_trip, answered, job_ids = batch
        self.handler_seconds.observe(seconds)
        if answered:
            count, total = self.outcomes.executions.get(answered, (0, 0.0))
            self.outcomes.executions[answered] = count + 1, total + seconds
        self._record_prediction(seconds * 1e3, job_ids, at)
        # A batch that was sent ahead begins before the frontend has received the answers to the one before.
        self.worker_thread_time.value = besides = max(0.0, round_trip - seconds) * 1e3
        if self._worker_thread_line:
            self._lines.events.append((at, (self._worker_thread_line, (besides,))))

    def _fold_jobs(self, kind: tuple[bool, str, Cause | int, bool], jobs: Sequence[EndedJob]) -> None:
        """Add up jobs of one kind."""
        by_default, via, told, succeeded = kind
        counters, outcomes = self.by_default if by_default else self.by_version, self.outcomes
        if isinstance(told, Cause):
            cause = told.value
        elif told >= 500:
            cause = HANDLER_ERROR
        else:
            cause = ANSWERED if succeeded else REFUSED_BY_HANDLER
        took = [job.ended_at - job.submitted_at for job in jobs]
        waited = [job.sent_at - job.submitted_at for job in jobs if succeeded or job.sent_at]
        seconds, queued = sum(took), sum(waited)
        self.request_seconds.observe_all(took)
        self.queue_seconds.observe_all(waited)
        counters.inference_latency_microseconds.value += seconds * 1e6
        counters.queue_latency_microseconds.value += queued * 1e6
        outcomes.last_at = jobs[-1].ended_at
        if succeeded:
            outcomes.succeeded += len(jobs)
            outcomes.succeeded_seconds += seconds
            outcomes.running_seconds += seconds - queued
            if lines := counters.answered_lines:
                self._lines.events += [
                    (job.at, (lines, (all_of_it * 1e6, before * 1e6, before * 1e3)))
                    for job, all_of_it, before in zip(jobs, took, waited, strict=True)
                ]
        else:
            outcomes.failures[cause] = outcomes.failures.get(cause, 0) + len(jobs)
            outcomes.failed_seconds += seconds
            if line := counters.line:
                self._lines.events += [(job.at, (line, ())) for job in jobs]
        counter = self._ended.get((via, cause))
        if counter is None:
            counter = self._families.child(Counter, "ts_outcomes_total", self._outcome_labels(via, cause))
            self._ended[via, cause] = counter
        counter.value += len(jobs)

    def worker_load_time(self, worker_name: str, milliseconds: float) -> None:
        """The worker (`W-<id>-<model>_<version>`) took that long from its launch until it was ready."""
        self.show()
        self._workers.add(worker_name)
        self._families.child(Gauge, "WorkerLoadTime", self._worker_labels(worker_name)).set(milliseconds)
        if form := self._lines.form(([worker_name, "Host"], {"WorkerLoadTime": "%(value).1f"}), values=("value",)):
            self._lines.events.append((time(), (form, (milliseconds,))))

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
        self.fold()
        self._unused.clear()
        if "deadlines" in vars(self):
            self.deadlines.forget()
        if "handover" in vars(self):
            self.handover.forget()
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
