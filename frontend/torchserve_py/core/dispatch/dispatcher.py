"""The asyncio shell around one scheduler: it performs the scheduler's effects and tells it what happened.

Endpoints submit a `Call` and read its parts; workers deliver results; the scheduler decides which worker gets which
calls when. A call in flight is known in one place, the scheduler's table, and ends in one, `Dispatcher._end`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from operator import attrgetter
from typing import Any, Final, cast

from torchserve_py.base.causes import Cause, CloseReason
from torchserve_py.base.metrics.deadline_metrics import DeadlineMetrics
from torchserve_py.base.metrics.model_metrics import BatchRecord, ModelMetrics
from torchserve_py.core.dispatch.alarm import Alarm
from torchserve_py.core.dispatch.awaited import Awaited
from torchserve_py.core.dispatch.lost_requests import LostRequests
from torchserve_py.core.dispatch.ownership import Move, Ownership, Version, may_leave
from torchserve_py.core.dispatch.refused_steps import cause_of, close_reason, pause_of
from torchserve_py.core.handover.handover import Handover, OtherVersion
from torchserve_py.core.handover.left_sequences import LeftSequences
from torchserve_py.core.handover.next_server import Inheritance
from torchserve_py.core.jobs.call import Call, CallOwner
from torchserve_py.core.jobs.parts import Input, Inputs, Part
from torchserve_py.core.scheduling.closed import ClosedSequences
from torchserve_py.core.scheduling.effects import Begin, Cancel, CloseSequence, Effect, Fetch, Finish, Send, SendAhead
from torchserve_py.core.scheduling.job import STREAMING, Job
from torchserve_py.core.scheduling.order import NewOrder
from torchserve_py.core.scheduling.policy import Policy
from torchserve_py.core.scheduling.remembered import MOST_REMEMBERED
from torchserve_py.core.scheduling.reservations import Reservations
from torchserve_py.core.scheduling.scheduler import Scheduler
from torchserve_py.core.scheduling.timing import Timing
from torchserve_py.core.workers.worker import Worker
from torchserve_py.net.running_time import running_time
from ts.protocol.boot_clock import boot_time
from ts.protocol.messages import HELD_ELSEWHERE

logger = logging.getLogger(__name__)
#: How many sequences without a job end in one turn of the event loop.
_ENDED_AT_ONCE = 500
#: Headers of an answer: how late it is (milliseconds), and that its session has no guarantee although it asked for one.
DEADLINE_MISSED: Final = "ts-deadline-missed-ms"
DEGRADED: Final = "ts-deadline-degraded"
_job_id_of: Final = attrgetter("job_id")
#: A reader this many times behind its buffer limit is given up when others need the worker that serves it.
_GIVE_UP_FACTOR: Final = 8


class Dispatcher(CallOwner):
    """All jobs of one model version, from admission to their outcome."""

    def __init__(
        self,
        policy: Policy,
        metrics: ModelMetrics,
        stream_buffer_size: int,
        record_model_metrics: Callable[[list[list[Any]]], None],
        client_timeout: float | None = None,
        over: ClosedSequences | None = None,
        order: NewOrder | None = None,
    ) -> None:
        #: What waits and what runs, to be read only.
        self.scheduler = Scheduler(policy, lambda worker_id: self._workers[worker_id].take_back(), over, order)
        #: Before the first of them the scheduler has to be told that its time has come.
        self._deadlines = self.scheduler.deadlines
        self._clock = running_time()
        #: The clock of the scheduler: sequences are not idle while this process stands still.
        self.now = time.monotonic if policy.sequences is None else self._clock.now
        self.metrics = metrics
        self._keeps_sequences = policy.sequences is not None
        #: Whether its sequences are stored.
        self.durable = policy.sequences is not None and policy.sequences.durable
        #: Converts the scheduler's time to that of `boot_time`, for the histories of stored sequences; None if none of
        #: those in memory was asked after.
        self._moment_of = self._clock.moment_of if self.durable else None
        #: The most seconds that a request may wait for a worker.
        self._client_timeout = client_timeout
        self.model_metrics = record_model_metrics
        self._over = over
        #: Every job in flight by id. The scheduler keeps the table, and only `submit` adds to it.
        self._jobs = cast("Mapping[str, Call]", self.scheduler.jobs)
        self._workers: dict[str, Worker] = {}
        #: The bytes that may wait for a reader before its worker is paused.
        self._stream_buffer_size = stream_buffer_size
        #: Decides which version has a sequence, and the version that this is; see `join`.
        self._ownership: Ownership[Any] = Ownership({}, ())
        self._here: Version | None = None
        #: The versions that are to have sequences which still run here.
        self._moving: dict[str, Version] = {}
        #: What other versions are to run once the results in hand are dealt with, and the version that does not run it.
        self._handed_over: list[tuple[Version, Call, Version | None]] = []
        #: What is awaited that events bring about.
        self._awaited = Awaited()
        perform, until = lambda effects: self._perform(effects, self.now()), self._awaited.until
        self._handover = Handover(self.scheduler, self._workers, perform, until, self.now, metrics)
        #: What other servers have left of its sequences, if these are in memory.
        self.inheritance: Inheritance | None = None
        self._released: dict[str, asyncio.Future[None]] = {}
        self._alarm = Alarm(lambda: self._pass(self.scheduler.tick))
        #: Whether its only worker rests, see `rest`.
        self.rests = False
        #: Is asked while no worker is up, or the only one rests: gets how long a new call may wait (seconds), and the
        #: call, which it may let say when to try again; returns why it is refused.
        self.refuses: Callable[[float | None, Call], Cause | None] = lambda limit, call: None
        #: Called when a job was submitted while no worker is up.
        self.on_waiting: Callable[[], None] = lambda: None
        metrics.queue_depth.read_from(lambda: self.scheduler.queued)
        metrics.open_sequences.read_from(lambda: self.scheduler.open_sequences)

    # What endpoints see, through the model.

    def submit(self, call: Call, refusal: Cause | None = None) -> None:
        """Admit a call, or refuse it for this cause; a refusal is raised by the first `Call.next`."""
        now, limit = self.now(), self._client_timeout
        if call.expires_in is not None or call.answer_in is not None:
            limit = self._limit_of(call, now)
        if limit is not None:
            call.expires_at = now + limit
        if (account := call.account) is not None:
            call.client, call.weight = account.client, account.weight
        if self._keeps_sequences and (named := call.sequence) is not None:
            call.sequence_id, call.starts_sequence, call.ends_sequence = named.id, named.starts, named.ends
            call.step, call.token = named.step, named.token
            if call.only_ask:
                self._moment_of = self._clock.moment_of  # from now on workers get histories, which tell it
        call.owner = self
        if call.open_ended:
            call.inputs = Inputs(lambda given: self._pass_on(call, given))
        metrics = self.metrics
        (metrics.by_default if call.by_default else metrics.by_version).requests_total.value += 1
        if refusal is None and (self.rests or not self._workers):
            refusal = self.refuses(limit, call)
        if refusal is not None:
            call.submitted_at = now
            self._perform((Finish(call, refusal),), now)
            return
        self._perform(self.scheduler.submit(call, now), now)
        if not self._workers:
            self.on_waiting()

    def _limit_of(self, call: Call, now: float) -> float:
        """Return how long a call may wait whose client has named a limit; note until when it wants the answer."""
        if call.answer_in is not None and not call.open_ended:
            call.answer_by = now + call.answer_in
        return min(each for each in (self._client_timeout, call.expires_in, call.answer_in) if each is not None)

    def close_sequence(self, sequence_id: str, *, keep_stored: bool) -> None:
        """Close a sequence once none of its jobs runs; with ``keep_stored`` a stored one may continue later."""
        reason = CloseReason.suspended if keep_stored and self.durable else CloseReason.ended
        self._pass(lambda now: self.scheduler.close_sequence(sequence_id, reason, now))

    # What workers tell.

    def jobs_of(self, worker: Worker) -> Mapping[str, Call]:
        """Return the jobs that the worker has, by id; none before it is up, and once it is lost or released."""
        if self._workers.get(worker.id) is not worker:
            return {}
        jobs: Mapping[str, Any] = self.scheduler.jobs_of(worker.id)
        return jobs

    def results(self, worker: Worker, results: Sequence[Part], handler_seconds: float, heard_at: float) -> None:
        """Deliver parts of responses to their readers, and tell the scheduler of each in every case.

        They came at the moment ``heard_at``, by the time in which this process runs.

        Raises ValueError: a part is of a job that ``worker`` does not have: the worker is defective.
        """
        now = self.now()
        if handler_seconds:
            job_ids = [*map(_job_id_of, results)]
            answered = sum([not part.more and part.error is None for part in results])
            batch = BatchRecord(time.time(), handler_seconds, heard_at - worker.sent_at, answered, job_ids)
            self.metrics.batches.append(batch)
            self.scheduler.step_took(handler_seconds)
        jobs = self.jobs_of(worker)
        arrived: list[tuple[str, bool]] = []
        try:
            for part in results:
                job_id, more, _, _, _, _, error, news = part
                job = jobs.get(job_id)
                if job is None:
                    if job_id in self._jobs:
                        raise ValueError(f"a result of job {job_id}, which it does not have")
                    continue
                if job.heard_at is not None:
                    job.heard_at = heard_at
                try:
                    if more or error is not None or news is not None or job.ended:
                        self._result(job, worker, part, arrived, now)
                    else:
                        arrived.append((job_id, False))
                        self._end(job, part, now)
                except Exception:  # a defect of the server, for which the worker must not be replaced
                    logger.exception("A result of request %s could not be passed on.", job_id)
                    self._give_up(job, now, more=more)
        finally:
            now = self.now()  # a reader may have submitted another call meanwhile
            if self._moving:
                self._move(arrived, now)
            if arrived:
                self._perform(self.scheduler.parts(arrived, now), now)
            if self._handed_over:
                handed_over, self._handed_over = self._handed_over, []
                for other, job, by in handed_over:
                    other.dispatcher.take_over(job, by=by)

    def _result(self, job: Call, worker: Worker, part: Part, arrived: list[tuple[str, bool]], now: float) -> None:
        """Deliver one part, and first add to ``arrived`` what the scheduler has to know, whatever fails later."""
        more, news = part.more, part.news if self._keeps_sequences else None
        if news is not None and news.cause == HELD_ELSEWHERE and self.durable and self._postpone(job, now):
            return
        if not (more and job.state is STREAMING):  # else the scheduler knows that parts come
            arrived.append((job.id, more))
        if part.error is not None:
            self.scheduler.failed(job.id)
        refusal = None
        if news is not None:
            job.token = job.token or news.token or None
            if news.migration in self.metrics.migrations:
                self.metrics.migrations[news.migration].inc()
            if news.last:
                self.scheduler.repeated(job.id)
            if news.cause:
                refusal = cause_of(news, durable=self.durable)
            if refusal is not None and not job.ended and news.version:
                refusal = self._hand_over(job, news.version, refusal, now)
                if refusal is None:
                    return
            if news.ended and refusal is None and part.error is None:
                self._close_ended(job, news.ended, now, more=more)
        if job.ended:
            return  # its worker is dropping it
        if part.error is not None:
            self._end(job, part._replace(more=False) if refusal is None else refusal, now)
            if (reason := close_reason(refusal, durable=self.durable)) is not None and job.sequence_id is not None:
                self._perform(self.scheduler.close_sequence(job.sequence_id, reason, now), now)
            if more:  # the part was malformed, and the reader takes no further ones
                self._perform(self.scheduler.cancel(job.id, now, None), now)
        elif not more:
            self._end(job, part, now)
        else:
            self.metrics.part_times[job.part_at > 0].append(now - (job.part_at or job.submitted_at))
            job.part_at = now
            if job.on_part is not None:
                job.on_part(part)
            job.deliver(part)
            if job.buffered_bytes > self._stream_buffer_size:
                self._fell_behind(job, worker)

    def _give_up(self, job: Call, now: float, *, more: bool) -> None:
        """End a job whose result the server could not handle, unless it has its outcome."""
        if job.ended:
            return
        failure = Part(job.id, False, 500, "", [], b"", "The server failed to pass the result on; its log says why.")
        self._end(job, Cause.outcome_unknown if self.durable else failure, now)
        if more:
            self._perform(self.scheduler.cancel(job.id, now, None), now)

    def join(self, ownership: Ownership[Any], here: Version) -> None:
        """Be the dispatcher of one of several versions of a model, whose sequences may change hands."""
        self._ownership, self._here = ownership, here

    def _hand_over(self, job: Call, version: str, refusal: Cause, now: float) -> Cause | None:
        """Let the version run a job that its sequence belongs to, and those that wait behind it; return why not."""
        owner = self._ownership.belongs_to(version, job, self._here, refusal)
        if isinstance(owner, Cause):
            return owner
        sequence = self.scheduler.sequence(job.sequence_id or "")
        waiting = () if sequence is None else cast("Sequence[Call]", tuple(sequence.queue))
        for each in waiting:
            if not each.may_be_handed_over:  # this version has not got its sequence, and no other one may run it
                self.cancel(each, refusal)
        self._handed_over.append((owner, job, self._here))
        self._give(job.sequence_id or "", [each for each in waiting if not each.ended], owner, now, by=self._here)
        job.sends -= 1  # this worker has not run it
        return None

    def _give(
        self, sequence_id: str, waiting: Iterable[Job], to: Version, now: float, *, by: Version | None = None
    ) -> None:
        """Give up a sequence, and let another version run what waits once the results in hand are dealt with.

        ``by`` is this version, if it cannot run the sequence.
        """
        taken = cast("Iterable[Call]", self.scheduler.take_waiting(waiting, now))
        self._perform(self.scheduler.close_sequence(sequence_id, CloseReason.suspended, now), now)
        self._handed_over += [(to, each, by) for each in taken]

    def take_over(self, job: Call, *, by: Version | None) -> None:
        """Run a job that another version's dispatcher has forgotten, since its sequence is one of this version.

        ``by`` is that version, if it cannot run the sequence.
        """
        if job.ended:
            return  # its reader has left
        job.begin_again(by).owner = self
        now = self.now()
        limit = None if job.expires_at is None else job.expires_at - now
        refusal = self.refuses(limit, job) if self.rests or not self._workers else None
        self._perform(self.scheduler.submit(job, now) if refusal is None else (Finish(job, refusal),), now)
        if refusal is None and not self._workers:
            self.on_waiting()

    def hand_over(self, to: Version) -> None:
        """Let another version run the jobs that wait here and name no version.

        Those of sequences go if no worker has these; if a sequence is one of this version, its job comes back.
        """
        sequence = self.scheduler.sequence
        may_go = [job for job in self._jobs.values() if may_leave(job, sequence(job.sequence_id or ""), to)]
        taken = self.scheduler.take_waiting(may_go, self.now())
        self._pass(self.scheduler.tick)
        for each in cast("Sequence[Call]", taken):
            to.dispatcher.take_over(each, by=None)

    def move(self, sequence_id: str, to: Version, when: Move) -> None:
        """Let another version have a sequence, now or with the jobs that wait behind those in flight."""
        if when is Move.now:
            self.close_sequence(sequence_id, keep_stored=True)
        elif when is Move.at_rest:
            self._moving[sequence_id] = to

    def keep_sequences(self) -> None:
        """Let sequences that were to move once they rest stay, until a step asks for another version again."""
        self._moving.clear()

    def _move(self, arrived: Sequence[tuple[str, bool]], now: float) -> None:
        """Let other versions have the sequences whose last running job has been answered."""
        for job in [self._jobs[job_id] for job_id, more in arrived if not more and job_id in self._jobs]:
            sequence, to = self.scheduler.sequence(job.sequence_id or ""), self._moving.get(job.sequence_id or "")
            if sequence is not None and to is not None and self._ownership.at_rest(sequence, job, to):
                self._give(sequence.id, sequence.queue, to, now)

    def _postpone(self, job: Call, now: float) -> bool:
        """Have a job sent again whose sequence another server holds; return False if that took too long."""
        if job.ended:
            return False
        if job.held_since is None:
            job.held_since = now
        if (pause := pause_of(now - job.held_since)) is None:
            return False
        self._perform(self.scheduler.postpone(job.id, now + pause, now), now)
        return True

    def evictions(self, may_evict: bool, count: int) -> None:
        """A worker has looked at what the store drops by itself."""
        self.metrics.evictions.note(may_evict, count)

    def store_size(self, size: int, sequences: int | None) -> None:
        """A worker has looked at how much the store has."""
        self.metrics.note_store_size(size, sequences)

    def wanted(self, worker: Worker, sequence_ids: Sequence[str]) -> None:
        """Another server asks for sequences that this one holds."""
        for sequence_id in sequence_ids:
            self._pass(partial(self.scheduler.let_go, sequence_id))

    def _close_ended(self, job: Call, ended: Sequence[str], now: float, *, more: bool) -> None:
        """End what the handler ends; the sequence of the job ends with its last part."""
        for sequence_id in ended:
            if more and job.sequence_id == sequence_id:
                job.ends_sequence = True  # once its last part has come, unless that says that the step is undone
            else:
                self._perform(self.scheduler.close_sequence(sequence_id, CloseReason.ended, now), now)

    def taken(self, worker: Worker, job_id: str, count: int) -> None:
        """Note that the model has taken further inputs of a job."""
        if (job := self.jobs_of(worker).get(job_id)) is not None and not job.ended and job.inputs:
            job.inputs.taken(count)

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
        self._pass(lambda now: self.scheduler.worker_up(worker.id, now, gives=self.hands_over(worker)))

    def worker_lost(self, worker: Worker) -> None:
        """Settle what the dead ``worker`` had; does nothing when it was released before."""
        if self._workers.get(worker.id) is not worker:
            return
        now = self.now()
        jobs = [*self.jobs_of(worker).values()]
        lost = LostRequests(worker.id, jobs)
        for job in jobs:
            if not job.ended:
                job.lost_with(worker.ended)
        unread = worker.left_unread and lost.latest_is_small
        effects = self.scheduler.worker_lost(worker.id, worker.loss_cause, now, unread=unread)
        lost.log()
        del self._workers[worker.id]
        self._perform(effects, now)
        self._release(worker.id)

    def lose_states(self) -> None:
        """Let all versions of the model refuse what continues a sequence that is open here: its state will be lost."""
        self.scheduler.lose_states(self.now())

    def set_workers(self, count: int) -> None:
        """Tell how many workers there are meant to be; with none, requests are refused."""
        self._pass(lambda now: self.scheduler.set_workers(count, now))

    def rest(self, worker: Worker, *, rests: bool) -> None:
        """Give no further jobs to the only worker, which keeps its sequences, or once it is idle give it jobs again."""
        self.rests = rests
        if self._workers.get(worker.id) is worker:
            self._pass(lambda now: self.scheduler.rest(worker.id, now, rests=rests))

    async def retire(self, worker: Worker, limit: float) -> None:
        """Give no more jobs to ``worker``, and wait at most ``limit`` seconds until it has none left.

        Before, its sequences in memory move to other workers, as far as they can.
        """
        began = self._clock.now()
        await self.vacate(worker, limit)
        if self._workers.get(worker.id) is not worker:
            return
        limit = max(0.0, limit - (self._clock.now() - began))
        released = self._released.setdefault(worker.id, asyncio.get_running_loop().create_future())
        self.take_out(worker)
        await self._clock.wait([released], limit)

    def hands_over(self, worker: Worker) -> bool:
        """Whether the sequences of a worker can move to others: they are in its memory, and it can encode them."""
        is_up = self._workers.get(worker.id) is worker
        return is_up and self._keeps_sequences and not self.durable and worker.hands_over

    async def vacate(self, worker: Worker, limit: float) -> str:
        """Move the sequences of a worker to others, see `Handover.vacate`; return why some stay, "" if none does."""
        return (await self._handover.vacate(worker, limit)).why if self.hands_over(worker) else ""

    async def move_to(self, other: Dispatcher, from_version: str, limit: float) -> None:
        """Let another version have the sequences in memory, which its workers migrate, within ``limit`` seconds.

        Those that cannot move go on here.
        """
        to = OtherVersion(other._handover, from_version, partial(other.take_over, by=None))
        workers = [worker for worker in self._workers.values() if self.hands_over(worker)]
        await asyncio.gather(*(self._handover.vacate(worker, limit, to) for worker in workers))
        for worker in workers:
            self.reopen(worker)

    def inherit(self, left: LeftSequences, version: str) -> None:
        """Let sequences in memory go on that other servers have left, of this version or one that is not served."""
        own = (self.scheduler, self._handover, self._pass, self.now, self.metrics)
        self.inheritance = Inheritance(left, version, self._runs, partial(self.take_over, by=None), *own)

    def _runs(self, version: str) -> Callable[[Any], None] | None:
        """Return what gets the steps of another version, None if that is not served."""
        other = self._ownership.named(version)
        return None if other is None else partial(other.dispatcher.take_over, by=None)

    def leave_to(self, successor: Dispatcher) -> None:
        """Let another dispatcher of this version have all steps that wait, and, once they are left, the sequences."""
        if self.inheritance is None or successor.inheritance is None:
            return
        steps = [job for job in self._jobs.values() if not job.unbatched]
        waiting = cast("Iterable[Call]", self.scheduler.take_waiting(steps, self.now()))
        self._pass(self.scheduler.tick)
        expected = [each.id for each in self.scheduler.sequences() if each.has_state or each.is_left]
        self.inheritance.leave(partial(successor.take_over, by=None), expected)
        for job in waiting:
            successor.take_over(job, by=None)

    def reopen(self, worker: Worker) -> None:
        """Give new sequences to a worker again that stays after all."""
        if self._workers.get(worker.id) is worker and self._handover.final is None:
            self._pass(lambda now: self.scheduler.reopen(worker.id, now))

    def refuse_new_jobs(self, cause: Cause, *, runs_out: bool = False) -> None:
        """Refuse what is new with ``cause``, see `Scheduler.drain`. With ``runs_out`` open sequences are not new."""
        self._pass(lambda now: self.scheduler.drain(cause, now, runs_out=runs_out))

    async def drain(self, limit: float, cause: Cause = Cause.draining, *, runs_out: bool = False) -> bool:
        """Do as `refuse_new_jobs` and wait for the rest, at most ``limit`` seconds.

        Return whether nothing is left; see `Scheduler.is_idle`.
        """
        self.refuse_new_jobs(cause, runs_out=runs_out)
        return await self._awaited.until(lambda: self.scheduler.is_idle, limit)

    async def close(self, cause: Cause) -> None:
        """End every job with ``cause`` at once, and all sequences, some in a turn of the loop; refuse new jobs."""
        while True:
            self._pass(lambda now: self.scheduler.close(cause, now, _ENDED_AT_ONCE))
            if not self.scheduler.open_sequences:
                break
            await asyncio.sleep(0)
        self._alarm.cancel()

    def _pass(self, event: Callable[[float], Sequence[Effect]]) -> None:
        """Pass an event to the scheduler, and perform its effects."""
        now = self.now()
        self._perform(event(now), now)

    def _perform(self, effects: Sequence[Effect], now: float) -> None:
        """Perform effects in order; one that raises, a defect, is logged and keeps none behind it from being done."""
        for effect in effects:
            try:
                if isinstance(effect, Send):
                    self._send(effect)
                    self._begin(effect, now)
                elif isinstance(effect, SendAhead):
                    self._send(effect)
                elif isinstance(effect, Begin):
                    self._begin(effect, now)
                elif isinstance(effect, Finish):
                    self._end(effect.job, effect.cause, now)
                elif isinstance(effect, Cancel):
                    self._workers[effect.worker_id].cancel(effect.job_ids)
                elif isinstance(effect, CloseSequence):
                    self._tell_closed(effect, now)
                elif isinstance(effect, Fetch):
                    if self.inheritance is not None:
                        self.inheritance.fetch(effect.sequence, self._workers[effect.worker_id])
                else:
                    self._release(effect.worker_id)
            except Exception:
                logger.exception("The scheduler's effect %s could not be performed.", type(effect).__name__)
        if (deadlines := self._deadlines.heap) and deadlines[0][0] < self._alarm.rings_at:
            self._alarm.set(deadlines[0][0], now)
        if self._awaited.waiters:
            self._awaited.look()

    def _send(self, effect: Send | SendAhead) -> None:
        """Send a batch. If that fails, its jobs get an error as their answer."""
        worker = self._workers[effect.worker_id]
        jobs: Sequence[Call] = effect.jobs
        try:
            if isinstance(effect, Send):
                worker.send(jobs, self._moment_of)
            else:
                worker.send_ahead(jobs, self._moment_of, joins=effect.joins)
        except Exception:
            logger.exception("A batch of %d requests could not be sent to worker %s.", len(jobs), effect.worker_id)
            problem = "The server failed to send the request to a worker; its log says why."
            for job in jobs:
                job.refusal = Part(job.id, False, 500, "", [], b"", problem)

    def _begin(self, effect: Send | Begin, now: float) -> None:
        """A worker begins a batch."""
        worker = self._workers.get(effect.worker_id)
        jobs: Sequence[Call] = effect.jobs
        if worker is None:  # it was lost after it had begun what it was sent ahead
            return
        begun_at = self._clock.now()
        worker.begin(begun_at)
        self.metrics.begun.append(len(jobs))
        for job in jobs:
            if not job.open_ended:  # it lasts as long as its client likes
                job.heard_at = begun_at
            elif job.inputs is not None and not job.ended:
                for given in job.inputs.take_held():
                    worker.send_input(job.id, given)
            if job.refusal is not None:  # not at once: the scheduler's effects are still being performed
                asyncio.get_running_loop().call_soon(self._refuse, job, job.refusal, worker)

    def _refuse(self, job: Call, refusal: Part, worker: Worker) -> None:
        """Answer a job in place of its worker, unless that was lost meanwhile."""
        if job.id in self.jobs_of(worker):
            self.results(worker, (refusal,), 0.0, self._clock.now())

    def _pass_on(self, job: Call, given: Input) -> bool:
        """Send a further input of a job to its worker, if it has one yet."""
        worker = self._workers.get(job.worker_id)
        if worker is None or job.id not in self.jobs_of(worker):
            return False
        worker.send_input(job.id, given)
        return True

    def _end(self, job: Call, outcome: Part | Cause, now: float) -> None:
        """End a job: deliver its outcome, and count and trace it. What was delivered before stays readable.

        The scheduler has ended the job as well, or is told in the same turn of the event loop. Raises RuntimeError: the
        job has an outcome already, which is a defect of the caller.
        """
        if job.ended:
            raise RuntimeError(f"job {job.id} has an outcome already; this would be another: {outcome!r}")
        if job.timing is not None:
            outcome = self._note_timing(job, job.timing, outcome, now)
        job.at, job.ended_at = time.time(), now
        if isinstance(outcome, Part):
            job.told, job.succeeded = outcome.status, outcome.error is None
            job.state_size = 0 if outcome.news is None else outcome.news.state_size
        else:
            job.told, job.succeeded, job.state_size = outcome, False, 0
        self.metrics.ended(job)
        try:
            if job.on_end is not None:
                job.on_end(job, outcome if isinstance(outcome, Part) else None)
        finally:
            job.on_end = job.on_part = None  # they may hold the job
            job.body = None  # the job is kept for a moment by the metrics, or for long by a worker that is busy with it
            if job.inputs is not None:
                job.inputs.end()
                job.heard_at = self._clock.now()  # from now on the watchdog times the worker until its last part
            if isinstance(outcome, Part):
                job.deliver(outcome)
            else:
                job.fail(outcome)
            if job.buffered_bytes:  # else its reader has slowed no worker down
                self._caught_up(job)

    @cached_property
    def _deadline_metrics(self) -> DeadlineMetrics:
        """The metrics of requests with deadlines; one has come."""
        metrics, scheduler, now = self.metrics.deadlines, self.scheduler, self.now

        def read(value: Callable[[Reservations, float], float]) -> Callable[[], float]:
            return lambda: 0 if (kept := scheduler.punctuality) is None else value(kept.reservations, now())

        metrics.sessions.read_from(read(Reservations.count))
        metrics.share.read_from(read(Reservations.load))
        return metrics

    def _note_timing(self, job: Call, timing: Timing, outcome: Part | Cause, now: float) -> Part | Cause:
        """Count whether a job with a deadline is in time; return its outcome, with headers that report what was not."""
        metrics = self._deadline_metrics
        if outcome is Cause.deadline_missed:
            metrics.dropped()
        if isinstance(outcome, Cause) or outcome.error is not None:
            return outcome
        headers = list(outcome.headers)
        metrics.answered(late_by := now - timing.due)
        if late_by > 0:
            headers.append([DEADLINE_MISSED, f"{late_by * 1e3:.1f}"])
        if timing.is_degraded:
            headers.append([DEGRADED, "true"])
        return outcome._replace(headers=headers)

    def _tell_closed(self, effect: CloseSequence, now: float) -> None:
        self.metrics.sequences_closed[effect.reason].inc()
        if self._over is not None and (count := self._over.newly_forgotten()):
            self._note_forgotten(count)
        self._moving.pop(effect.sequence_id, None)
        if self._handover.moves or self._handover.ahead:
            self._handover.closed(effect.sequence_id)
        if self.inheritance is not None:
            self.inheritance.closed(effect.sequence_id, is_lost=effect.reason is CloseReason.worker_lost)
        if effect.worker_id is not None and (worker := self._workers.get(effect.worker_id)) is not None:
            worker.end_sequence(effect.sequence_id, effect.reason.value, boot_time() - (now - effect.at))

    def _note_forgotten(self, count: int) -> None:
        """Count ids and tokens of sequences that are over, and are forgotten before their time."""
        if not self.metrics.sequences_forgotten.value:
            logger.warning(
                "More than %d sequences of a model were over within rememberEndedSec: the oldest are forgotten, so that"
                " a very late copy of a first step would begin a sequence; ts_sequences_forgotten_total counts them",
                MOST_REMEMBERED,
            )
        self.metrics.sequences_forgotten.inc(count)

    def _release(self, worker_id: str) -> None:
        self._workers.pop(worker_id, None)
        if (released := self._released.pop(worker_id, None)) is not None and not released.done():
            released.set_result(None)

    # What the readers of responses tell: a worker is slowed down to their pace.

    def gave_up(self, call: Call) -> None:
        """Cancel a job whose reader is gone."""
        self.cancel(call, Cause.cancelled)

    def was_read(self, call: Call) -> None:
        """A reader that was behind has taken a part."""
        if call.buffered_bytes < self._stream_buffer_size and call.id in self._jobs:
            self._caught_up(call)

    def _fell_behind(self, job: Call, worker: Worker) -> None:
        """Slow the worker down to the pace of its readers, or give one reader up if others need the worker."""
        limit, others = self._stream_buffer_size, self.jobs_of(worker).values()
        if all(other.ended or other.buffered_bytes > limit for other in others):
            worker.pause()
        elif job.buffered_bytes > limit * _GIVE_UP_FACTOR:
            logger.warning("Request %s is given up: its client reads too slowly", job.id)
            self.cancel(job, Cause.cancelled)

    def _caught_up(self, job: Job) -> None:
        """Let the worker of a job send again, because the job's reader has caught up or needs it no more."""
        if (worker := self._workers.get(job.worker_id)) is not None and worker.paused:
            worker.resume()
