"""The source of stateful models: a queue per sequence, each sequence bound to the worker that holds its state.

Each worker has as many slots as its share of the capacity. A new sequence is bound to the worker with the most free
slots, or is pending until one is free. A sequence leaves its slot through `_close` and nowhere else.
"""

import math
from collections.abc import Iterable
from itertools import islice
from typing import cast

from torchserve_py.scheduling.closed import ENDS, ClosedIds, SuspendedIds
from torchserve_py.scheduling.effects import Cause, EndReason, EndSequence
from torchserve_py.scheduling.emptiest import EmptiestLane
from torchserve_py.scheduling.job import STREAMING, WAITING, Job
from torchserve_py.scheduling.lane import Ranking, SharedState, WorkerLoad
from torchserve_py.scheduling.policy import SequencePolicy
from torchserve_py.scheduling.sequence import (
    IDLE,
    PENDING,
    READY,
    RUNNING,
    SEQUENCE_TRANSITIONS,
    Sequence,
    SequenceLane,
)


class Sequences:
    """Open sequences by id; at most `batch_size` of them run on a worker at once.

    A sequence has one job in flight. With `joins`, a second may join it once the first streams: that is how a request
    cancels a stream of its own sequence. The second job finds room even if every place of a batch is taken.
    """

    def __init__(
        self, shared: SharedState, policy: SequencePolicy, batch_size: int, delay: float, *, joins: bool
    ) -> None:
        self.open: dict[str | None, Sequence] = {}  # keyed as jobs are, whose sequence_id is optional
        self._shared = shared
        self._policy = policy
        self._batch_size = batch_size
        self._delay = delay
        self._joins = joins
        self._lanes: dict[str, SequenceLane] = {}
        self._emptiest = EmptiestLane()
        # Sequences, not jobs: one that joins its own stream counts once; a second batch may be sent ahead of the first.
        self._most_running = batch_size if joins else 2 * batch_size
        self._pending = SequenceLane(None, self._most_running, delay, policy.max_idle)
        self._ranking = Ranking[Sequence]()  # of those pending, by the jobs that open them
        self._closed = ClosedIds()
        self._ended = ClosedIds(ENDS)
        self._suspended = SuspendedIds()
        self._capacity = self._slots = policy.max_sequences
        self._without_worker = EndReason.suspended if policy.durable else EndReason.worker_lost

    # Jobs

    def admit(self, job: Job, now: float) -> Cause | None:
        """Queue the job in its sequence, opening that if necessary; or say why the job is refused."""
        sequence = self.open.get(job.sequence_id)
        if sequence is None:
            if (cause := self._closed_cause(job, now)) is not None:
                return cause
            if len(self.open) >= self._capacity:
                return Cause.sequence_capacity
            self._open(job, now)
        elif sequence.ends_at <= now and not (sequence.successors or self._may_begin_anew(job)):
            return Cause.sequence_expired
        elif len(sequence.waiting) + len(sequence.successors) >= self._policy.queue_size:
            return Cause.sequence_queue_full
        elif sequence.ends_at <= now:
            sequence.successors += (job,)
        else:
            sequence.waiting += (job,)
            if sequence.state is IDLE or (sequence.state is RUNNING and self._may_join(sequence)):
                self._call(sequence, now)
        return None

    def refused(self, job: Job, now: float) -> None:
        """There is no worker for the job: its stored sequence is not idle as long as its client asks for it."""
        self._suspended.asked_for(job.sequence_id, now, self._policy.max_idle)

    def withdraw(self, job: Job, now: float) -> None:
        """Take a waiting job that has ended out of the queue of its sequence."""
        sequence = self.open[job.sequence_id]
        if job in sequence.waiting:
            sequence.waiting = _without(job, sequence.waiting)
        else:
            sequence.successors = _without(job, sequence.successors)
        self._settle(sequence, now)

    def take_back(self, jobs: list[Job], now: float) -> None:
        """Jobs that were sent ahead wait again, each in front of its sequence, and these in front of their lane."""
        for job in reversed(jobs):
            sequence = self.open[job.sequence_id]
            sequence.in_flight = _without(job, sequence.in_flight)
            sequence.lane.running -= 1
            sequence.waiting = (job, *sequence.waiting)
            sequence.has_state = not job.opens
            lane = sequence.lane
            self._settle(sequence, now)
            if sequence in lane.items:
                lane.items[sequence] = job.ready_since
                lane.items.move_to_end(sequence, last=False)

    def streams(self, job: Job, now: float) -> None:
        """The job has begun to stream: the next job of its sequence may join."""
        self._settle(self.open[job.sequence_id], now)

    def cancelled(self, job: Job) -> None:
        """A job in flight is dropped: its worker may not have heard of a stored sequence, so the next job opens it."""
        if self._policy.durable and job.opens:
            self.open[job.sequence_id].has_state = False

    def returned(self, job: Job, now: float) -> None:
        """A job in flight is over: the next one may be sent, or the sequence rests, or ends if the job was its last."""
        sequence = self.open[job.sequence_id]
        sequence.in_flight = _without(job, sequence.in_flight)
        if not sequence.in_flight:
            sequence.lane.running -= 1
        if job.ends_sequence and sequence.ending is None:
            sequence.ending = EndReason.ended
        self._settle(sequence, now)

    # Workers

    def worker_up(self, worker_id: str, now: float) -> WorkerLoad:
        """Return a new worker with a lane and slots of its own; pending sequences are bound to it."""
        max_idle = self._policy.max_idle
        lane = self._lanes[worker_id] = SequenceLane(worker_id, self._most_running, self._delay, max_idle)
        self._emptiest.add(lane)
        self._bind_pending(now)
        return WorkerLoad(worker_id, lane)

    def retire(self, worker: WorkerLoad, now: float) -> None:
        """End the worker's sequences, or suspend them if stored, as soon as none of their jobs is in flight."""
        for sequence in self._unlink(worker):
            self._end(sequence, self._without_worker, now)

    def worker_lost(self, worker: WorkerLoad, now: float) -> None:
        """Close the worker's sequences, whose state is lost, or continue stored ones with the jobs to send again."""
        for sequence in self._unlink(worker):
            again = [job for job in sequence.in_flight if job.state is WAITING]
            sequence.waiting = (*again, *sequence.waiting)
            self._drop_in_flight(sequence)
            self._close(sequence, sequence.ending or self._without_worker, now)

    def set_workers(self, count: int, now: float) -> None:
        """Set the capacity, which is never less than what the workers' batches hold, and share it evenly as slots."""
        self._capacity = max(self._policy.max_sequences, count * self._batch_size)
        self._slots = math.ceil(self._capacity / max(count, 1))
        self._bind_pending(now)

    def succeed(self, earlier: "Sequences", now: float) -> None:
        """Refuse jobs that continue a sequence of an earlier version of the model, unless both store its state."""
        self._closed.remember_all_of(earlier._closed, now)
        if not (self._policy.durable and earlier._policy.durable):
            for sequence in earlier.open.values():
                if sequence.has_state:
                    self._closed.remember(sequence.id, EndReason.worker_lost, now)

    # Ends

    def end_sequence(self, sequence_id: str, reason: EndReason, now: float) -> None:
        """End the sequence, if it is open, as soon as nothing of it is in flight."""
        if (sequence := self.open.get(sequence_id)) is not None:
            self._end(sequence, reason, now)

    def close(self, reason: EndReason, now: float) -> None:
        """End every sequence that had a job; the jobs are over. Pending ones first, so that none takes a slot."""
        busy = [sequence for sequence in self.open.values() if sequence.state is not IDLE]
        for sequence in sorted(busy, key=lambda sequence: sequence.state is not PENDING):
            self._drop_in_flight(sequence)
            sequence.waiting = sequence.successors = ()
            self._close(sequence, reason, now)

    def end_idle(self, reason: EndReason, now: float, most: int | None) -> None:
        """End sequences that have no job: all of them (None), or so many at most."""
        for sequence in list(islice(self.open.values(), most)):
            self._close(sequence, reason, now)

    def knows(self, sequence_id: str, now: float) -> bool:
        """Whether the sequence is open, or remembered as one whose state is gone. Always true if states are stored."""
        if self._policy.durable:
            return True  # only a worker can look into the store
        return sequence_id in self.open or self._closed.refusal(sequence_id, now) is not None

    @property
    def lanes(self) -> Iterable[SequenceLane]:
        """The lanes of the workers, and that of the sequences that have no worker."""
        return (self._pending, *self._lanes.values())

    def is_bound(self, worker: WorkerLoad) -> bool:
        """Whether the state of an open sequence would be lost with the worker."""
        return not self._policy.durable and bool(cast(SequenceLane, worker.lane).bound)

    @property
    def remaining_capacity(self) -> int:
        """How many more sequences may open."""
        return max(0, self._capacity - len(self.open))

    # Lifecycle of a sequence

    def _closed_cause(self, job: Job, now: float) -> Cause | None:
        """Why a job must not open a sequence: it continues one whose state is gone, or that is over for good."""
        if job.once and (cause := self._ended.refusal(job.sequence_id, now)) is not None:
            return cause
        return None if self._may_begin_anew(job) else self._closed.refusal(job.sequence_id, now)

    def _may_begin_anew(self, job: Job) -> bool:
        """Whether the job may open a sequence of an id whose earlier state is gone."""
        return job.starts_sequence or self._policy.restart_expired

    def _open(self, job: Job, now: float) -> None:
        if job.sequence_id is None:
            raise ValueError(
                f"job {job.id} has no sequence_id, and every job of a stateful model needs one unless it is unbatched"
            )
        sequence = Sequence(
            job.sequence_id,
            lane=self._pending,
            waiting=(job,),
            ends_at=math.inf if self._policy.timeout is None else now + self._policy.timeout,
            idle_since=now,
            active_since=self._suspended.take(job.sequence_id, now),
        )
        self.open[sequence.id] = sequence
        self._pending.bound[sequence] = None
        if job.priority or self._ranking:
            self._ranking.add(sequence, job.priority, self._pending.items)
        self._pending.items[sequence] = now
        self._closed.forget(sequence.id)
        self._shared.deadlines.start_timer(sequence, now)
        self._bind_pending(now)

    def _bind_pending(self, now: float) -> None:
        """Bind pending sequences, the most urgent and oldest first, each to the worker with the most free slots."""
        pending = self._pending
        while pending.items:
            lane = self._emptiest.get()
            if lane is None or len(lane.bound) >= self._slots:
                return
            sequence = self._ranking.take(pending.items) if self._ranking else next(iter(pending.items))
            del pending.items[sequence]
            del pending.bound[sequence]
            lane.bound[sequence] = None
            self._emptiest.changed(lane)
            sequence.lane = lane
            sequence.state = SEQUENCE_TRANSITIONS[sequence.state, "bind"]
            lane.items[sequence] = now
            self._shared.lanes_to_serve.append(lane)

    def _call(self, sequence: Sequence, now: float) -> None:
        """Let its next job be sent. A job that joins one in flight goes to the front: its place is kept for it."""
        sequence.state = SEQUENCE_TRANSITIONS[sequence.state, "call"]
        lane = sequence.lane
        lane.items[sequence] = now
        if sequence.in_flight:
            lane.items.move_to_end(sequence, last=False)
        self._shared.lanes_to_serve.append(lane)

    def _recall(self, sequence: Sequence) -> None:
        """Let no second job join: the one that was to join is over, or the sequence is about to end."""
        if sequence.state is READY:
            sequence.state = SEQUENCE_TRANSITIONS[READY, "recall"]
            del sequence.lane.items[sequence]

    def _may_join(self, sequence: Sequence) -> bool:
        """Whether a second job may join the one in flight, if the sequence has one waiting."""
        running = sequence.in_flight
        return self._joins and len(running) == 1 and running[0].state is STREAMING and sequence.ending is None

    def _settle(self, sequence: Sequence, now: float) -> None:
        """Take the next step of the lifecycle after a job has left the sequence or begun to stream."""
        if sequence.in_flight:
            if not (sequence.waiting and self._may_join(sequence)):
                self._recall(sequence)
            elif sequence.state is RUNNING:
                self._call(sequence, now)
        elif sequence.ending is not None:
            self._close(sequence, sequence.ending, now)
        elif sequence.waiting:
            if sequence.state is RUNNING:
                self._call(sequence, now)
        elif sequence.ends_at <= now:
            self._close(sequence, EndReason.timeout, now)
        elif sequence.state is PENDING:
            self._close(sequence, EndReason.ended, now)  # it has no state that could be lost
        else:
            sequence.lane.items.pop(sequence, None)
            sequence.state = SEQUENCE_TRANSITIONS[sequence.state, "rest"]
            sequence.idle_since = now

    def _drop_in_flight(self, sequence: Sequence) -> None:
        """Forget its jobs in flight, which are over."""
        if sequence.in_flight:
            sequence.in_flight = ()
            sequence.lane.running -= 1

    def _end(self, sequence: Sequence, reason: EndReason, now: float) -> None:
        sequence.ending = sequence.ending or reason
        self._settle(sequence, now)

    def _close(self, sequence: Sequence, reason: EndReason, now: float) -> None:
        """Close a sequence; there is no other way out. Its slot is free, and its waiting jobs are treated as new ones.

        They open a new sequence under the id, or are refused if they continue a state that is gone or over for good.
        """
        if reason is EndReason.suspended or (reason is EndReason.ended and not sequence.has_state):
            self._suspended.remember(sequence, now)
        due = sequence.due(now) if sequence.state is IDLE else None
        over_at = now if due is None else min(now, due)
        sequence.state = SEQUENCE_TRANSITIONS[sequence.state, "close"]
        del self.open[sequence.id]
        lane = sequence.lane
        del lane.bound[sequence]
        self._emptiest.changed(lane)
        lane.items.pop(sequence, None)
        if self._ranking:
            self._ranking.withdraw(self._pending.items)
        if lane.items:
            self._shared.lanes_to_serve.append(lane)  # the remaining sequences may all be ready now
        if sequence.has_state and not self._policy.durable:  # what is stored may have been begun anew elsewhere
            self._closed.remember(sequence.id, reason, now)
        if sequence.once:
            self._ended.remember(sequence.id, reason, now)
        self._shared.effects.append(EndSequence(lane.worker_id, sequence.id, reason, over_at))
        self._bind_pending(now)
        for job in (*sequence.waiting, *sequence.successors):
            self._admit_again(job, now)

    def _admit_again(self, job: Job, now: float) -> None:
        """Admit a job that was accepted before: limits do not apply, but it must not continue a lost state."""
        if (sequence := self.open.get(job.sequence_id)) is not None:
            sequence.waiting += (job,)
        elif (cause := self._closed_cause(job, now)) is not None:
            self._shared.leave(job, cause)
        else:
            self._open(job, now)

    def _unlink(self, worker: WorkerLoad) -> list[Sequence]:
        """Bind no further sequence to the worker; return those that are bound."""
        lane = cast(SequenceLane, worker.lane)
        self._lanes.pop(worker.id, None)
        self._emptiest.remove(lane)
        return list(lane.bound)


def _without(job: Job, jobs: tuple[Job, ...]) -> tuple[Job, ...]:
    """Return the others of the jobs, of which it is one."""
    return () if len(jobs) == 1 else tuple([each for each in jobs if each is not job])
