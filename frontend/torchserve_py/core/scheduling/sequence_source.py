"""The source of stateful models: a queue per sequence, each sequence bound to the worker that holds its state.

Each worker has as many slots as its share of the capacity. A new sequence is bound to the worker with the most free
slots, or is pending until one is free. A sequence leaves its slot through `_close` and nowhere else.
"""

import math
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, NamedTuple, cast

from torchserve_py.base.causes import Cause, CloseReason
from torchserve_py.core.scheduling.closed import ClosedSequences, SuspendedIds, closed_cause, may_begin
from torchserve_py.core.scheduling.effects import CloseSequence, Fetch
from torchserve_py.core.scheduling.emptiest import EmptiestLane
from torchserve_py.core.scheduling.job import STREAMING, WAITING, Job
from torchserve_py.core.scheduling.lane import Lane, SharedState, WorkerLoad
from torchserve_py.core.scheduling.order import NewOrder
from torchserve_py.core.scheduling.overload import QueuePosition
from torchserve_py.core.scheduling.policy import SequencePolicy
from torchserve_py.core.scheduling.sequence import (
    HELD,
    IDLE,
    MOVING,
    PENDING,
    READY,
    RUNNING,
    SEQUENCE_TRANSITIONS,
    Sequence,
    SequenceLane,
)

#: How many sequences without a job end in one event because their time has come or their worker is lost. For the others
#: a deadline stays due, so that the next `tick` follows at once: 100,000 would keep all else waiting for a second.
MOST_ENDED_AT_ONCE = 500

#: Of how many sequences the one that has rested longest makes room for another.
LOOKED_AT = 32

#: Of how many tokens that an open sequence had before its present one it is remembered that they are over: as many as
#: `ts.sequences.steps.sequence_limits` allows stores.
MOST_EARLIER_TOKENS = 1_000


#: How a sequence ends that no worker has a state of, by whether its store may have one.
_NOTHING_HERE = {False: CloseReason.ended, True: CloseReason.suspended}


class LeftSequence(NamedTuple):
    """What a server has noted of a sequence that it left.

    Attributes:
        tokens: Those of its jobs that were answered.
        time_left: Seconds until it reaches its time limit.
    """

    tokens: tuple[str, ...]
    time_left: float


class LostSequences:
    """Lanes of lost workers with sequences that are still to be ended; due as long as there are any."""

    __slots__ = ("lanes", "timer")

    def __init__(self) -> None:
        self.lanes: dict[SequenceLane, None] = {}
        self.timer = 0

    def due(self, now: float) -> float | None:
        """Return that they are due now, None if there are none."""
        return now if self.lanes else None


class Sequences:
    """Open sequences by id; at most `batch_size` of them run on a worker at once.

    A sequence has one job in flight. With `joins`, a second may join it once the first streams: that is how a request
    cancels a stream of its own sequence. The second job finds room even if every place of a batch is taken.
    """

    def __init__(
        self,
        shared: SharedState,
        policy: SequencePolicy,
        batch_size: int,
        delay: float,
        *,
        joins: bool,
        over: ClosedSequences | None = None,
        order: NewOrder | None = None,
    ) -> None:
        self.open: dict[str | None, Sequence] = {}  # keyed as jobs are, whose sequence_id is optional
        self._shared = shared
        self._policy = policy
        self._batch_size = batch_size
        self._delay = delay
        self._order = order
        self._joins = joins
        self._lanes: dict[str, SequenceLane] = {}
        self._emptiest = EmptiestLane()
        # Sequences, not jobs: one that joins its own stream counts once; a second batch may be sent ahead of the first.
        self._most_running = batch_size if joins else 2 * batch_size
        self._pending = SequenceLane(None, self._most_running, delay, policy, order)
        self._lost = LostSequences()
        self._over = ClosedSequences(policy.remembered) if over is None else over
        self._over.remember_for(policy.remembered)
        self._suspended = SuspendedIds()
        #: Whether another server has left a sequence of this id; None if that cannot be.
        self.is_left: Callable[[str], bool] | None = None
        self._capacity = self._slots = policy.max_sequences
        self._without_worker = CloseReason.suspended if policy.durable else CloseReason.worker_lost

    # Jobs

    def admit(self, job: Job, now: float) -> Cause | None:
        """Queue the job in its sequence, opening that if necessary; or say why the job is refused."""
        sequence = self.open.get(job.sequence_id)
        if sequence is not None and self._is_still_to_end(sequence, now):
            sequence = None
        if sequence is None:
            if (cause := self._refusal(job, now)) is not None:
                return cause
            if len(self.open) >= self._capacity and not self._make_room(now):
                return Cause.sequence_capacity
            self._open(job, now)
        elif (
            job.token is not None
            and job.token not in sequence.tokens[-1:]
            and (cause := self._over.known_cause(job, now)) is not None
        ):
            return cause
        elif sequence.ends_at <= now and not (sequence.successors or may_begin(job, self._policy)):
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

    def lane_of(self, job: Job) -> SequenceLane:
        """Return the lane of the sequence of a job that was accepted."""
        return self.open[job.sequence_id].lane

    def item_in(self, lane: Lane[Any], job: Job) -> Sequence | None:
        """Return the sequence of a job that waits, if the job may be sent now to the worker of this lane."""
        sequence = self.open[job.sequence_id]
        is_next = sequence.lane is lane and sequence.state is READY and sequence.waiting[0] is job
        return sequence if is_next else None

    def place_of(self, job: Job, now: float) -> QueuePosition | None:
        """Return where a new job would wait; None if no worker has room for its sequence yet."""
        if (sequence := self.open.get(job.sequence_id)) is not None:
            own = len(sequence.waiting) + len(sequence.successors)
            return None if sequence.state is PENDING else _place(sequence.lane, own, job, now)
        lane = self._emptiest.get()
        return None if lane is None or len(lane.bound) >= self._slots else _place(lane, 0, job, now)

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
                lane.withdraw(sequence)
                lane.put_first(sequence, job.ready_since)

    def hold(self, job: Job, until: float, now: float) -> None:
        """A job in flight could not run, since another server has its sequence: it is sent again at that moment."""
        sequence = self.open[job.sequence_id]
        sequence.in_flight = _without(job, sequence.in_flight)
        if not sequence.in_flight:
            sequence.lane.running -= 1
        sequence.waiting = (job, *sequence.waiting)
        sequence.has_state = not job.opens
        if sequence.state is RUNNING and not sequence.in_flight and sequence.ending is None:
            sequence.state = SEQUENCE_TRANSITIONS[RUNNING, "hold"]
            sequence.held_until = until
            self._shared.deadlines.bring_forward(sequence, now)
        else:
            self._settle(sequence, now)

    def due(self, sequence: Sequence, now: float) -> None:
        """A deadline of the sequence has come."""
        if sequence.state is HELD:
            self._call(sequence, now)
            self._shared.deadlines.start_timer(sequence, now)
        else:
            self._end(sequence, sequence.expiry(), now)

    def let_go(self, sequence_id: str, now: float) -> None:
        """Another server asks for a stored sequence: it leaves its worker, unless further jobs wait here."""
        sequence = self.open.get(sequence_id)
        if sequence is not None and self._policy.durable and not (sequence.waiting or sequence.successors):
            self._end(sequence, CloseReason.suspended, now)

    def streams(self, job: Job, now: float) -> None:
        """The job has begun to stream: the next job of its sequence may join."""
        self._settle(self.open[job.sequence_id], now)

    def cancelled(self, job: Job) -> None:
        """A job in flight is dropped: its worker may not have heard of a stored sequence, so the next job opens it."""
        if self._policy.durable and job.opens:
            self.open[job.sequence_id].has_state = False

    def returned(self, job: Job, now: float) -> None:
        """A job in flight is over: the next one may be sent, or the sequence rests, or ends if the job was its last.

        A sequence ends as well if its only job has failed: else requests that are refused would take the room of all.
        """
        sequence = self.open[job.sequence_id]
        sequence.in_flight = _without(job, sequence.in_flight)
        if not sequence.in_flight:
            sequence.lane.running -= 1
        if job.token is not None and not job.failed and job.token not in sequence.tokens[-1:]:
            sequence.tokens = (*sequence.tokens[-MOST_EARLIER_TOKENS:], job.token)
        sequence.has_succeeded |= not job.failed
        if job.ends_sequence and sequence.ending is None:
            sequence.ending = CloseReason.ended
        elif not (sequence.has_succeeded or sequence.in_flight or sequence.waiting or sequence.ending):
            sequence.has_state, sequence.ending = False, _NOTHING_HERE[self._policy.durable]
        self._settle(sequence, now)

    # Workers

    def worker_up(self, worker_id: str, now: float) -> WorkerLoad:
        """Return a new worker with a lane and slots of its own; pending sequences are bound to it."""
        policy = self._policy
        lane = self._lanes[worker_id] = SequenceLane(worker_id, self._most_running, self._delay, policy, self._order)
        self._emptiest.add(lane)
        self._bind_pending(now)
        return WorkerLoad(worker_id, lane)

    def retire(self, worker: WorkerLoad, now: float) -> None:
        """End the worker's sequences, or suspend them if stored, as soon as none of their jobs is in flight."""
        for sequence in self._unlink(worker):
            self._end(sequence, self._without_worker, now)

    def worker_lost(self, worker: WorkerLoad, now: float) -> None:
        """Close the worker's sequences, whose state is lost, or continue stored ones with the jobs to send again.

        Those without a job are closed by `end_lost`, some at once.
        """
        for sequence in [each for each in self._unlink(worker) if each.state is not IDLE]:
            again = [job for job in sequence.in_flight if job.state is WAITING]
            sequence.waiting = (*again, *sequence.waiting)
            self._drop_in_flight(sequence)
            self._close(sequence, sequence.ending or self._without_worker, now)

        self._lost.lanes[cast(SequenceLane, worker.lane)] = None
        self.end_lost(now)

    def end_lost(self, now: float) -> None:
        """Close some of the sequences without a job whose worker is lost."""
        left = MOST_ENDED_AT_ONCE
        for lane in list(self._lost.lanes):
            some = list(islice(lane.bound, left))
            for sequence in some:
                self._close(sequence, sequence.ending or self._without_worker, now)
            left -= len(some)
            if lane.bound:
                lane.worker_id = None  # another worker of this id may come, which never had them
                break
            del self._lost.lanes[lane]
        self._shared.deadlines.start_timer(self._lost, now)

    # Sequences that move to another worker

    def vacate(self, worker: WorkerLoad) -> list[Sequence]:
        """Bind no further sequence to a worker that is to leave; return those that it has, and goes on with."""
        return self._unlink(worker)

    def reopen(self, worker: WorkerLoad, now: float) -> None:
        """Bind sequences again to a worker that stays after all."""
        lane = cast(SequenceLane, worker.lane)
        if worker.id not in self._lanes:
            self._lanes[worker.id] = lane
            self._emptiest.add(lane)
            self._bind_pending(now)

    def leave(self, sequence: Sequence) -> bool:
        """Send no job of a sequence that is to leave its worker; return False if it cannot leave now.

        A stream keeps it: the job that waits may be the one that ends the stream.
        """
        can_leave = sequence.state in (IDLE, READY, RUNNING) and sequence.ending is None
        if not can_leave or any(job.state is STREAMING for job in sequence.in_flight):
            return False
        sequence.state = SEQUENCE_TRANSITIONS[sequence.state, "leave"]
        sequence.lane.withdraw(sequence)
        return True

    def successor(self) -> str | None:
        """Return the worker that has the fewest sequences and may get more of them, None if there is none."""
        lane = self._emptiest.get()
        return None if lane is None else lane.worker_id

    def arrive(self, sequence: Sequence, worker_id: str, now: float) -> bool:
        """Bind a moving sequence to the worker that has its state now; return False if that takes no sequences."""
        lane = self._lanes.get(worker_id)
        if lane is None or sequence.state is not MOVING or sequence.in_flight:
            return False
        before, sequence.lane = sequence.lane, lane
        del before.bound[sequence]
        lane.bound[sequence] = None
        self._emptiest.changed(before)
        self._emptiest.changed(lane)
        self._go_on(sequence, now)
        if before.items:
            self._shared.lanes_to_serve.append(before)  # the remaining sequences may all be ready now
        self._bind_pending(now)
        return True

    def adopt(self, sequence: Sequence, worker_id: str, now: float) -> bool:
        """Open a sequence that another version gives up, at a worker that has its state; return whether that can be."""
        lane = self._lanes.get(worker_id)
        if lane is None or sequence.id in self.open or sequence.state is not MOVING or sequence.in_flight:
            return False
        adopted = Sequence(sequence.id, lane, (), sequence.ends_at, now, now, IDLE)
        adopted.has_state = adopted.has_succeeded = True
        adopted.tokens = sequence.tokens
        self.open[sequence.id] = adopted
        lane.bound[adopted] = None
        self._emptiest.changed(lane)
        self._shared.deadlines.start_timer(adopted, now)
        return True

    def give_up(self, sequence: Sequence, now: float) -> None:
        """Close a sequence that another version has adopted, with its jobs: it is not over."""
        sequence.has_state, sequence.tokens = False, ()
        self._close(sequence, CloseReason.suspended, now)

    def stay(self, sequence: Sequence, now: float) -> None:
        """Let a sequence that was to move go on where it is."""
        if sequence.state is MOVING:
            self._go_on(sequence, now)

    def _go_on(self, sequence: Sequence, now: float) -> None:
        """Let a sequence that has moved, or stays, send its jobs again."""
        if sequence.in_flight:
            sequence.state = SEQUENCE_TRANSITIONS[SEQUENCE_TRANSITIONS[MOVING, "call"], "send"]
            self._settle(sequence, now)
        elif sequence.waiting:
            self._call(sequence, now)
        else:
            sequence.state, sequence.idle_since = SEQUENCE_TRANSITIONS[MOVING, "arrive"], now
            if sequence.ends_at <= now:
                self._close(sequence, CloseReason.timeout, now)

    def may_begin(self, sequence: Sequence, now: float) -> bool:
        """Whether the first job that waits for a sequence may begin it, or has to continue one that nobody knows of."""
        waiting = sequence.waiting
        return not waiting or closed_cause(waiting[0], self._over, self._policy, now) is not Cause.sequence_unknown

    def fetched(self, sequence: Sequence, left: LeftSequence | None, now: float) -> None:
        """Go on with a sequence that its worker has got from another server, or without (None) what that had of it."""
        if sequence.state is not MOVING or not sequence.is_left:
            return  # it is over
        sequence.is_left = False
        if left is not None:
            sequence.has_state = sequence.has_succeeded = True
            sequence.tokens, sequence.ends_at = left.tokens, now + left.time_left
            self._shared.deadlines.bring_forward(sequence, now)
        else:
            while sequence.waiting and (cause := closed_cause(sequence.waiting[0], self._over, self._policy, now)):
                job, sequence.waiting = sequence.waiting[0], sequence.waiting[1:]
                self._shared.leave(job, cause)
        if sequence.has_state or sequence.waiting:
            self._over.ids.forget(sequence.id, now)
            self._go_on(sequence, now)
        else:
            self._unbind(sequence)
            self._close(sequence, CloseReason.ended, now)

    def over_elsewhere(self, sequence_id: str, left: LeftSequence | None, reason: CloseReason, now: float) -> None:
        """Refuse what continues a sequence of which another server has left nothing that can be used."""
        self._over.ids.remember(sequence_id, reason, now)
        for token in () if left is None else left.tokens:
            self._over.tokens.remember(sequence_id, token, reason, now)

    def _unbind(self, sequence: Sequence) -> None:
        """Take a sequence from a worker that has heard nothing of it, and is told nothing of its end."""
        before, sequence.lane = sequence.lane, self._pending
        del before.bound[sequence]
        self._pending.bound[sequence] = None
        self._emptiest.changed(before)

    def set_workers(self, count: int, now: float) -> None:
        """Set the capacity, which is never less than what the workers' batches hold, and share it evenly as slots."""
        self._capacity = max(self._policy.max_sequences, count * self._batch_size)
        self._slots = math.ceil(self._capacity / max(count, 1))
        self._bind_pending(now)

    def lose_states(self, now: float) -> None:
        """Refuse jobs that continue one of the open sequences: their states are about to be lost."""
        for sequence in self.open.values():
            if sequence.has_state:
                self._over.ids.remember(sequence.id, CloseReason.worker_lost, now)

    # Ends

    def close_sequence(self, sequence_id: str, reason: CloseReason, now: float) -> None:
        """End the sequence, if it is open, as soon as nothing of it is in flight."""
        if (sequence := self.open.get(sequence_id)) is not None:
            self._end(sequence, reason, now)

    def close(self, reason: CloseReason, now: float) -> None:
        """End every sequence that had a job; the jobs are over. Pending ones first, so that none takes a slot."""
        busy = [sequence for sequence in self.open.values() if sequence.state is not IDLE]
        for sequence in sorted(busy, key=lambda sequence: sequence.state is not PENDING):
            self._drop_in_flight(sequence)
            sequence.waiting = sequence.successors = ()
            self._close(sequence, reason, now)

    def end_idle(self, reason: CloseReason, now: float, most: int | None) -> None:
        """End sequences that have no job: all of them (None), or at most this many."""
        for sequence in list(islice(self.open.values(), most)):
            self._close(sequence, reason, now)

    def knows(self, sequence_id: str, now: float) -> bool:
        """Whether the sequence is open, or remembered as one whose state is gone. Always true if states are stored."""
        if self._policy.durable:
            return True  # only a worker can look into the store
        is_left = self.is_left is not None and self.is_left(sequence_id)
        return is_left or sequence_id in self.open or self._over.ids.refusal(sequence_id, now) is not None

    @property
    def lanes_with_slots(self) -> list[SequenceLane]:
        """The lanes of the workers that have a slot for one more sequence."""
        return [lane for lane in self._lanes.values() if len(lane.bound) < self._slots]

    def rehome(self, sequence: Sequence, lane: SequenceLane, now: float) -> None:
        """Bind a sequence that this event has opened, and bound to a worker, to another one that has a slot."""
        before, sequence.lane = sequence.lane, lane
        before.withdraw(sequence)
        del before.bound[sequence]
        lane.bound[sequence] = None
        self._emptiest.changed(before)
        self._emptiest.changed(lane)
        lane.put(sequence, now)
        self._shared.lanes_to_serve.append(lane)

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

    def _is_still_to_end(self, sequence: Sequence, now: float) -> bool:
        """End a sequence that is still waiting for its turn to be ended; return whether it was."""
        heap = self._shared.deadlines.heap
        if sequence.state is not IDLE or not heap or heap[0][0] > now:  # as nearly always: nothing is late
            return False
        if sequence.lane in self._lost.lanes:
            self._close(sequence, sequence.ending or self._without_worker, now)
            return True
        if (due := sequence.due(now)) is not None and due <= now:
            self.due(sequence, now)
            return True
        return False

    def _make_room(self, now: float) -> bool:
        """Let a stored sequence that rests leave its worker; return whether there was one.

        It is the one that has rested longest of some, as a cache does that keeps no order: so no step has to note when
        it was. What is looked at goes to the end, so that all have their turn.
        """
        if not self._policy.durable:
            return False
        for _ in range(0, len(self.open), LOOKED_AT):
            some = list(islice(self.open.items(), LOOKED_AT))
            for sequence_id, sequence in some:
                self.open[sequence_id] = self.open.pop(sequence_id, sequence)
            if resting := [sequence for _, sequence in some if sequence.state is IDLE]:
                longest = min(resting, key=lambda sequence: sequence.idle_since)
                self._end(longest, CloseReason.suspended, now)
                return True
        return False

    def _refusal(self, job: Job, now: float) -> Cause | None:
        """Return why a job opens no sequence, None if it does."""
        if self.is_left is not None and self.is_left(job.sequence_id or ""):
            return None
        return closed_cause(job, self._over, self._policy, now)

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
            handed_over_by=job.handed_over_by,
        )
        sequence.is_left = self.is_left is not None and self.is_left(sequence.id)
        self.open[sequence.id] = sequence
        self._pending.bound[sequence] = None
        self._pending.put(sequence, now)
        if not sequence.is_left:  # else it may turn out that it is over
            self._over.ids.forget(sequence.id, now)
        self._shared.deadlines.start_timer(sequence, now)
        self._bind_pending(now)

    def _bind_pending(self, now: float) -> None:
        """Bind pending sequences, the most urgent and oldest first, each to the worker with the most free slots."""
        pending = self._pending
        while pending.items:
            lane = self._emptiest.get()
            if lane is None or len(lane.bound) >= self._slots:
                return
            sequence = pending.first()
            pending.pop(sequence)
            del pending.bound[sequence]
            lane.bound[sequence] = None
            self._emptiest.changed(lane)
            sequence.lane = lane
            sequence.state = SEQUENCE_TRANSITIONS[sequence.state, "bind"]
            if sequence.is_left:
                sequence.state = SEQUENCE_TRANSITIONS[sequence.state, "leave"]
                self._shared.effects.append(Fetch(lane.worker_id or "", sequence))
            else:
                lane.put(sequence, now)
                self._shared.lanes_to_serve.append(lane)

    def _call(self, sequence: Sequence, now: float) -> None:
        """Let its next job be sent. A job that joins one in flight goes to the front: its place is kept for it."""
        sequence.state = SEQUENCE_TRANSITIONS[sequence.state, "call"]
        lane = sequence.lane
        if sequence.in_flight:
            lane.put_first(sequence, now)
        else:
            lane.put(sequence, now)
        if lane.free or lane.busy:
            self._shared.lanes_to_serve.append(lane)

    def _recall(self, sequence: Sequence) -> None:
        """Let no second job join: the one that was to join is over, or the sequence is about to end."""
        if sequence.state is READY:
            sequence.state = SEQUENCE_TRANSITIONS[READY, "recall"]
            sequence.lane.withdraw(sequence)

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
            self._close(sequence, CloseReason.timeout, now)
        elif sequence.state is PENDING:
            self._close(sequence, CloseReason.ended, now)  # it has no state that could be lost
        else:
            before, sequence.state = sequence.state, SEQUENCE_TRANSITIONS[sequence.state, "rest"]
            sequence.idle_since = now
            if before is READY:
                sequence.lane.withdraw(sequence)
            elif before is HELD:  # it may be over before it would have been asked for again
                self._shared.deadlines.bring_forward(sequence, now)

    def _drop_in_flight(self, sequence: Sequence) -> None:
        """Forget its jobs in flight, which are over."""
        if sequence.in_flight:
            sequence.in_flight = ()
            sequence.lane.running -= 1

    def _end(self, sequence: Sequence, reason: CloseReason, now: float) -> None:
        sequence.ending = sequence.ending or reason
        self._settle(sequence, now)

    def _close(self, sequence: Sequence, reason: CloseReason, now: float) -> None:
        """Close a sequence; there is no other way out. Its slot is free, and its waiting jobs are treated as new ones.

        They open a new sequence under the id, or are refused if they continue a state that is gone or over for good.
        """
        if reason is CloseReason.suspended or (reason is CloseReason.ended and not sequence.has_state):
            self._suspended.remember(sequence, now)
        due = sequence.due(now) if sequence.state is IDLE else None
        over_at = now if due is None else min(now, due)
        sequence.state = SEQUENCE_TRANSITIONS[sequence.state, "close"]
        del self.open[sequence.id]
        lane = sequence.lane
        del lane.bound[sequence]
        self._emptiest.changed(lane)
        lane.withdraw(sequence)
        if lane.items:
            self._shared.lanes_to_serve.append(lane)  # the remaining sequences may all be ready now
        if sequence.has_state and not self._policy.durable:  # what is stored may have been started again elsewhere
            self._over.ids.remember(sequence.id, reason, now)
        if not self._policy.durable:
            for token in sequence.tokens:
                self._over.tokens.remember(sequence.id, token, reason, now)
        self._shared.effects.append(CloseSequence(lane.worker_id, sequence.id, reason, over_at))
        self._bind_pending(now)
        for job in sequence.queue:
            self._admit_again(job, now)

    def _admit_again(self, job: Job, now: float) -> None:
        """Admit a job that was accepted before: limits do not apply, but it must not continue a lost state."""
        if (sequence := self.open.get(job.sequence_id)) is not None:
            sequence.waiting += (job,)
        elif (cause := self._refusal(job, now)) is not None:
            self._shared.leave(job, cause)
        else:
            self._open(job, now)

    def _unlink(self, worker: WorkerLoad) -> list[Sequence]:
        """Bind no further sequence to the worker; return those that are bound."""
        lane = cast(SequenceLane, worker.lane)
        self._lanes.pop(worker.id, None)
        self._emptiest.remove(lane)
        return list(lane.bound)


def _place(lane: SequenceLane, own: int, job: Job, now: float) -> QueuePosition:
    """Return the place behind this many jobs of its own sequence, which takes turns with the others of its lane."""
    return QueuePosition(lane, lane.before(job, now) + lane.jobs_ahead, own)


def _without(job: Job, jobs: tuple[Job, ...]) -> tuple[Job, ...]:
    """Return the others of the jobs, of which it is one."""
    return () if len(jobs) == 1 else tuple([each for each in jobs if each is not job])
