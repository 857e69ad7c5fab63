"""Which worker gets which jobs: what the scheduler sends, and takes back, once an event may let jobs run.

A worker that is idle is sent a batch. With `Policy.ahead`, a worker that runs a batch is sent the next one while no
worker is idle: once that is full or, without sequences, has waited its delay, so that no batch is smaller than it would
have been. Later jobs join a batch that was sent ahead and is not full. A worker begins what it was sent ahead as soon
as it has answered what it runs. Until then the jobs can be taken back: for a worker that becomes idle, for one that
would run younger jobs before them, because a client leaves, or because their worker is lost. They then wait again, in
their old places.

Two choices make a scheduler: where the next jobs come from, and when a worker takes more. The sources are `Fifo` (one
queue) and `Sequences` (a queue per sequence). A source holds the waiting jobs in lanes, and adds a lane to
`SharedState.lanes_to_serve` when something in the lane may be sent that could not be sent before. The admissions are
`WhenIdle` and `WhileBelow`, and `InTime` where steps have deadlines.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, TypeAlias

from torchserve_py.core.scheduling.batch_admission import WhenIdle, WhileBelow
from torchserve_py.core.scheduling.closed import ClosedSequences
from torchserve_py.core.scheduling.demand import Demand
from torchserve_py.core.scheduling.effects import Begin, Released, Send, SendAhead
from torchserve_py.core.scheduling.fifo import Fifo
from torchserve_py.core.scheduling.in_time import InTime
from torchserve_py.core.scheduling.job import AHEAD, JOB_TRANSITIONS, STREAMING, Job
from torchserve_py.core.scheduling.lane import AheadBatch, Lane, SharedState, WorkerLoad
from torchserve_py.core.scheduling.order import NewOrder
from torchserve_py.core.scheduling.overload import Overload
from torchserve_py.core.scheduling.policy import Policy
from torchserve_py.core.scheduling.sequence_source import Sequences

#: Seconds that a model's steps take in the mean, at least: sending ahead costs more than shorter steps would gain.
WORTH_SENDING_AHEAD = 0.0003

#: Seconds for which a suspect has a worker that it shares with others for itself, at most: what kills a worker mostly
#: does so soon, and requests that take long would keep all others waiting.
ALONE_LIMIT = 1.0

#: How many steps that mean remembers: a new step counts for one of them.
_STEPS_REMEMBERED = 16

#: Takes back what a worker was sent ahead and has not begun: how many of the latest `SendAhead` it never will begin.
TakeBack = Callable[[str], int]

Source: TypeAlias = Fifo | Sequences


Admission: TypeAlias = WhenIdle | WhileBelow | InTime


def compose(
    policy: Policy, shared: SharedState, over: ClosedSequences | None, order: NewOrder | None
) -> tuple[Source, Admission]:
    """Return the source and the admission that a policy asks for. A job ticket is for one job: a batch of one.

    ``over`` is what the versions of a model share, ``order`` makes the order of each lane.
    """
    size = policy.batch_size
    if policy.sequences is not None:
        if policy.continuous:
            joining = Sequences(shared, policy.sequences, size, 0.0, joins=True, over=over, order=order)
            return joining, WhileBelow(2 * size)
        source = Sequences(shared, policy.sequences, size, policy.max_batch_delay, joins=False, over=over, order=order)
        return source, WhenIdle(size)
    if policy.continuous:
        return Fifo(shared, policy.queue_size, tickets=policy.job_ticket, order=order), WhileBelow(size)
    size = 1 if policy.job_ticket else size
    fifo = Fifo(shared, policy.queue_size, policy.max_batch_delay, tickets=policy.job_ticket, order=order)
    return fifo, WhenIdle(size)


@dataclass(slots=True, eq=False)
class Assignment:
    """The workers that are up, and what each of them has."""

    shared: SharedState  # what the scheduler and its sources share
    source: Source  # where jobs wait, unless they are unbatched
    unbatched: Fifo  # where unbatched jobs wait, and suspects without a sequence; they go before others
    admission: Admission  # how many jobs a worker takes
    batch_size: int  # jobs per batch
    not_begun: TakeBack | None  # takes jobs back from a worker; None if no batch is to be sent ahead
    overload: Overload
    workers: dict[str, WorkerLoad]
    _step_seconds: float = WORTH_SENDING_AHEAD
    _sent_ahead: int = 0

    def step_took(self, seconds: float) -> None:
        """Note how long a step has taken; whether batches are sent ahead depends on the steps' mean."""
        self._step_seconds += (seconds - self._step_seconds) / _STEPS_REMEMBERED

    def add(self, worker: WorkerLoad, now: float) -> None:
        """Give jobs to a new worker."""
        self.workers[worker.id] = worker
        self._idle(worker, now)

    def remove(self, worker: WorkerLoad) -> None:
        """Forget a worker that has nothing in flight, or is lost."""
        del self.workers[worker.id]
        worker.alone = None
        self.close_places(worker)

    def retire(self, worker: WorkerLoad, now: float) -> None:
        """Give nothing more to the worker; it is released once nothing is in flight there."""
        self.take_back(worker, now)
        worker.retiring = True
        worker.alone = None  # nothing joins a job here any more
        self.close_places(worker)

    def close_places(self, worker: WorkerLoad) -> None:
        """Give nothing to the worker until it has `answered`, unless it retires or rests."""
        worker.lane.free.pop(worker.id, None)
        worker.lane.busy.pop(worker.id, None)

    def serve(self, lane: Lane[Any], now: float) -> None:
        """Send what the lane's workers may take now."""
        while lane.free:
            if self.shared.alone and self._send_alone(lane, now):
                continue
            if not lane.items:
                return
            if self.admission.waits(lane, now):
                self.shared.deadlines.start_timer(lane, now)
                return
            worker = self.admission.choose(lane.free)
            jobs = lane.take(self.admission.takes(worker, lane, now))
            if not jobs:
                return
            self._send(worker, jobs, now)
        while lane.busy and self._step_seconds >= WORTH_SENDING_AHEAD and self._send_next_ahead(lane, now):
            pass

    def _send_alone(self, lane: Lane[Any], now: float) -> bool:
        """Send one of the jobs that share no batch to a worker of the lane; return whether there was one to send.

        Nothing is sent ahead behind a suspect. Where jobs join others, none joins it before its answer begins, or
        `ALONE_LIMIT` is over: if it killed its last worker, it most likely kills this one before.
        """
        for job in self.shared.alone.values():
            source = self.source_of(job)
            if (item := source.item_in(lane, job)) is None:
                continue
            items: Lane[Any] = source.lane_of(job)
            if not (jobs := items.take(1, item)):
                continue
            del self.shared.alone[job.id]
            worker, is_suspect = self.admission.choose(lane.free), job.is_suspect
            self._send(worker, jobs, now)
            if is_suspect:
                lane.busy.pop(worker.id, None)  # nothing is sent ahead behind it
            if (is_suspect or not job.unbatched) and isinstance(self.admission, WhileBelow):
                worker.alone, worker.alone_until, worker.is_shut = job, now + ALONE_LIMIT, True
                self.shared.deadlines.start_timer(worker, now)
                self.close_places(worker)
            return True
        return False

    def source_of(self, job: Job) -> Source:
        """Return where a waiting job waits: suspects without a sequence wait beside the unbatched jobs."""
        is_aside = job.unbatched or (job.sends and isinstance(self.source, Fifo))
        return self.unbatched if is_aside else self.source

    def reopen(self, worker: WorkerLoad, now: float) -> None:
        """Give the worker jobs again, if it has none for itself any more and does not rest."""
        job = worker.alone
        if job is None or job.state is STREAMING or job.id not in worker.in_flight or now >= worker.alone_until:
            worker.alone = None
        worker.is_shut = worker.rests or worker.alone is not None
        if not worker.is_shut and not worker.retiring and self.admission.room(worker):
            self._idle(worker, now)

    def _send(self, worker: WorkerLoad, jobs: list[Job], now: float) -> None:
        for job in jobs:
            job.state = JOB_TRANSITIONS[job.state, "send"]
            job.worker_id = worker.id
            job.sent_at = now
            job.sends += 1
            worker.in_flight[job.id] = job
        worker.batch = len(jobs)
        if not self.admission.room(worker):
            del worker.lane.free[worker.id]
            if self.not_begun is not None:
                worker.lane.busy[worker.id] = worker
        self.shared.effects.append(Send(worker.id, jobs))

    def _send_next_ahead(self, lane: Lane[Any], now: float) -> bool:
        """Send jobs ahead to one worker; return whether there were any to send."""
        if not lane.items or self.shared.alone:  # a job that shares no batch needs a worker that becomes idle
            return False
        worker = self._not_full_ahead(lane)
        if worker is None:
            if not lane.may_go_ahead(self.batch_size, now):
                if not lane.timer and lane.waits(now):
                    self.shared.deadlines.start_timer(lane, now)
                return False
            worker = next(iter(lane.busy.values()))
        room = self.batch_size - sum(len(batch.jobs) for batch in worker.ahead)
        jobs = lane.take(room)
        if not jobs:
            return False
        if len(jobs) == room:
            del lane.busy[worker.id]
        for job in jobs:
            job.state = JOB_TRANSITIONS[job.state, "send_ahead"]
            job.worker_id = worker.id
        self._sent_ahead += 1
        lane.ahead[worker.id] = worker
        self.shared.effects.append(SendAhead(worker.id, jobs, joins=bool(worker.ahead)))
        worker.ahead.append(AheadBatch(self._sent_ahead, jobs))
        lane.jobs_ahead += len(jobs)
        return True

    @staticmethod
    def _not_full_ahead(lane: Lane[Any]) -> WorkerLoad | None:
        """Return the worker whose batch ahead is not full, the latest that was begun; None if there is none."""
        latest = next(reversed(lane.ahead.values())) if lane.ahead else None
        return latest if latest is not None and latest.id in lane.busy else None

    def answered(self, worker: WorkerLoad, now: float) -> None:
        """A job has left the worker: it begins what it was sent ahead, or may be given more, or is released."""
        if worker.ahead:
            if not worker.in_flight:
                self._begin_next(worker, now)
        elif not worker.retiring:
            if worker.is_shut:
                self.reopen(worker, now)
            elif self.admission.room(worker):
                self._idle(worker, now)
        elif not worker.in_flight:
            self.remove(worker)
            self.shared.effects.append(Released(worker.id))

    def _idle(self, worker: WorkerLoad, now: float) -> None:
        worker.lane.busy.pop(worker.id, None)
        worker.lane.free[worker.id] = worker
        self.shared.lanes_to_serve.append(worker.lane)
        lane = worker.lane
        while self._take_back_oldest(lane, now) and (not lane.items or self.admission.waits(lane, now)):
            pass  # its worker has begun some of it, so that what is left makes no full batch

    def _begin_next(self, worker: WorkerLoad, now: float) -> None:
        first = worker.ahead[0].number
        del worker.lane.ahead[worker.id]
        batches, worker.ahead = worker.ahead, []
        self._begin(worker, batches, now)
        worker.lane.busy.pop(worker.id, None)
        worker.lane.busy[worker.id] = worker
        self.shared.lanes_to_serve.append(worker.lane)
        self._take_back_oldest(worker.lane, now, before=first)

    def _begin(self, worker: WorkerLoad, batches: list[AheadBatch], now: float) -> None:
        jobs = [job for batch in batches for job in batch.jobs]
        if not jobs:
            return
        for job in jobs:
            job.state = JOB_TRANSITIONS[job.state, "begin"]
            job.sent_at = now
            job.sends += 1
            worker.in_flight[job.id] = job
        worker.batch = len(jobs)
        worker.lane.jobs_ahead -= worker.batch
        self.shared.effects.append(Begin(worker.id, jobs))

    def _take_back_oldest(self, lane: Lane[Any], now: float, before: float = math.inf) -> bool:
        """Take back the batch that was sent ahead first, if its number is less; return whether there was one."""
        if not lane.ahead:
            return False
        oldest = next(iter(lane.ahead.values()))
        if oldest.ahead[0].number >= before:
            return False
        self.take_back(oldest, now)
        return True

    def take_back(self, worker: WorkerLoad, now: float) -> None:
        """Have what the worker was sent ahead wait again, except for what it has begun.

        Nothing more is sent ahead to the worker until it begins its next batch: what was taken back still lies in its
        socket, which must not fill up with such batches.
        """
        if not worker.ahead or self.not_begun is None:
            return
        batches, worker.ahead = worker.ahead, []
        del worker.lane.ahead[worker.id]
        begun = len(batches) - self.not_begun(worker.id)
        worker.lane.busy.pop(worker.id, None)
        self._begin(worker, batches[:begun], now)
        jobs = list(chain.from_iterable(batch.jobs for batch in batches[begun:]))
        if jobs:
            worker.lane.jobs_ahead -= len(jobs)
            for job in jobs:
                job.state = JOB_TRANSITIONS[job.state, "take_back"]
            self.source.take_back(jobs, now)
            self.shared.deadlines.bring_forward(worker.lane, now)
            self.shared.lanes_to_serve.append(worker.lane)

    def begun_early(self, worker: WorkerLoad) -> set[str]:
        """Return the ids of jobs that the worker began before it answered its earlier batch: these are not overdue."""
        jobs = () if self.not_begun is None else worker.in_flight.values()
        first = min((job.sent_at for job in jobs), default=0.0)
        return {job.id for job in jobs if job.sent_at > first}

    def take_all_back(self, now: float) -> None:
        """Have all that workers were sent ahead wait again, except for what they have begun."""
        for worker in self.workers.values():
            self.take_back(worker, now)

    def take_back_job(self, job: Job, now: float) -> None:
        """Let the job either wait or run, if it was sent ahead."""
        if job.state is AHEAD:
            self.take_back(self.workers[job.worker_id], now)

    def demand(self, now: float) -> Demand:
        """Return what the jobs ask of the workers now; those that retire do not count."""
        staying = [worker for worker in self.workers.values() if not worker.retiring]
        staying.sort(key=lambda worker: len(worker.in_flight))
        since = [moment for lane in self.source.lanes if not lane.free for moment in islice(lane.items.values(), 1)]
        since += [worker.ahead[0].jobs[0].submitted_at for worker in staying if worker.ahead]
        bound = {worker.id for worker in staying if self.source.is_bound(worker)}
        shares = [
            min(1.0, len(worker.in_flight) / self.batch_size) if self.admission.room(worker) > 0 else 1.0
            for worker in staying
        ]
        return Demand(
            queued=len(self.shared.jobs) - sum(len(worker.in_flight) for worker in self.workers.values()),
            oldest_wait=now - min(since, default=now),
            busy=sum(shares),
            accepted=self.shared.accepted,
            refused=self.overload.refused,
            per_worker=self.batch_size,
            movable=tuple(worker.id for worker in staying if worker.id not in bound),
            bound=len(bound),
            givers=tuple(
                worker.id
                for worker in sorted(staying, key=lambda worker: worker.lane.members)
                if worker.gives and worker.id in bound
            ),
        )
