"""The asyncio shell around one scheduler: it performs the scheduler's effects and tells it what happened.

Nothing is decided here. Doors submit requests and read their `Parts`; workers deliver results; the scheduler says which
worker gets which jobs at what time; one timer wakes it at its next deadline. A job in flight is known in one place, the
scheduler's table of `InferenceJob`, and ends in one place, `Dispatcher._end`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, cast

from torchserve_py.core.refused_steps import END_REASONS, cause_of
from torchserve_py.core.scheduler_time import Alarm, RunningTime
from torchserve_py.jobs.inference_job import InferenceJob, new_job_id
from torchserve_py.jobs.inference_request import InferenceRequest
from torchserve_py.jobs.parts import Input, Inputs, Part, Parts
from torchserve_py.metrics.model_metrics import ModelMetrics
from torchserve_py.scheduling.effects import (
    Begin,
    Cancel,
    Cause,
    Effect,
    EndReason,
    EndSequence,
    Finish,
    Send,
    SendAhead,
)
from torchserve_py.scheduling.job import STREAMING, Job
from torchserve_py.scheduling.policy import Policy
from torchserve_py.scheduling.scheduler import Scheduler
from torchserve_py.workers.worker import Worker
from ts.protocol.messages import ended_sequences

logger = logging.getLogger(__name__)
#: A reader this many times behind its buffer limit is given up when others need the worker that serves it.
_GIVE_UP_FACTOR = 8
#: How many sequences without a job end in one turn of the event loop.
_ENDED_AT_ONCE = 500

#: The jobs in effects: all jobs that the dispatcher submits are of this type.
_Jobs: TypeAlias = Sequence[InferenceJob]


class Dispatcher:
    """All jobs of one model version, from admission to their outcome."""

    def __init__(
        self,
        policy: Policy,
        metrics: ModelMetrics,
        end_header: str,
        stream_buffer_size: int,
        record_model_metrics: Callable[[list[list[Any]]], None],
        client_timeout: float | None = None,
    ) -> None:
        #: What waits and what runs, to be read only.
        self.scheduler = Scheduler(policy, lambda worker_id: self._workers[worker_id].take_back())
        self._running_time = RunningTime() if policy.sequences is not None else None
        #: The clock of the scheduler.
        self.now = time.monotonic if self._running_time is None else self._running_time.now
        self.metrics = metrics
        self._end_header = end_header.lower() if policy.sequences is not None else None
        self._durable = policy.sequences is not None and policy.sequences.durable
        #: Converts the scheduler's time to monotonic seconds, for the histories of stored sequences; else None.
        self._moment_of = self._running_time.moment_of if self._running_time is not None and self._durable else None
        self._stream_buffer_size = stream_buffer_size
        #: The most seconds that a request may wait for a worker.
        self._client_timeout = client_timeout
        self.model_metrics = record_model_metrics
        #: Every job in flight by id. The scheduler keeps the table, and only `submit` adds to it.
        self._jobs = cast("Mapping[str, InferenceJob]", self.scheduler.jobs)
        self._jobs_at = cast("Callable[[str], Mapping[str, InferenceJob]]", self.scheduler.jobs_of)
        self._workers: dict[str, Worker] = {}
        self._released: dict[str, asyncio.Future[None]] = {}
        self._idle: asyncio.Future[None] | None = None
        self._alarm = Alarm(lambda: self._pass(self.scheduler.tick))
        #: Called when a job was submitted while no worker is up.
        self.on_waiting: Callable[[], None] = lambda: None
        metrics.queue_depth.read_from(lambda: self.scheduler.queued)
        metrics.open_sequences.read_from(lambda: self.scheduler.open_sequences)

    # What doors see, through the model.

    def submit(self, request: InferenceRequest, on_end: Callable[[str, bool], None] | None = None) -> Parts:
        """Admit one inference request; a refusal is raised by the first `Parts.next`."""
        now, limit = self.now(), request.expires_in
        if self._client_timeout is not None and (limit is None or self._client_timeout < limit):
            limit = self._client_timeout
        job = InferenceJob(
            new_job_id(),
            unbatched=request.unbatched,
            priority=request.priority,
            expires_at=None if limit is None else now + limit,
            request=request,
            on_end=on_end,
        )
        # A model that keeps no sequences has no header that ends them.
        if (named := request.sequence) is not None and self._end_header is not None:
            job.sequence_id, job.starts_sequence, job.ends_sequence = named.id, named.starts, named.ends
            job.once = named.once and not request.only_ask
        parts = job.parts = Parts(job.id, job.sequence_id, self)
        if request.more_input:
            parts.inputs = Inputs(lambda given: self._pass_on(job, given))
        counters = self.metrics.by_default if request.by_default else self.metrics.by_version
        counters.requests_total.value += 1
        self._perform(self.scheduler.submit(job, now), now)
        if not self._workers:
            self.on_waiting()
        return parts

    def end_sequence(self, sequence_id: str, *, keep_stored: bool) -> None:
        """Close a sequence once none of its jobs runs; a stored one may go on elsewhere, with ``keep_stored``."""
        reason = EndReason.suspended if keep_stored and self._durable else EndReason.ended
        self._pass(lambda now: self.scheduler.end_sequence(sequence_id, reason, now))

    # What workers tell.

    def jobs_of(self, worker: Worker) -> Mapping[str, InferenceJob]:
        """Return the jobs that the worker has, by id; none before it is up, and once it is lost or released."""
        if self._workers.get(worker.id) is not worker:
            return {}
        return self._jobs_at(worker.id)

    def results(self, worker: Worker, results: Sequence[Part], handler_seconds: float) -> None:
        """Deliver parts of responses to their readers, and tell the scheduler of each in every case.

        Raises ValueError: a part is of a job that ``worker`` does not have: the worker is defective.
        """
        now, heard_at = self.now(), time.monotonic()
        if handler_seconds:
            self.metrics.observe_handler(handler_seconds, heard_at - worker.sent_at, results)
            self.scheduler.step_took(handler_seconds)
        jobs = self.jobs_of(worker)
        arrived: list[tuple[str, bool]] = []
        try:
            for part in results:
                job = jobs.get(part.job_id)
                if job is not None:
                    if job.heard_at is not None:
                        job.heard_at = heard_at
                    self._result(job, worker, part, arrived, now)
                elif part.job_id in self._jobs:
                    raise ValueError(f"a result of job {part.job_id}, which it does not have")
        finally:
            self._perform(self.scheduler.parts(arrived, now), now)

    def _result(
        self, job: InferenceJob, worker: Worker, part: Part, arrived: list[tuple[str, bool]], now: float
    ) -> None:
        """Deliver one part, and first add to ``arrived`` what the scheduler has to know, whatever fails later."""
        more = part.more
        if not (more and job.state is STREAMING):  # else the scheduler knows that parts come
            arrived.append((job.id, more))
        if part.error is not None:
            self.scheduler.failed(job.id)
        refusal = None
        if self._end_header is not None and part.headers:
            refusal = cause_of(part, durable=self._durable)
            if refusal is None and (part.error is None or not self._durable):
                self._end_sequences(job, part, now)
        if (parts := job.parts) is None:
            return  # the job has its outcome; its worker is dropping it
        if part.error is not None:
            self._end(job, part._replace(more=False) if refusal is None else refusal, now)
            if (reason := END_REASONS.get(refusal)) is not None and job.sequence_id is not None:
                self._perform(self.scheduler.end_sequence(job.sequence_id, reason, now), now)
            if more:  # the part was malformed, and the reader takes no further ones
                self._perform(self.scheduler.cancel(job.id, now, None), now)
        elif not more:
            self._end(job, part, now)
        else:
            parts.deliver(part)
            if parts.buffered_bytes > self._stream_buffer_size:
                self._slow_reader(job, parts, worker)

    def _end_sequences(self, job: InferenceJob, part: Part, now: float) -> None:
        """Obey the response header that ends sequences; a stored one ends with the last part of the job."""
        assert self._end_header is not None, "the model keeps sequences"
        for sequence_id in ended_sequences(part.headers, self._end_header):
            if part.more and self._durable and job.sequence_id == sequence_id:
                job.ends_sequence = True  # once its last part has come, unless that says that the step is undone
            else:
                self._perform(self.scheduler.end_sequence(sequence_id, EndReason.ended, now), now)

    def taken(self, worker: Worker, job_id: str, count: int) -> None:
        """Note that the model has taken further inputs of a job."""
        if (job := self.jobs_of(worker).get(job_id)) is not None and job.parts is not None and job.parts.inputs:
            job.parts.inputs.taken(count)

    def cancel(self, job: Job, cause: Cause) -> None:
        """End a job for this cause and have its worker drop it; does nothing when the job has its outcome already."""
        self._pass(lambda now: self.scheduler.cancel(job.id, now, cause))

    def take_out(self, worker: Worker) -> None:
        """Give no more jobs to a worker that will be replaced."""
        if self._workers.get(worker.id) is worker:
            self._pass(lambda now: self.scheduler.retire(worker.id, now))

    def worker_up(self, worker: Worker) -> None:
        """Give work to ``worker`` from now on."""
        self._workers[worker.id] = worker
        self._pass(lambda now: self.scheduler.worker_up(worker.id, now))

    def worker_lost(self, worker: Worker) -> None:
        """Settle what the dead ``worker`` had; does nothing when it was released before."""
        if self._workers.get(worker.id) is not worker:
            return
        now = self.now()
        effects = self.scheduler.worker_lost(worker.id, worker.loss_cause, now)
        del self._workers[worker.id]
        self._perform(effects, now)
        self._release(worker.id)

    def succeed(self, earlier: Dispatcher) -> None:
        """Know the sequences of the dispatcher whose jobs come here from now on."""
        self.scheduler.succeed(earlier.scheduler, self.now())

    def set_workers(self, count: int) -> None:
        """Tell how many workers there are meant to be; with none, requests are refused."""
        self._pass(lambda now: self.scheduler.set_workers(count, now))

    async def retire(self, worker: Worker, limit: float) -> None:
        """Give no more jobs to ``worker``, and wait at most ``limit`` seconds until it has none left."""
        if self._workers.get(worker.id) is not worker:
            return
        released = self._released.setdefault(worker.id, asyncio.get_running_loop().create_future())
        self.take_out(worker)
        await asyncio.wait([released], timeout=limit)

    async def drain(self, limit: float, cause: Cause = Cause.draining) -> bool:
        """Refuse what is new with ``cause`` and wait for the rest, at most ``limit`` seconds.

        Return whether nothing is left; see `Scheduler.is_idle`.
        """
        self._pass(lambda now: self.scheduler.drain(cause, now))
        if not self.scheduler.is_idle:
            if self._idle is None or self._idle.done():
                self._idle = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._idle], timeout=limit)
        return self.scheduler.is_idle

    async def close(self, cause: Cause) -> None:
        """End every job with ``cause`` at once, and all sequences, some in a turn of the loop; refuse new jobs."""
        while True:
            self._pass(lambda now: self.scheduler.close(cause, now, _ENDED_AT_ONCE))
            if not self.scheduler.open_sequences:
                break
            await asyncio.sleep(0)
        self._alarm.cancel()
        if self._running_time is not None:
            self._running_time.close()

    def _pass(self, event: Callable[[float], Sequence[Effect]]) -> None:
        """Pass an event to the scheduler, and perform its effects."""
        now = self.now()
        self._perform(event(now), now)

    def _perform(self, effects: Sequence[Effect], now: float) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                self._workers[effect.worker_id].send(cast("_Jobs", effect.jobs), self._moment_of)
                self._begin(effect, now)
            elif isinstance(effect, SendAhead):
                worker = self._workers[effect.worker_id]
                worker.send_ahead(cast("_Jobs", effect.jobs), self._moment_of, joins=effect.joins)
            elif isinstance(effect, Begin):
                self._begin(effect, now)
            elif isinstance(effect, Finish):
                self._end(cast("InferenceJob", effect.job), effect.cause, now)
            elif isinstance(effect, Cancel):
                self._workers[effect.worker_id].cancel(effect.job_ids)
            elif isinstance(effect, EndSequence):
                self._end_sequence(effect, now)
            else:
                self._release(effect.worker_id)
        if (deadline := self.scheduler.next_deadline()) is not None and deadline < self._alarm.rings_at:
            self._alarm.set(deadline, now)
        if self._idle is not None and not self._idle.done() and self.scheduler.is_idle:
            self._idle.set_result(None)

    def _begin(self, effect: Send | Begin, now: float) -> None:
        """A worker begins a batch."""
        worker, jobs = self._workers.get(effect.worker_id), cast("_Jobs", effect.jobs)
        if worker is None:  # it was lost after it had begun what it was sent ahead
            return
        worker.begin(jobs, time.monotonic())
        self.metrics.batch_size.observe(len(jobs))
        for job in jobs:
            self.metrics.observe_queue(now - job.submitted_at, by_default=job.request.by_default)
            if job.refusal is not None:  # not at once: the scheduler's effects are still being performed
                asyncio.get_running_loop().call_soon(self._refuse, job, job.refusal, worker)
            if job.parts is not None and job.parts.inputs is not None:
                for given in job.parts.inputs.take_held():
                    worker.send_input(job.id, given)

    def _refuse(self, job: InferenceJob, refusal: Part, worker: Worker) -> None:
        """Answer a job in place of its worker, unless that was lost meanwhile."""
        if job.id in self.jobs_of(worker):
            self.results(worker, (refusal,), 0.0)

    def _pass_on(self, job: InferenceJob, given: Input) -> bool:
        """Send a further input of a job to its worker, if it has one yet."""
        worker = self._workers.get(job.worker_id)
        if worker is None or job.id not in self.jobs_of(worker):
            return False
        worker.send_input(job.id, given)
        return True

    def _end(self, job: InferenceJob, outcome: Part | Cause, now: float) -> None:
        """End a job: deliver its outcome, and count and trace it. What was delivered before stays readable.

        The scheduler has ended the job as well, or is told in the same turn of the event loop. Raises RuntimeError: the
        job has an outcome already, which is a defect of the caller.
        """
        parts, job.parts = job.parts, None
        if parts is None:
            raise RuntimeError(f"job {job.id} has an outcome already; this would be another: {outcome!r}")
        failed = not isinstance(outcome, Part) or outcome.error is not None
        self.metrics.observe_request(now - job.submitted_at, by_default=job.request.by_default)
        if failed:
            self.metrics.outcomes.went_wrong(None if isinstance(outcome, Part) else outcome, job.submitted_at, now)
        else:
            self.metrics.outcomes.answered(job.submitted_at, job.sent_at, now)
        if job.on_end is not None:
            job.on_end(job.id, failed)
        if parts.inputs is not None:
            parts.inputs.end()
            job.heard_at = time.monotonic()  # from now on the watchdog times the worker until its last part
        if isinstance(outcome, Part):
            parts.deliver(outcome)
        else:
            parts.fail(outcome)
        self._resume_worker(job)

    def _end_sequence(self, effect: EndSequence, now: float) -> None:
        self.metrics.sequences_closed[effect.reason].inc()
        if effect.worker_id is not None and (worker := self._workers.get(effect.worker_id)) is not None:
            worker.end_sequence(effect.sequence_id, effect.reason.value, time.monotonic() - (now - effect.at))

    def _release(self, worker_id: str) -> None:
        self._workers.pop(worker_id, None)
        if (released := self._released.pop(worker_id, None)) is not None and not released.done():
            released.set_result(None)

    def gave_up(self, parts: Parts) -> None:
        """Cancel a job whose reader is gone."""
        if (job := self._jobs.get(parts.job_id)) is not None:
            self.cancel(job, Cause.cancelled)

    def was_read(self, parts: Parts) -> None:
        """A reader that was behind has taken a part."""
        if parts.buffered_bytes < self._stream_buffer_size and (job := self._jobs.get(parts.job_id)) is not None:
            self._resume_worker(job)

    def _slow_reader(self, job: InferenceJob, parts: Parts, worker: Worker) -> None:
        """Slow the worker down to the pace of its readers, or give one reader up for the sake of the others."""
        limit = self._stream_buffer_size
        others = (other.parts for other in self.jobs_of(worker).values())
        if all(other is None or other.buffered_bytes > limit for other in others):
            worker.pause()
        elif parts.buffered_bytes > limit * _GIVE_UP_FACTOR:
            logger.warning("Request %s is given up: its client reads too slowly", job.id)
            self.cancel(job, Cause.cancelled)

    def _resume_worker(self, job: Job) -> None:
        """Let the worker of a job send again, because the job's reader has caught up."""
        if (worker := self._workers.get(job.worker_id)) is not None and worker.paused:
            worker.resume()
