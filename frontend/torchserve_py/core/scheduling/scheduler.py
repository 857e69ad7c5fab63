"""When the jobs of a model version run, and on which of its workers.

One synchronous object. Events come in with the time, effects go out as values; there is no I/O, no clock and no task.
Each event first does what was due before it, then its own work, then sends what may be sent. `assignment.compose` makes
the parts that a policy asks for.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torchserve_py.base.causes import Cause, CloseReason
from torchserve_py.core.scheduling.assignment import Assignment, TakeBack, compose
from torchserve_py.core.scheduling.closed import ClosedSequences
from torchserve_py.core.scheduling.effects import Cancel, Effects, Finish
from torchserve_py.core.scheduling.fifo import Fifo
from torchserve_py.core.scheduling.job import CANCELLED, DONE, JOB_TRANSITIONS, RUNNING, STREAMING, WAITING, Job
from torchserve_py.core.scheduling.lane import Lane, SharedState, WorkerLoad
from torchserve_py.core.scheduling.lost_jobs import lose_stateless, lose_stored, spare_unread
from torchserve_py.core.scheduling.order import NewOrder
from torchserve_py.core.scheduling.overload import Overload
from torchserve_py.core.scheduling.policy import Policy
from torchserve_py.core.scheduling.punctuality import Punctuality
from torchserve_py.core.scheduling.sequence import IDLE, Sequence
from torchserve_py.core.scheduling.sequence_source import MOST_ENDED_AT_ONCE, LeftSequence, LostSequences, Sequences
from torchserve_py.core.scheduling.step_times import StepTimes


class Scheduler:
    """Queues, batches and sequences of one model version.

    Every job gets exactly one outcome: from its owner, which passes the last part to `parts`, or through a `Finish`.
    Every sequence that was opened gets exactly one `CloseSequence`. `now` is monotonic seconds and never goes back.
    Events about workers that are not up raise ValueError.
    """

    def __init__(
        self,
        policy: Policy,
        take_back: TakeBack | None = None,
        over: ClosedSequences | None = None,
        order: NewOrder | None = None,
    ) -> None:
        """Begin without workers; `take_back` is what a policy with `ahead` needs, `over` is shared by all versions.

        `order` makes the order of each lane; without it priorities have no effect.
        """
        self._shared = SharedState()
        self._wanted_workers = 0
        self._draining: Cause | None = None
        #: Whether it waits for all open sequences, and takes their jobs, while it refuses others.
        self.runs_out = False
        self._closed: Cause | None = None
        self._durable = policy.sequences is not None and policy.sequences.durable
        self._unbatched = Fifo(self._shared, policy.queue_size)
        self._source, self._admission = compose(policy, self._shared, over, order)
        self._sequences = self._source if isinstance(self._source, Sequences) else None
        ahead = policy.ahead and not policy.continuous and not (policy.job_ticket and policy.sequences is None)
        take_back = take_back if ahead else None
        workers: dict[str, WorkerLoad] = {}
        self._workers: Mapping[str, WorkerLoad] = workers
        self._joins = policy.continuous
        self._times = StepTimes(policy.batch_size)
        self._safety = policy.deadline_safety
        #: What keeps deadlines, once a job has had one.
        self.punctuality: Punctuality | None = None
        self._overload = Overload(workers, policy.batch_size, joins=policy.continuous)
        self._assignment = Assignment(
            *(self._shared, self._source, self._unbatched, self._admission, policy.batch_size, take_back),
            self._overload,
            workers,
        )
        #: Returns when to call `tick` at the latest, None if there is no deadline. Nothing may be due yet by then.
        self.next_deadline = self._shared.deadlines.next
        #: What that is read from.
        self.deadlines = self._shared.deadlines
        #: Returns what the jobs ask of the workers at a moment.
        self.demand = self._assignment.demand
        #: Notes how many seconds the handler of a worker took for a batch: batches are sent ahead if steps are long.
        self.step_took = self._assignment.step_took

    # Jobs

    def submit(self, job: Job, now: float) -> Effects:
        """Queue a new job, and perhaps send it at once; or refuse it with a Finish."""
        if (heap := self.deadlines.heap) and heap[0][0] <= now:
            self._catch_up(now)
        if job.id in self._shared.jobs:
            raise ValueError(f"there is a job {job.id!r} already; ids must be unique")
        job.submitted_at = now
        # What was sent ahead has to wait for it. (Steps of sequences do not: these take turns whatever their priority.)
        if job.unbatched or (job.priority and self._sequences is None):
            self._assignment.take_all_back(now)
        if (cause := self._admit(job, now)) is not None:
            self._shared.leave(job, self._final_cause(job, cause))
        else:
            self._shared.accept(job, now)
            if job.unbatched or job.sends:
                self._go_alone(job)
        return self._conclude(now)

    def parts(self, arrived: Iterable[tuple[str, bool]], now: float) -> Effects:
        """Parts of answers have come from a worker: pairs of job id and whether more follow.

        The last part frees the job's place on the worker. If an answer also ends the sequence, call `close_sequence`
        first: this call may send the sequence's next job.
        """
        if (heap := self.deadlines.heap) and heap[0][0] <= now:
            self._catch_up(now)
        jobs = self._shared.jobs
        for job_id, more in arrived:
            job = jobs.get(job_id)
            if job is None:
                pass  # the worker was given up, or the scheduler is closed
            elif not more:
                self._return(job, now)
            elif job.state is not STREAMING:
                job.state = JOB_TRANSITIONS[job.state, "stream"]
                if self._sequences is not None and not job.unbatched:
                    self._sequences.streams(job, now)
                if job.sends > 1:
                    self._assignment.reopen(self._workers[job.worker_id], now)
        return self._conclude(now)

    def failed(self, job_id: str) -> None:
        """The job is about to end with an error: its step does not count, and ends no sequence."""
        if (job := self._shared.jobs.get(job_id)) is not None:
            job.failed, job.ends_sequence = True, False

    def repeated(self, job_id: str) -> None:
        """The job is about to end with the answer of an earlier one: it ends no sequence, whatever its marker says."""
        if (job := self._shared.jobs.get(job_id)) is not None:
            job.ends_sequence = False

    def postpone(self, job_id: str, until: float, now: float) -> Effects:
        """A job of a stored sequence came back from its worker, since another server has the sequence.

        It was not run, and is sent again at the moment ``until``, before all others of its sequence.
        """
        self._catch_up(now)
        job = self._shared.jobs.get(job_id)
        if job is not None and job.state is RUNNING and self._sequences is not None:
            job.state = JOB_TRANSITIONS[job.state, "requeue"]
            job.sends -= 1
            if job.is_suspect:
                self._shared.alone[job.id] = job
            worker = self._workers[job.worker_id]
            del worker.in_flight[job.id]
            self._sequences.hold(job, until, now)
            self._shared.deadlines.start_timer(job, now)
            self._assignment.answered(worker, now)
            self._catch_up(now)  # its time may have ended while the worker had it
            self._refuse_without_workers(now)
        return self._conclude(now)

    def cancel(self, job_id: str, now: float, cause: Cause | None = Cause.cancelled) -> Effects:
        """End the job for `cause`. None: the owner has given the job its outcome, but its worker may still send parts.

        A job in flight keeps its place until the worker's last part. Cancelling it again changes nothing.
        """
        self._catch_up(now)
        job = self._shared.jobs.get(job_id)
        if job is not None:
            self._assignment.take_back_job(job, now)
        if job is None or job.state in (CANCELLED, DONE):
            return self._conclude(now)
        if cause is Cause.cancelled and job.state is not STREAMING and not job.unbatched:
            self._overload.gave_up(self._source.lane_of(job), now)
        if job.state is WAITING:
            self._withdraw(job, cause or Cause.cancelled, now)
        else:
            job.state = JOB_TRANSITIONS[job.state, "cancel"]
            if self._sequences is not None and not job.unbatched:
                self._sequences.cancelled(job)
            if cause is not None:
                self._shared.effects.append(Finish(job, cause))
            self._shared.effects.append(Cancel(job.worker_id, (job_id,)))
        return self._conclude(now)

    # Time

    def tick(self, now: float) -> Effects:
        """Do what is due by now."""
        self._catch_up(now)
        return self._conclude(now)

    # Workers

    def worker_up(self, worker_id: str, now: float, *, gives: bool = False) -> Effects:
        """Send jobs to a worker from now on; ``gives`` tells whether its sequences can move to others."""
        self._catch_up(now)
        if worker_id in self._workers:
            raise ValueError(f"worker {worker_id!r} is up already")
        worker = self._source.worker_up(worker_id, now)
        worker.gives = gives
        self._assignment.add(worker, now)
        return self._conclude(now)

    def worker_lost(self, worker_id: str, cause: Cause, now: float, *, unread: bool = False) -> Effects:
        """A worker is gone with its jobs in flight, and with the state of its sequences unless that is stored.

        ``unread``: it has not read the jobs that it was sent last, unless something was sent ahead behind them.
        """
        self._catch_up(now)
        worker = self._worker(worker_id)
        self._assignment.take_back(worker, now)
        self._assignment.remove(worker)
        if unread:
            spare_unread(worker)
        self._lose_jobs(worker, cause, now)
        if self._sequences is not None:
            self._sequences.worker_lost(worker, now)
        self._refuse_without_workers(now)
        return self._conclude(now)

    def _lose_jobs(self, worker: WorkerLoad, cause: Cause, now: float) -> None:
        """End the jobs of a lost worker, or have them run again. The state of a sequence in memory is lost with it."""
        early = self._assignment.begun_early(worker)
        again: list[Job] = []
        for job in worker.in_flight.values():
            of_job = Cause.worker_died if job.id in early else cause
            if self._durable:
                lose_stored(self._shared, job, of_job, now)
            elif self._sequences is not None:
                self._shared.leave(job, of_job)
            elif lose_stateless(self._shared, job, of_job, now):
                again.append(job)
        if again:
            self._unbatched.take_back(again, now)
            self._shared.lanes_to_serve += [other.lane for other in self._workers.values()]

    def retire(self, worker_id: str, now: float) -> Effects:
        """Send the worker no more jobs; it is Released once it has none in flight."""
        self._catch_up(now)
        worker = self._worker(worker_id)
        if not worker.retiring:
            self._assignment.retire(worker, now)
            if self._sequences is not None:
                self._sequences.retire(worker, now)
            self._refuse_without_workers(now)
            self._assignment.answered(worker, now)
        return self._conclude(now)

    def vacate(self, worker_id: str) -> Iterable[Sequence]:
        """Bind no further sequence to a worker, which goes on with those that it has; return them, resting ones first.

        Each may `leave`, and `arrive` at a `successor` or `stay`. Then retire the worker, or `reopen` it.
        """
        worker = self._worker(worker_id)
        worker.vacated += 1
        if self._sequences is None:
            return ()
        return sorted(self._sequences.vacate(worker), key=lambda sequence: sequence.state is not IDLE)

    def reopen(self, worker_id: str, now: float) -> Effects:
        """Bind sequences again to a worker that stays after all, once all who have called `vacate` have called this."""
        self._catch_up(now)
        worker = self._worker(worker_id)
        worker.vacated = max(0, worker.vacated - 1)
        if self._sequences is not None and not (worker.retiring or worker.vacated):
            self._sequences.reopen(worker, now)
        return self._conclude(now)

    def leave(self, sequence: Sequence) -> bool:
        """Send no further job of a sequence that is to leave its worker; return False if it cannot leave now.

        Its state may move once nothing of it is in flight. Until then, and while it moves, it may end as ever.
        """
        return self._sequences is not None and self._sequences.leave(sequence)

    def successor(self) -> str | None:
        """Return the worker with the fewest sequences that may get more of them; None if there is none."""
        return None if self._sequences is None else self._sequences.successor()

    def arrive(self, sequence: Sequence, worker_id: str, now: float) -> Effects | None:
        """Let a sequence that was to leave go on at a worker that has its state.

        None: that takes no sequences, or the sequence is over; then it has to `stay`.
        """
        self._catch_up(now)
        if self._sequences is None or not self._sequences.arrive(sequence, worker_id, now):
            return None
        if self.punctuality is not None:
            self.punctuality.reservations.moved(sequence)
        return self._conclude(now)

    def adopt(self, sequence: Sequence, worker_id: str, now: float) -> bool:
        """Open a sequence that is to leave another version's worker at one of these, which has its state.

        Return False if that takes no sequences, or there is another one of this id. Else the other version has to
        `give_up` the sequence before anything else happens.
        """
        return self._sequences is not None and self._closed is None and self._sequences.adopt(sequence, worker_id, now)

    def give_up(self, sequence: Sequence, now: float) -> tuple[Iterable[Job], Effects]:
        """Close a sequence that another version has adopted; return its jobs, which that gets, and the effects."""
        jobs = self.take_waiting(sequence.queue, now)
        if self._sequences is not None:
            self._sequences.give_up(sequence, now)
        return jobs, self._conclude(now)

    def expect_left(self, is_left: Callable[[str], bool]) -> None:
        """Ask whether another server has left a sequence, before one of its id opens: then it waits for a `Fetch`."""
        if self._sequences is not None:
            self._sequences.is_left = is_left

    def may_begin(self, sequence: Sequence, now: float) -> bool:
        """Whether the first job that waits for a sequence may begin it, or has to continue one that nobody knows of."""
        return self._sequences is None or self._sequences.may_begin(sequence, now)

    def fetched(
        self, sequence: Sequence, left: LeftSequence | None, now: float, *, over: CloseReason | None = None
    ) -> Effects:
        """Go on with a sequence that was fetched, or without what another server had of it (None).

        ``over``: why that is of no use; jobs that continue the sequence are refused.
        """
        self._catch_up(now)
        if self._sequences is not None:
            if over is not None:
                self._sequences.over_elsewhere(sequence.id, left, over, now)
                left = None
            self._sequences.fetched(sequence, left, now)
        return self._conclude(now)

    def stay(self, sequence: Sequence, now: float) -> Effects:
        """Let a sequence that was to leave go on where it is."""
        self._catch_up(now)
        if self._sequences is not None:
            self._sequences.stay(sequence, now)
        return self._conclude(now)

    def rest(self, worker_id: str, now: float, *, rests: bool) -> Effects:
        """Send no further jobs to a worker, whose sequences stay, until this is called with False once it is idle."""
        self._catch_up(now)
        worker = self._worker(worker_id)
        self._assignment.take_back(worker, now)
        worker.rests = rests
        worker.is_shut = True  # until it is opened again
        self._assignment.close_places(worker)
        self._assignment.answered(worker, now)
        return self._conclude(now)

    def set_workers(self, count: int, now: float) -> Effects:
        """Set how many workers are wanted. With none wanted and none up, jobs are refused as no_worker."""
        self._catch_up(now)
        self._wanted_workers = count
        if self._sequences is not None:
            self._sequences.set_workers(count, now)
        self._refuse_without_workers(now)
        return self._conclude(now)

    # Ends

    def close_sequence(self, sequence_id: str, reason: CloseReason, now: float) -> Effects:
        """Close a sequence that its handler or cache has ended, once none of its jobs is in flight."""
        self._catch_up(now)
        if self._sequences is not None:
            self._sequences.close_sequence(sequence_id, reason, now)
        return self._conclude(now)

    def let_go(self, sequence_id: str, now: float) -> Effects:
        """Let another server have a stored sequence, unless its jobs wait here."""
        self._catch_up(now)
        if self._sequences is not None:
            self._sequences.let_go(sequence_id, now)
        return self._conclude(now)

    def lose_states(self, now: float) -> None:
        """The states of open sequences are about to be lost: versions of the model refuse jobs that continue one."""
        if self._sequences is not None:
            self._sequences.lose_states(now)

    def drain(self, cause: Cause, now: float, *, runs_out: bool = False) -> Effects:
        """Refuse new jobs with `cause`, except jobs of open sequences that no other server can continue.

        With `runs_out` the jobs of all open sequences are accepted, and the scheduler is idle once none is open.
        """
        self._catch_up(now)
        if self._draining is not Cause.unregistered or self.runs_out:
            self._draining, self.runs_out = cause, runs_out
        return self._conclude(now)

    def take_waiting(self, jobs: Iterable[Job], now: float) -> Iterable[Job]:
        """Take those of these jobs that wait, in their order; another scheduler gets them."""
        self._catch_up(now)
        taken = [job for job in jobs if job.state is WAITING]
        for job in taken:
            self._shared.alone.pop(job.id, None)
            self._assignment.source_of(job).withdraw(job, now)
            self._shared.give_away(job)
        return taken

    def close(self, cause: Cause, now: float, most: int | None = None) -> Effects:
        """Finish every job and end every sequence now; refuse every later job with the same cause.

        `most` limits how many sequences without a job are ended in one call; call again until none is open.
        """
        self._catch_up(now)
        if self._closed is None:
            self._closed = cause
            self._assignment.take_all_back(now)
            for worker in self._workers.values():
                if ids := [job.id for job in worker.in_flight.values() if job.state is not CANCELLED]:
                    self._shared.effects.append(Cancel(worker.id, ids))
            for job in list(self._shared.jobs.values()):
                self._shared.leave(job, self._final_cause(job, cause))
            self._shared.alone.clear()
            self._unbatched.close(CloseReason.drained, now)
            self._source.close(self._end_reason, now)
            for worker in list(self._workers.values()):
                worker.in_flight.clear()
                self._assignment.answered(worker, now)
        if self._sequences is not None:
            self._sequences.end_idle(self._end_reason, now, most)
        return self._conclude(now)

    # State

    @property
    def jobs(self) -> Mapping[str, Job]:
        """Every accepted job that is not over, by id: a live view."""
        return self._shared.jobs

    def jobs_of(self, worker_id: str) -> Mapping[str, Job]:
        """The jobs that a worker has in flight, cancelled ones included: a live view."""
        return self._workers[worker_id].in_flight

    @property
    def queued(self) -> int:
        """How many jobs wait, those that were sent ahead included."""
        return len(self._shared.jobs) - self.in_flight

    @property
    def in_flight(self) -> int:
        """How many jobs workers have, cancelled ones included."""
        return sum(len(worker.in_flight) for worker in self._workers.values())

    @property
    def open_sequences(self) -> int:
        """How many sequences are not closed."""
        return 0 if self._sequences is None else len(self._sequences.open)

    def sequences(self) -> Iterable[Sequence]:
        """Return the open sequences, oldest first: a live view."""
        return () if self._sequences is None else self._sequences.open.values()

    def sequence(self, sequence_id: str) -> Sequence | None:
        """Return an open sequence."""
        return None if self._sequences is None else self._sequences.open.get(sequence_id)

    def knows_sequence(self, sequence_id: str, now: float) -> bool:
        """Whether the sequence is open, or is remembered as one whose state is gone."""
        return self._sequences is not None and self._sequences.knows(sequence_id, now)

    @property
    def drains(self) -> bool:
        """Whether new jobs are refused, since this drains or is closed."""
        return self._draining is not None or self._closed is not None

    @property
    def is_idle(self) -> bool:
        """Whether there is no job, and no open sequence that would be lost and may get a further job."""
        waits = self.runs_out or not (self._durable or self._draining is Cause.unregistered)
        return not (self._shared.jobs or (waits and self.open_sequences))

    @property
    def remaining_capacity(self) -> int:
        """How many more jobs may be queued; of a stateful model, how many more sequences may open."""
        return self._source.remaining_capacity

    # Within an event

    def _catch_up(self, now: float) -> None:
        """Do what was due before this event, apart from sequences beyond `MOST_ENDED_AT_ONCE`."""
        deadlines = self._shared.deadlines
        if not deadlines.heap or deadlines.heap[0][0] > now:  # as for nearly every event
            return
        left = MOST_ENDED_AT_ONCE
        while left and (thing := deadlines.pop(now)) is not None:
            match thing:
                case Job():
                    if not self._hurry(thing, now) and (cause := self._overdue(thing, now)) is not None:
                        self._withdraw(thing, self._final_cause(thing, cause), now)
                case Sequence() if self._sequences is not None:
                    self._sequences.due(thing, now)
                    left -= 1
                case LostSequences() if self._sequences is not None:
                    self._sequences.end_lost(now)
                    left = 0
                case Lane():
                    self._shared.lanes_to_serve.append(thing)
                case WorkerLoad():
                    self._assignment.reopen(thing, now)

    def _overdue(self, job: Job, now: float) -> Cause | None:
        """Return why a job ends that has waited for too long; None if it only misses its deadline."""
        if job.timing is None or self.punctuality is None:
            return Cause.client_timeout
        return self.punctuality.overdue(job, job.timing, now)

    def _hurry(self, job: Job, now: float) -> bool:
        """Have a job sent that must begin now to be in time, if all it waits for is a fuller batch."""
        if job.answer_by is None or job.answer_by <= now or job.state is not WAITING or job.id in self._shared.alone:
            return False
        lane: Lane[Any] = self._source.lane_of(job)
        if not (lane.free and lane.items):
            return False
        job.expires_at = job.answer_by
        self._shared.deadlines.start_timer(job, now)
        lane.wait_no_longer(now)
        self._shared.lanes_to_serve.append(lane)
        return True

    def _conclude(self, now: float) -> Effects:
        """Send what may be sent now, and return the effects of the event."""
        shared = self._shared
        while shared.lanes_to_serve:
            self._assignment.serve(shared.lanes_to_serve.pop(), now)
        if not shared.effects:
            return ()
        effects, shared.effects = shared.effects, []
        return effects

    def _return(self, job: Job, now: float) -> None:
        """A job in flight has been answered to its end."""
        was_cancelled = job.state is CANCELLED
        self._shared.leave(job, None)
        worker = self._workers[job.worker_id]
        del worker.in_flight[job.id]
        if self.punctuality is not None:
            self.punctuality.answered(job, worker, now)
        is_over = self._joins or not worker.in_flight  # else it still runs its batch
        # A batch takes as long whether its clients have waited or not. A job that has joined others is dropped at once
        # if it is cancelled, which tells nothing.
        if is_over and not (self._joins and was_cancelled):
            self._note_step(job, worker, now)
        if self._sequences is not None and not job.unbatched:
            self._sequences.returned(job, now)
        if is_over:
            self._assignment.answered(worker, now)

    def _note_step(self, job: Job, worker: WorkerLoad, now: float) -> None:
        """Note how long the step took that a job has ended."""
        if not job.is_timed:
            return
        self._overload.step_seconds.append(now - job.sent_at)
        self._times.note(worker.batch, now - job.sent_at)
        if self._sequences is not None and not self._joins:
            worker.lane.batch_answered(worker.batch, now - job.sent_at, now)

    def _go_alone(self, job: Job) -> None:
        """Have an accepted job share no batch: it is unbatched, or comes from another scheduler as a suspect."""
        if job.unbatched or job.is_suspect:
            self._shared.alone[job.id] = job
        if job.unbatched:  # whichever worker has room first takes it
            self._shared.lanes_to_serve += [worker.lane for worker in self._workers.values()]

    def _withdraw(self, job: Job, cause: Cause, now: float) -> None:
        """End a job that waits, unless it has begun meanwhile."""
        self._assignment.take_back_job(job, now)
        if job.state is not WAITING:
            return
        source = self._assignment.source_of(job)
        self._shared.leave(job, cause)
        self._shared.alone.pop(job.id, None)
        source.withdraw(job, now)
        if self.punctuality is not None:
            self.punctuality.place_again(job)

    def _admit(self, job: Job, now: float) -> Cause | None:
        """Queue the job, or say why it is refused."""
        if self._closed is not None:
            return self._closed
        if self._draining is not None and self._is_new(job):
            return self._draining
        if not self._wanted_workers and not self._any_worker():
            if self._sequences is not None and not job.unbatched:
                self._sequences.refused(job, now)
            return Cause.no_worker
        if job.timing is not None or job.expires_at is not None:
            return self._admit_limited(job, now)
        return (self._unbatched if job.unbatched else self._source).admit(job, now)

    def _admit_limited(self, job: Job, now: float) -> Cause | None:
        """Queue a job that has a deadline or a time limit, or say why it is refused."""
        if job.expires_at is not None and job.expires_at <= now:
            return Cause.client_timeout
        if job.unbatched:
            return self._unbatched.admit(job, now)
        if job.timing is not None:
            return self._keep_time().admit(job, job.timing, now)
        place = self._source.place_of(job, now)
        if place is not None and self._overload.refuses(job, place, now):
            return Cause.overloaded
        return self._source.admit(job, now)

    def _keep_time(self) -> Punctuality:
        """Return what keeps deadlines, from now on."""
        if self.punctuality is None:
            shared, source, assignment = self._shared, self._source, self._assignment
            self.punctuality = Punctuality(shared, source, assignment, self._times, self._safety)
        return self.punctuality

    def _is_new(self, job: Job) -> bool:
        """Whether a job is refused while this drains: no job of an open sequence, and no part of an accepted job."""
        continues = self._sequences is not None and not job.unbatched and job.sequence_id in self._sequences.open
        if (continues or job.handed_over_by is not None) and not (self._durable and not self.runs_out):
            return False
        return not (self._draining is Cause.draining and job.is_part_of_another)

    def _refuse_without_workers(self, now: float) -> None:
        """End the waiting jobs if no worker is up and none is wanted: they would wait for ever."""
        if not self._wanted_workers and not self._any_worker():
            for job in [job for job in self._shared.jobs.values() if job.state is WAITING]:
                self._withdraw(job, self._final_cause(job, Cause.no_worker), now)

    def _final_cause(self, job: Job, cause: Cause) -> Cause:
        """The cause that the client hears.

        Whether a worker has applied a step of a stored sequence is unknown. A suspect that waits has lost its worker.
        And what a worker has begun was not refused: the client must not simply send it again.
        """
        if self._durable and job.sends and not job.unbatched:
            return Cause.outcome_unknown
        if job.sends and job.state is WAITING:
            return Cause.worker_died
        return Cause.interrupted if cause is Cause.draining and job.sends else cause

    @property
    def _end_reason(self) -> CloseReason:
        """Why sequences end once everything is closed."""
        return CloseReason.unregistered if self._closed is Cause.unregistered else CloseReason.drained

    def _any_worker(self) -> bool:
        return any(not worker.retiring for worker in self._workers.values())

    def _worker(self, worker_id: str) -> WorkerLoad:
        if (worker := self._workers.get(worker_id)) is None:
            raise ValueError(f"worker {worker_id!r} is not up; these are: {', '.join(self._workers) or 'none'}")
        return worker
