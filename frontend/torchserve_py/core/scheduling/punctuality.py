"""Steps with deadlines: in which order they wait, which of them are guaranteed to be in time, and what late ones do.

A scheduler makes a `Punctuality` with the first step that has a deadline. Before that it only notes how long batches
take, so that the first sessions need not wait for measurements. Only where batches are run one after the other can
there be a guarantee: where jobs join running ones, a period is a deadline, and answers say that no more is promised.
"""

import math
from typing import Any

from torchserve_py.base.causes import Cause
from torchserve_py.core.scheduling.assignment import Assignment, Source
from torchserve_py.core.scheduling.batch_admission import WhenIdle
from torchserve_py.core.scheduling.in_time import InTime
from torchserve_py.core.scheduling.job import WAITING, Job
from torchserve_py.core.scheduling.lane import Lane, SharedState, WorkerLoad
from torchserve_py.core.scheduling.reservations import Reservations
from torchserve_py.core.scheduling.sequence import PENDING, SequenceLane
from torchserve_py.core.scheduling.sequence_source import Sequences
from torchserve_py.core.scheduling.sequence_times import SequenceTimes
from torchserve_py.core.scheduling.step_times import StepTimes
from torchserve_py.core.scheduling.timing import Timing

#: Of the steps that no worker, even an idle one, could answer in time, one of this many runs all the same. Otherwise
#: nobody would notice that steps have become quicker.
_TRIAL = 20


class Punctuality:
    """The steps of a model version that have deadlines."""

    def __init__(
        self, shared: SharedState, source: Source, assignment: Assignment, times: StepTimes, safety: float
    ) -> None:
        self._shared = shared
        self._source = source
        self._sequences = source if isinstance(source, Sequences) else None
        self._assignment = assignment
        self._times = times
        self._hopeless = 0
        self.reservations = Reservations(times, safety)
        self._guarantees = isinstance(assignment.admission, WhenIdle) and self._sequences is not None
        self._sequence_times = SequenceTimes() if self._guarantees else None
        if isinstance(assignment.admission, WhenIdle):
            assignment.admission = InTime(assignment.admission, times, self._sequence_times, self._slack)

    def _slack(self, lane: Lane[Any]) -> float:
        return self.reservations.slack(lane) if isinstance(lane, SequenceLane) else math.inf

    def answered(self, job: Job, worker: WorkerLoad, now: float) -> None:
        """Note that a job which was in flight has been answered, and learn from its batch with the last one."""
        if self._sequence_times is None or self._sequences is None:
            return
        sequence = self._sequences.open.get(job.sequence_id)
        if sequence is not None and job.is_timed:
            worker.answered.append(sequence)
        if not worker.in_flight:
            sequences, worker.answered = worker.answered, []
            if len(sequences) == worker.batch:
                self._sequence_times.learn(sequences, now - job.sent_at)

    def admit(self, job: Job, timing: Timing, now: float) -> Cause | None:
        """Queue a job with a deadline, or return why it is refused."""
        self._assignment.take_all_back(now)
        for lane in self._source.lanes:
            if lane.order is not None:
                lane.order = lane.order.with_deadlines(lane.items)
        if timing.due == math.inf:  # else it comes from another version
            timing.due = now + timing.within - timing.waited
        timing.limit = math.inf if job.expires_at is None else job.expires_at
        if timing.period is not None:
            if self._guarantees and self._sequences is not None:
                return self._admit_periodic(self._sequences, job, timing, now)
            timing.is_degraded = True
        return self._refusal(job, timing, now) or self._source.admit(job, now)

    def _admit_periodic(self, sequences: Sequences, job: Job, timing: Timing, now: float) -> Cause | None:
        """Queue a step of a session that asks for a guarantee."""
        reservations = self.reservations
        sequence = sequences.open.get(job.sequence_id)
        home: SequenceLane | None = None
        if sequence is not None and reservations.is_due_again(sequence, now):
            reservations.forget(sequence)
        if sequence is None:
            home = reservations.choose(timing, sequences.lanes_with_slots, now)
            if home is None and not timing.degrades and (job.step or 1) == 1:
                self._assignment.overload.refused += 1
                return Cause.deadline_capacity
            timing.is_guaranteed = home is not None
        elif reservations.knows(sequence):
            timing.is_guaranteed = reservations.covers(sequence, timing, now)
        elif sequence.state is not PENDING:
            home = reservations.choose(timing, [sequence.lane], now)
            timing.is_guaranteed = home is not None
        cause = self._refusal(job, timing, now) or self._source.admit(job, now)
        opened = sequences.open.get(job.sequence_id)
        if cause is not None or opened is None:
            return cause
        if reservations.knows(opened):
            if timing.is_guaranteed:
                reservations.came(opened, now)
        elif home is None:
            reservations.degrade(opened, now)
        else:
            if opened.lane is not home and not opened.is_left:
                sequences.rehome(opened, home, now)
            reservations.reserve(opened, timing, now)
        timing.is_degraded = reservations.is_degraded(opened)
        return None

    def _refusal(self, job: Job, timing: Timing, now: float) -> Cause | None:
        """Return why a job is refused that cannot be in time; else limit when it begins."""
        job.expires_at = timing.limit
        if timing.drops or not timing.is_guaranteed:  # a late step with a guarantee keeps its turn
            job.expires_at = min(timing.limit, timing.due - self._times.quickest)
        if job.expires_at <= now:
            self._hopeless += 1
            if timing.drops and self._hopeless % _TRIAL:
                return Cause.deadline_missed
            self._let_be_late(job, timing)
        elif job.expires_at == math.inf:
            job.expires_at = None
        return None

    def _let_be_late(self, job: Job, timing: Timing) -> None:
        timing.is_late = True
        job.expires_at = None if timing.limit == math.inf else timing.limit

    def overdue(self, job: Job, timing: Timing, now: float) -> Cause | None:
        """A waiting job can no longer be in time: return why it ends, or None if it is to be answered late."""
        if timing.limit <= now:
            return Cause.client_timeout
        if timing.drops:
            return Cause.deadline_missed
        self._let_be_late(job, timing)
        self._shared.deadlines.start_timer(job, now)
        if job.state is WAITING:
            self.place_again(job)
        return None

    def place_again(self, job: Job) -> None:
        """Let an item of a lane have the place that its first job deserves now: this job was, or is, the first."""
        item: Any = job if self._sequences is None else self._sequences.open.get(job.sequence_id)
        if item is None:
            return
        lane: Lane[Any] = self._source.lane_of(job)
        if lane.order is None or item not in lane.items:
            return
        first = job if self._sequences is None else item.waiting[0]
        if job.timing is not None or first.timing is not None:
            lane.order.withdraw(item)
            lane.order.add(item, lane.items, newest_first=False)
            self._shared.lanes_to_serve.append(lane)  # with a deadline it does not wait for a fuller batch
