"""The asyncio shell around one scheduler: it performs the scheduler's effects and tells it what happened.

Nothing is decided here. Doors submit jobs and read their `Parts`; workers deliver results; the scheduler says who gets
what when; one timer wakes it at its next deadline.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from torchserve_py.metrics.model_metrics import ModelMetrics
from torchserve_py.scheduling.effects import Cancel, Cause, Effect, EndReason, EndSequence, Finish, Send
from torchserve_py.scheduling.job import STREAMING, Job
from torchserve_py.scheduling.policy import Policy
from torchserve_py.scheduling.scheduler import Scheduler
from torchserve_py.workers import refused_steps, sending
from torchserve_py.workers.alarm import Alarm
from torchserve_py.workers.inference_request import InferenceRequest
from torchserve_py.workers.inputs import Input, Inputs
from torchserve_py.workers.job_ids import JobIds
from torchserve_py.workers.parts import Part, Parts, Span
from torchserve_py.workers.running_time import RunningTime
from torchserve_py.workers.worker import Worker
from ts.protocol.messages import SEQUENCE_ID_SEPARATOR

logger = logging.getLogger(__name__)

_new_job_id = JobIds().new
#: A reader this many times behind its buffer limit is given up when others need the worker that serves it.
_GIVE_UP_FACTOR = 8
#: How many sequences without a job end in one turn of the event loop.
_ENDED_AT_ONCE = 500


class Dispatcher:
    """All jobs of one model version, from admission to their outcome."""

    def __init__(
        self,
        policy: Policy,
        metrics: ModelMetrics,
        end_header: str,
        stream_buffer_size: int,
        record_model_metrics: Callable[[list[list[Any]]], None],
    ) -> None:
        self._scheduler = Scheduler(policy)
        self._running_time = RunningTime() if policy.sequences is not None else None
        self._now = time.monotonic if self._running_time is None else self._running_time.now
        self._moment_of = float if self._running_time is None else self._running_time.moment_of
        self._metrics = metrics
        self._end_header = end_header.lower() if policy.sequences is not None else None
        self._durable = policy.sequences is not None and policy.sequences.durable
        self._stream_buffer_size = stream_buffer_size
        self._record_model_metrics = record_model_metrics
        self._parts: dict[str, Parts] = {}
        self._workers: dict[str, Worker] = {}
        self._released: dict[str, asyncio.Future[None]] = {}
        self._idle: asyncio.Future[None] | None = None
        self._is_idle: Callable[[], bool] = lambda: self._scheduler.is_idle
        self._alarm = Alarm(self._tick)
        metrics.observe_state(
            queue_depth=lambda: self._scheduler.queued, open_sequences=lambda: self._scheduler.open_sequences
        )

    # What doors see, through the model.

    def submit(self, request: InferenceRequest, expires_in: float | None = None, span: Span | None = None) -> Parts:
        """Admit one inference request; a refusal is raised by the first `Parts.next`.

        Args:
            request: The request; its own `expires_in` does not count.
            expires_in: How many seconds it may wait for a worker.
            span: What traces the job.
        """
        now = self._now()
        job_id = _new_job_id()
        sequence = request.sequence
        job = Job(
            job_id,
            unbatched=request.unbatched,
            priority=request.priority,
            expires_at=None if expires_in is None else now + expires_in,
            payload=(
                job_id,
                request.headers,
                request.content_type,
                request.body,
                request.protocol,
                request.more_input,
            ),
        )
        if sequence is not None and self._end_header is not None:  # else the model keeps no sequences
            job.sequence_id, job.starts_sequence, job.ends_sequence = sequence.id, sequence.starts, sequence.ends
        parts = self._parts[job_id] = Parts(job, self, by_default=request.by_default)
        parts.span = span
        if request.more_input:
            parts.inputs = Inputs(lambda given: self._pass_on(job, given))
        self._metrics.observe_submission(by_default=request.by_default)
        self._perform(self._scheduler.submit(job, now), now)
        return parts

    @property
    def queued(self) -> int:
        """How many jobs wait."""
        return self._scheduler.queued

    def knows_sequence(self, sequence_id: str) -> bool:
        """Whether the sequence is open, or remembered as one whose state is gone."""
        return self._scheduler.knows_sequence(sequence_id, self._now())

    @property
    def remaining_capacity(self) -> int:
        """How many more jobs the queue takes."""
        return self._scheduler.remaining_capacity

    @property
    def metrics(self) -> ModelMetrics:
        """What is measured of the model version."""
        return self._metrics

    # What workers tell.

    def results(self, worker: Worker, results: Sequence[Part], handler_seconds: float) -> None:
        """Deliver parts of responses to their readers and tell the scheduler, which hears of each in every case.

        Raises:
            ValueError: A part is of a job that ``worker`` does not have, and so not from a worker in its right mind.
        """
        now = self._now()
        if handler_seconds:
            self._metrics.observe_handler(handler_seconds, time.monotonic() - worker.sent_at, results)
        arrived: list[tuple[str, bool]] = []
        try:
            for part in results:
                self._result(worker, part, arrived, now)
        finally:
            self._perform(self._scheduler.parts(arrived, now), now)

    def _result(self, worker: Worker, part: Part, arrived: list[tuple[str, bool]], now: float) -> None:
        """Deliver one part. What the scheduler is to hear of it joins ``arrived`` before anything can fail."""
        job_id, more = part.job_id, part.more
        parts = self._parts.get(job_id)
        if job_id not in worker.in_flight:
            if parts is None:
                return  # the job is over
            raise ValueError(f"a result of job {job_id}, which it does not have")
        if not more:
            worker.in_flight.remove(job_id)
        if not (more and parts is not None and parts.job.state is STREAMING):  # then one more is no news to it
            arrived.append((job_id, more))
        if part.error is not None:
            self._scheduler.failed(job_id)
        if self._end_header is not None and part.headers:
            if part.error is not None and parts is not None and self._refuse_step(parts, part, now):
                self._drop_rest(part, now)
                return
            if part.error is None or not self._durable:
                self._end_sequences(parts, part, now)
        if parts is None:
            return
        if part.error is not None:
            self._forget(parts, now, failed=True)
            parts.deliver(part._replace(more=False))
            self._drop_rest(part, now)
        elif not more:
            self._forget(parts, now, failed=False)
            parts.deliver(part)
        else:
            parts.deliver(part)
            if parts.buffered_bytes > self._stream_buffer_size:
                self._slow_reader(parts, worker, now)

    def _drop_rest(self, error: Part, now: float) -> None:
        """Have the worker drop a job that has failed: parts that follow a malformed one are waited for by nobody."""
        if error.more:
            self._perform(self._scheduler.cancel(error.job_id, now), now)

    def model_metrics(self, entries: list[list[Any]]) -> None:
        """Pass on what a handler measured."""
        self._record_model_metrics(entries)

    def jobs_overdue(self, job_ids: Sequence[str]) -> None:
        """End jobs of which nothing was heard for too long; the worker that has them is told to drop them."""
        now = self._now()
        for job_id in job_ids:
            parts = self._parts.get(job_id)
            if parts is not None:
                parts.fail(Cause.response_timeout)
                self._forget(parts, now, failed=True)
                self._perform(self._scheduler.cancel(job_id, now), now)

    def take_out(self, worker: Worker) -> None:
        """Give no more work to a worker that will be replaced."""
        if self._workers.get(worker.id) is worker:
            now = self._now()
            self._perform(self._scheduler.retire(worker.id, now), now)

    def worker_up(self, worker: Worker) -> None:
        """Give work to ``worker`` from now on."""
        now = self._now()
        self._workers[worker.id] = worker
        self._perform(self._scheduler.worker_up(worker.id, now), now)

    def worker_lost(self, worker: Worker) -> None:
        """Settle what the dead ``worker`` had; does nothing when it was released before."""
        if self._workers.get(worker.id) is not worker:
            return
        now = self._now()
        del self._workers[worker.id]
        self._perform(self._scheduler.worker_lost(worker.id, worker.loss_cause, now), now)
        self._release(worker.id)

    # Scaling and shutting down, called by the pool and the model.

    def set_workers(self, count: int) -> None:
        """Tell how many workers there are meant to be; with none, requests are refused."""
        now = self._now()
        self._perform(self._scheduler.set_workers(count, now), now)

    async def retire(self, worker: Worker, limit: float) -> None:
        """Give no more work to ``worker`` and wait until it has none left, at most ``limit`` seconds."""
        if self._workers.get(worker.id) is not worker:
            return
        released = self._released[worker.id] = asyncio.get_running_loop().create_future()
        now = self._now()
        self._perform(self._scheduler.retire(worker.id, now), now)
        await asyncio.wait([released], timeout=limit)

    async def drain(self, limit: float) -> bool:
        """Refuse what is new and wait for the rest, at most ``limit`` seconds; return whether nothing is left."""
        now = self._now()
        self._perform(self._scheduler.drain(now), now)
        return await self._wait_until_idle(limit)

    async def finish(self, cause: Cause, limit: float) -> None:
        """Refuse what is new with ``cause`` and wait until every job has ended, at most ``limit`` seconds."""
        now = self._now()
        self._is_idle = lambda: not self._scheduler.has_jobs
        self._perform(self._scheduler.drain(now, cause), now)
        await self._wait_until_idle(limit)

    async def _wait_until_idle(self, limit: float) -> bool:
        if not self._is_idle():
            if self._idle is None or self._idle.done():
                self._idle = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._idle], timeout=limit)
        return self._is_idle()

    async def close(self, cause: Cause) -> None:
        """End every job with ``cause`` at once, and every sequence; refuse what comes after.

        Of many sequences some end at a time, so that other models' requests need not wait for all of them.
        """
        while True:
            now = self._now()
            self._perform(self._scheduler.close(cause, now, _ENDED_AT_ONCE), now)
            if not self._scheduler.open_sequences:
                break
            await asyncio.sleep(0)
        self._alarm.cancel()
        if self._running_time is not None:
            self._running_time.close()

    # Effects.

    def _perform(self, effects: Sequence[Effect], now: float) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                self._send(effect, now)
            elif isinstance(effect, Finish):
                self._finish(effect, now)
            elif isinstance(effect, Cancel):
                self._workers[effect.worker_id].cancel(effect.job_ids)
            elif isinstance(effect, EndSequence):
                self._end_sequence(effect, now)
            else:
                self._release(effect.worker_id)
        self._alarm.set(self._scheduler.next_deadline(), now)
        if self._idle is not None and not self._idle.done() and self._is_idle():
            self._idle.set_result(None)

    def _send(self, effect: Send, now: float) -> None:
        self._metrics.batch_size.observe(len(effect.jobs))
        for job in effect.jobs:
            self._metrics.observe_queue(now - job.submitted_at, by_default=self._parts[job.id].by_default)
        worker = self._workers[effect.worker_id]
        refused = sending.send(worker, effect.jobs, time.monotonic(), self._moment_of)
        if refused:  # not at once: the scheduler's effects are still being performed
            asyncio.get_running_loop().call_soon(self.results, worker, refused, 0.0)
        for job in effect.jobs:
            inputs = self._parts[job.id].inputs
            if inputs is not None:
                for given in inputs.take_held():
                    worker.send_input(job.id, given)

    def _pass_on(self, job: Job, given: Input) -> bool:
        """Send a further input of a job to its worker, if it has one yet."""
        worker = self._workers.get(job.worker_id)
        if worker is None or job.id not in worker.in_flight:
            return False
        worker.send_input(job.id, given)
        return True

    def taken(self, job_id: str, count: int) -> None:
        """The model has taken further inputs of a job."""
        parts = self._parts.get(job_id)
        if parts is not None and parts.inputs is not None:
            parts.inputs.taken(count)

    def _finish(self, effect: Finish, now: float) -> None:
        parts = self._parts.get(effect.job.id)
        if parts is not None:
            parts.fail(effect.cause)
            self._forget(parts, now, failed=True)

    def _end_sequence(self, effect: EndSequence, now: float) -> None:
        self._metrics.sequences_closed[effect.reason].inc()
        worker = None if effect.worker_id is None else self._workers.get(effect.worker_id)
        if worker is not None:
            worker.end_sequence(effect.sequence_id, effect.reason.value, time.monotonic() - (now - effect.at))

    def _release(self, worker_id: str) -> None:
        self._workers.pop(worker_id, None)
        released = self._released.pop(worker_id, None)
        if released is not None and not released.done():
            released.set_result(None)

    def _forget(self, parts: Parts, now: float, *, failed: bool) -> None:
        """Let go of a job that has its outcome (what was delivered stays readable)."""
        del self._parts[parts.job.id]
        if parts.inputs is not None:
            parts.inputs.end()
        job = parts.job
        self._metrics.observe_request(now - job.submitted_at, by_default=parts.by_default)
        if failed:
            self._metrics.outcomes.went_wrong(job.submitted_at, now)
        else:
            self._metrics.outcomes.answered(job.submitted_at, job.sent_at, now)
        if parts.span is not None:
            parts.span.ended(job.id, failed=failed)
        self._let_go(parts)

    def _refuse_step(self, parts: Parts, part: Part, now: float) -> bool:
        """Fail a step of a sequence that was not applied, if the worker's answer says why."""
        cause = refused_steps.cause_of(part)
        if cause is None or (cause is Cause.outcome_unknown and not self._durable):
            return False
        parts.fail(cause)
        self._forget(parts, now, failed=True)
        reason, sequence_id = refused_steps.ENDS[cause], parts.job.sequence_id
        if reason is not None and sequence_id is not None:
            self._perform(self._scheduler.end_sequence(sequence_id, reason, now), now)
        return True

    def _end_sequences(self, parts: Parts | None, part: Part, now: float) -> None:
        """Obey the response header with which a handler ends sequences; a stored one ends only with what counts."""
        ended = [value for name, value in part.headers if name.lower() == self._end_header]
        for sequence_id in (each.strip() for value in ended for each in value.split(SEQUENCE_ID_SEPARATOR)):
            if part.more and self._durable and parts is not None and parts.job.sequence_id == sequence_id:
                parts.job.ends_sequence = True  # once its last part has come
            else:
                self._perform(self._scheduler.end_sequence(sequence_id, EndReason.ended, now), now)

    # What readers do.

    def gave_up(self, parts: Parts) -> None:
        """The reader of a job is gone: nobody waits for the rest."""
        now = self._now()
        self._perform(self._scheduler.cancel(parts.job.id, now), now)

    def _slow_reader(self, parts: Parts, worker: Worker, now: float) -> None:
        """Slow the worker down to the pace of its readers, or give one reader up for the sake of the others."""
        limit = self._stream_buffer_size
        others = (self._parts.get(job_id) for job_id in worker.in_flight)
        if all(other is None or other.buffered_bytes > limit for other in others):
            worker.pause()
        elif parts.buffered_bytes > limit * _GIVE_UP_FACTOR:
            logger.warning("Request %s is given up: its client reads too slowly", parts.job.id)
            self._perform(self._scheduler.cancel(parts.job.id, now), now)

    def was_read(self, parts: Parts) -> None:
        """A reader that was behind has taken a part."""
        if parts.buffered_bytes < self._stream_buffer_size:
            self._let_go(parts)

    def _let_go(self, parts: Parts) -> None:
        """A reader does not hold its worker back, or no longer."""
        worker = self._workers.get(parts.job.worker_id)
        if worker is not None:
            worker.resume()

    # Time.

    def _tick(self) -> None:
        now = self._now()
        self._perform(self._scheduler.tick(now), now)
