"""Random interleavings of every event, for each of the four combinations of source and admission.

After each event the scheduler must not contradict itself (`invariants.py`), and what it did must be right as seen from
outside: by the workers that get batches, and by the clients that get outcomes.
"""

from collections import Counter
from dataclasses import dataclass, field, replace
from math import ceil
from unittest.mock import patch

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.core.scheduling.invariants import validate
from tests.examples import examples

from torchserve_py.base.causes import Cause, CloseReason
from torchserve_py.core.fair_use.fair_order import FairOrder
from torchserve_py.core.scheduling import sequence_source
from torchserve_py.core.scheduling.assignment import ALONE_LIMIT
from torchserve_py.core.scheduling.effects import (
    Begin,
    Cancel,
    CloseSequence,
    Effects,
    Finish,
    Released,
    Send,
    SendAhead,
)
from torchserve_py.core.scheduling.job import AHEAD, WAITING, Job
from torchserve_py.core.scheduling.lost_jobs import MOST_RUNS
from torchserve_py.core.scheduling.order import OLDEST_EVERY
from torchserve_py.core.scheduling.policy import Policy, SequencePolicy
from torchserve_py.core.scheduling.scheduler import Scheduler
from torchserve_py.core.scheduling.sequence import MOVING, Sequence
from torchserve_py.core.scheduling.timing import Timing

picks = st.integers(0, 1_000)
moments = st.sampled_from([0.0, 0.1, 0.4, 1.0, 3.0, 10.0])
sequence_ids = st.sampled_from("stuvwx")


@dataclass
class WorkerSeen:
    """A worker as the shell sees it."""

    retired: bool = False
    rests: bool = False
    in_flight: dict[str, Job] = field(default_factory=dict)
    ahead: list[list[Job]] = field(default_factory=list)
    begun_early: int = 0


class SchedulerMachine(RuleBasedStateMachine):
    """Events in, and a record of all that came out."""

    policy = Policy()
    #: Whether some jobs have deadlines.
    has_deadlines = False

    @initialize(
        batch_size=st.integers(1, 3),
        delay=st.sampled_from([0.0, 1.0]),
        queue_size=st.integers(1, 3),
        max_sequences=st.integers(1, 6),
        timeout=st.sampled_from([None, 2.0, 6.0]),
        lenient=st.booleans(),
        durable=st.booleans(),
        workers=st.integers(0, 2),
    )
    def start(self, batch_size, delay, queue_size, max_sequences, timeout, lenient, durable, workers):
        limits = self.policy.sequences and SequencePolicy(4.0, timeout, queue_size, max_sequences, lenient, durable)
        self.durable = bool(self.policy.sequences) and durable
        self.policy = replace(
            self.policy, batch_size=batch_size, max_batch_delay=delay, queue_size=2 * queue_size, sequences=limits
        )
        self.scheduler = Scheduler(self.policy, self.take_back, order=FairOrder)
        self.now = 0.0
        self.jobs: list[Job] = []
        self.number: dict[str, int] = {}
        self.workers: dict[str, WorkerSeen] = {}
        self.wanted = 0
        self.outcomes: Counter[str] = Counter()
        self.streaming: set[str] = set()
        self.told_to_drop: set[str] = set()
        self.runs: Counter[str] = Counter()
        self.last_sent: dict[str | None, int] = {}
        self.homes: dict[str, str] = {}
        self.open: dict[str, Sequence] = {}
        self.opened: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()
        self.counting = patch.object(sequence_source, "Sequence", self.opening)
        self.counting.start()
        self.closed_with: Cause | None = None
        self.taken = self.taken_before_their_turn = 0
        self.set_workers(workers)
        for _ in range(workers):
            self.worker_up()

    def opening(self, sequence_id, **fields):
        self.opened[sequence_id] += 1
        return Sequence(sequence_id, **fields)

    def take_back(self, worker_id):
        """What the scheduler learns of a worker: how many of the batches that it was sent ahead it never begins."""
        worker = self.workers[worker_id]
        kept, worker.begun_early = worker.begun_early, 0
        for job in [job for batch in worker.ahead[kept:] for job in batch if self.policy.sequences]:
            self.last_sent[self.queue_of(job)] = min(self.last_sent[self.queue_of(job)], self.number[job.id] - 1)
        not_begun = len(worker.ahead) - kept
        del worker.ahead[kept:]
        return not_begun

    @precondition(lambda self: any(worker.ahead for worker in self.workers.values()))
    @rule(pick=picks)
    def begin_early(self, pick):
        """The worker begins, and its answers to what it ran are still on their way."""
        workers = [worker for worker in self.workers.values() if worker.ahead]
        worker = workers[pick % len(workers)]
        worker.begun_early = 1 + pick % len(worker.ahead)

    # Events

    @rule(
        sequence_id=sequence_ids,
        starts=st.booleans(),
        ends=st.sampled_from([False, False, False, True]),
        unbatched=st.sampled_from([False] * 9 + [True]),
        patience=st.sampled_from([None, None, None, 0.0, 0.5, 3.0]),
        wants_answer=st.booleans(),
        priority=st.sampled_from([0, 0, 0, 1, 2, 2**64 - 1]),
        client=st.sampled_from(["", "", "other"]),
        within=st.sampled_from([None, 0.0, 0.4, 1.0, 3.0]),
        drops=st.booleans(),
        period=st.sampled_from([None, 0.5, 3.0, 10.0]),
        degrades=st.booleans(),
    )
    def submit(
        self,
        sequence_id,
        starts,
        ends,
        unbatched,
        patience,
        wants_answer,
        priority,
        client,
        within=None,
        drops=False,
        period=None,
        degrades=False,
    ):
        timing = None
        if self.has_deadlines and within is not None:
            timing = Timing(within, 0.0, drops, period, degrades)
        job = Job(
            f"job{len(self.jobs)}",
            sequence_id if self.policy.sequences else None,
            starts_sequence=starts,
            ends_sequence=ends,
            unbatched=unbatched,
            priority=0 if unbatched else priority,
            client=client,
            expires_at=None if patience is None else self.now + patience,
            answer_by=None if patience is None or not wants_answer else self.now + patience,
            timing=timing,
        )
        self.number[job.id] = len(self.jobs)
        self.jobs.append(job)
        effects = self.scheduler.submit(job, self.now)
        self.perform(effects)
        assert self.closed_with is None or self.outcomes[job.id] == 1
        if starts or (self.policy.sequences and self.policy.sequences.restart_expired):
            gone = (Cause.sequence_expired, Cause.sequence_lost)
            assert Finish(job, gone[0]) not in effects and Finish(job, gone[1]) not in effects, f"{job} needs no state"

    @rule(ids=st.lists(sequence_ids, min_size=2, max_size=5))
    def submit_several(self, ids):
        for sequence_id in ids:
            self.submit(
                sequence_id,
                starts=False,
                ends=False,
                unbatched=False,
                patience=None,
                wants_answer=False,
                priority=0,
                client="",
            )

    @rule()
    def answer_all(self):
        for job_id in [job_id for worker in self.workers.values() for job_id in worker.in_flight]:
            self.hand_in((job_id, False))

    @precondition(lambda self: any(worker.in_flight for worker in self.workers.values()))
    @rule(pick=picks, mores=st.lists(st.booleans(), min_size=1, max_size=4))
    def parts_of_one_worker(self, pick, mores):
        busy = [worker for worker in self.workers.values() if worker.in_flight]
        self.hand_in(*zip(list(busy[pick % len(busy)].in_flight), mores, strict=False))

    @precondition(lambda self: any(worker.in_flight for worker in self.workers.values()))
    @rule(pick=picks, more=st.booleans())
    def part(self, pick, more):
        running = [job_id for worker in self.workers.values() for job_id in worker.in_flight]
        self.hand_in((running[pick % len(running)], more))

    def hand_in(self, *arrived):
        for job_id, more in arrived:
            if more:
                self.streaming.add(job_id)
            else:
                worker = next(worker for worker in self.workers.values() if job_id in worker.in_flight)
                del worker.in_flight[job_id]
                if not self.outcomes[job_id]:
                    self.outcomes[job_id] += 1
        self.perform(self.scheduler.parts(arrived, self.now))

    def may_be_held(self):
        """What workers run for stored sequences, and may say of it that another server has the sequence."""
        running = [job for worker in self.workers.values() for job in worker.in_flight.values() if not job.unbatched]
        return [job for job in running if job.id not in self.streaming and not self.outcomes[job.id]]

    @precondition(lambda self: self.durable and self.may_be_held())
    @rule(pick=picks, pause=st.sampled_from([0.1, 0.5, 3.0]))
    def postpone(self, pick, pause):
        held = self.may_be_held()
        job = held[pick % len(held)]
        del next(worker for worker in self.workers.values() if job.id in worker.in_flight).in_flight[job.id]
        self.runs[job.id] -= not job.asks_after
        self.last_sent[job.sequence_id] = min(self.last_sent[job.sequence_id], self.number[job.id] - 1)
        self.perform(self.scheduler.postpone(job.id, self.now + pause, self.now))

    @rule(sequence_id=sequence_ids)
    def let_go(self, sequence_id):
        waits = [job for job in self.scheduler.jobs.values() if job.sequence_id == sequence_id and job.state is WAITING]
        before = self.ended[sequence_id]
        self.perform(self.scheduler.let_go(sequence_id, self.now))
        assert not waits or self.ended[sequence_id] == before, "a sequence whose jobs wait was let go"

    @precondition(lambda self: self.jobs)
    @rule(pick=picks)
    def cancel(self, pick):
        job = self.jobs[-1 - pick % min(len(self.jobs), 10)]
        self.perform(self.scheduler.cancel(job.id, self.now))
        assert self.outcomes[job.id] == 1

    @rule(seconds=moments)
    def tick(self, seconds):
        self.now += seconds
        self.perform(self.scheduler.tick(self.now))

    @precondition(lambda self: self.scheduler.next_deadline() is not None)
    @rule()
    def wake(self):
        deadline = self.scheduler.next_deadline()
        self.now = max(self.now, deadline)
        self.perform(self.scheduler.tick(self.now))
        assert self.scheduler.next_deadline() != deadline

    @precondition(lambda self: len(self.workers) < 4)
    @rule()
    def worker_up(self):
        worker_id = next(f"w{number}" for number in range(9) if f"w{number}" not in self.workers)
        self.workers[worker_id] = WorkerSeen()
        self.perform(self.scheduler.worker_up(worker_id, self.now))

    def lose_worker(self, pick):
        worker_id = list(self.workers)[pick % len(self.workers)]
        lost = self.workers.pop(worker_id)
        begun = [*lost.in_flight.values(), *(job for batch in lost.ahead[: lost.begun_early] for job in batch)]
        not_begun = [job for batch in lost.ahead[lost.begun_early :] for job in batch]
        cause = (Cause.worker_died, Cause.response_timeout)[pick % 2]
        first = min((job.sent_at for job in lost.in_flight.values()), default=self.now)
        again = [job for job in begun if self.is_sent_again(job, cause, first)]
        self.workers[worker_id] = lost
        effects = self.scheduler.worker_lost(worker_id, cause, self.now)
        for job in again:
            queue = self.queue_of(job)
            self.last_sent[queue] = min(self.last_sent.get(queue, -1), self.number[job.id] - 1)
        self.perform(effects)
        del self.workers[worker_id]
        assert all(self.outcomes[job.id] == (job not in again) for job in begun)
        assert all(not self.outcomes[job.id] or not self.workers for job in not_begun if not self.policy.sequences)

    def is_sent_again(self, job, cause, first):
        """Durable jobs of which nothing was seen go on, or ask what has become of them; others run once more."""
        unseen = job.id not in self.streaming and not self.outcomes[job.id]
        has_workers = self.wanted or any(not worker.retired for worker in self.workers.values())
        if self.policy.sequences:
            return self.durable and not job.unbatched and unseen and bool(has_workers)
        in_time = job.expires_at is None or job.expires_at > self.now
        begun_at = self.now if job.state is AHEAD else job.sent_at
        is_early = self.policy.ahead and begun_at > first  # the worker was not silent about it for too long
        may_run = self.runs[job.id] + (job.state is AHEAD) < MOST_RUNS
        return may_run and (cause is Cause.worker_died or is_early) and in_time and unseen and bool(has_workers)

    def retire(self, pick):
        worker_id = list(self.workers)[pick % len(self.workers)]
        self.workers[worker_id].retired = True
        self.perform(self.scheduler.retire(worker_id, self.now))

    def rest(self, pick):
        """A worker sleeps, or wakes once it has nothing."""
        worker_id = list(self.workers)[pick % len(self.workers)]
        worker = self.workers[worker_id]
        if not (worker.rests and worker.in_flight):
            effects = self.scheduler.rest(worker_id, self.now, rests=not worker.rests)
            assert worker.rests or not any(
                isinstance(each, SendAhead) and each.worker_id == worker_id for each in effects
            )
            worker.rests = not worker.rests
            self.perform(effects)

    def set_workers(self, count):
        self.wanted = count
        self.perform(self.scheduler.set_workers(count, self.now))

    @rule(what=st.sampled_from(["lose", "retire", "rest", "scale", "scale", "drain", "close"]), pick=picks)
    def disturb(self, what, pick):
        """What changes much is rare, or nothing else would ever have the time to unfold."""
        if what == "scale":
            self.set_workers(pick % 4)
        elif self.workers and what == "lose":
            self.lose_worker(pick)
        elif self.workers and what == "retire":
            self.retire(pick)
        elif self.workers and what == "rest":
            self.rest(pick)
        elif what == "drain" and len(self.jobs) > 20:
            self.perform(self.scheduler.drain(Cause.draining, self.now))
        elif what == "close" and len(self.jobs) > 25:
            self.close((Cause.unregistered, Cause.draining)[pick % 2])

    @precondition(lambda self: self.policy.sequences and not self.durable and self.workers)
    @rule(what=st.sampled_from(["vacate", "reopen", "leave", "leave", "arrive", "arrive", "stay"]), pick=picks)
    def move_sequences(self, what, pick):
        """A worker is to leave, or stays after all; a sequence leaves it, and goes on elsewhere, or where it was."""
        worker_id = list(self.workers)[pick % len(self.workers)]
        sequences = list(self.scheduler.sequences())
        sequence = sequences[pick % len(sequences)] if sequences else None
        if what == "vacate":
            self.scheduler.vacate(worker_id)
        elif what == "reopen":
            self.perform(self.scheduler.reopen(worker_id, self.now))
        elif what == "leave" and sequence is not None:
            self.scheduler.leave(sequence)
        elif what == "arrive" and sequence is not None:
            self.arrive(sequence)
        elif sequence is not None:
            self.perform(self.scheduler.stay(sequence, self.now))

    def arrive(self, sequence):
        was_moving = sequence.state is MOVING and not sequence.in_flight
        home = self.scheduler.successor()
        effects = None if home is None else self.scheduler.arrive(sequence, home, self.now)
        if effects is None:
            self.perform(self.scheduler.stay(sequence, self.now))
            return
        assert was_moving
        if sequence.id in self.homes:
            self.homes[sequence.id] = home
        self.perform(effects)

    @rule(sequence_id=sequence_ids, reason=st.sampled_from([CloseReason.ended, CloseReason.evicted]))
    def close_sequence(self, sequence_id, reason):
        self.perform(self.scheduler.close_sequence(sequence_id, reason, self.now))

    def close(self, cause):
        self.perform(self.scheduler.close(cause, self.now), closing=True)
        self.closed_with = self.closed_with or cause
        assert self.scheduler.is_idle

    # What comes out

    def perform(self, effects: Effects, closing: bool = False) -> None:
        for begun in (effect for effect in effects if isinstance(effect, Begin)):
            self.see_begin(begun)
        for worker_id, job_ids in (effect for effect in effects if isinstance(effect, Cancel)):
            assert set(job_ids) <= self.workers[worker_id].in_flight.keys()
            assert self.told_to_drop.isdisjoint(job_ids), "a worker was told twice to drop a job"
            self.told_to_drop.update(job_ids)
        if closing:
            for worker in self.workers.values():
                assert worker.in_flight.keys() <= self.told_to_drop, "a worker goes on with jobs of a closed model"
                worker.in_flight.clear()
        for effect in effects:
            match effect:
                case Send():
                    self.see_batch(effect)
                case SendAhead():
                    self.see_ahead(effect)
                case Finish(job, cause):
                    self.outcomes[job.id] += 1
                    if self.durable and job.sends and not job.unbatched:
                        known = {Cause.cancelled, Cause.outcome_unknown}
                        assert cause in known, f"{job} may have been applied, but was told {cause}"
                case CloseSequence(worker_id, sequence_id, _, _):
                    self.ended[sequence_id] += 1
                    assert self.homes.pop(sequence_id, worker_id) == worker_id
                case Released(worker_id):
                    worker = self.workers.pop(worker_id)
                    assert worker.retired and not worker.in_flight and not worker.ahead
        self.see_sequences()
        assert all(count <= 1 for count in self.outcomes.values()), "a job had two outcomes"

    def see_batch(self, batch: Send) -> None:
        worker = self.workers[batch.worker_id]
        size = self.policy.batch_size
        assert not (worker.retired or worker.rests)
        assert batch.jobs
        assert not worker.ahead
        if not self.policy.continuous:
            assert not worker.in_flight, "a batch was sent to a worker that has one"
            assert len(batch.jobs) <= size
        if batch.jobs[0].unbatched:
            assert len(batch.jobs) == 1
        elif self.policy.sequences:
            self.see_steps(worker, batch)
        self.see_order(batch)
        self.see_runs(batch)
        self.see_suspects(worker, batch)
        worker.in_flight.update((job.id, job) for job in batch.jobs)
        assert len(worker.in_flight) <= size * (2 if self.policy.continuous and self.policy.sequences else 1)

    def see_ahead(self, batch: SendAhead) -> None:
        worker = self.workers[batch.worker_id]
        assert self.policy.ahead and batch.jobs
        assert not (worker.retired or worker.rests) and worker.in_flight, "a batch was sent ahead of nothing"
        assert batch.joins == bool(worker.ahead)
        ahead = [job for jobs in worker.ahead for job in jobs]
        size = self.policy.batch_size
        assert len(ahead) + len(batch.jobs) <= size
        assert not any(job.unbatched for job in batch.jobs)
        if self.policy.sequences:
            running = [job.sequence_id for job in (*worker.in_flight.values(), *ahead) if not job.unbatched]
            assert set(running).isdisjoint(job.sequence_id for job in batch.jobs), "a step was sent before the last"
            for job in batch.jobs:
                assert self.homes.setdefault(job.sequence_id, batch.worker_id) == batch.worker_id
            assert len(batch.jobs) == size, "a batch is smaller than need be"
        elif not batch.joins:
            full_by = min(job.submitted_at for job in batch.jobs) + self.policy.max_batch_delay
            assert len(batch.jobs) == size or self.now >= full_by, "a batch is smaller than need be"
        self.see_order(batch)
        worker.ahead.append(list(batch.jobs))

    def see_begin(self, begun: Begin) -> None:
        worker = self.workers[begun.worker_id]
        assert list(begun.jobs) == [job for batch in worker.ahead for job in batch]
        worker.ahead.clear()
        worker.in_flight.update((job.id, job) for job in begun.jobs)
        worker.begun_early = 0
        self.see_runs(begun)

    def see_runs(self, batch: Send | Begin) -> None:
        for job in batch.jobs:
            self.runs[job.id] += not job.asks_after
            assert self.runs[job.id] <= MOST_RUNS
            assert not self.outcomes[job.id], f"{job} was over when it began"

    def is_suspect(self, job: Job) -> bool:
        return self.runs[job.id] > 1 and not job.asks_after

    def see_suspects(self, worker: WorkerSeen, batch: Send) -> None:
        """What was with a worker that died has its next one for itself, until its answer begins, or for a second."""
        assert len(batch.jobs) == 1 or not any(map(self.is_suspect, batch.jobs)), "a suspect is in a batch"
        for job in worker.in_flight.values():
            is_over = job.id in self.streaming or self.now >= job.sent_at + ALONE_LIMIT
            assert is_over or not self.is_suspect(job), f"{batch.jobs} joined {job}, a suspect"

    def see_steps(self, worker: WorkerSeen, batch: Send) -> None:
        steps = Counter(job.sequence_id for job in batch.jobs)
        assert max(steps.values()) == 1, "two jobs of a sequence in one batch"
        before = [job for job in worker.in_flight.values() if not job.unbatched]
        for job in batch.jobs:
            assert self.homes.setdefault(job.sequence_id, batch.worker_id) == batch.worker_id
            own = [running.id for running in before if running.sequence_id == job.sequence_id]
            assert len(own) <= (1 if self.policy.continuous else 0)
            assert set(own) <= self.streaming, "a job joined one that had not begun to stream"
        assert len({job.sequence_id for job in [*before, *batch.jobs]}) <= self.policy.batch_size

    def turn(self, job: Job) -> tuple[bool, int, int]:
        return job.priority == 0, job.priority, job.number

    def queue_of(self, job: Job) -> str:
        return "unbatched" if job.unbatched else job.sequence_id or f"priority {job.priority} of {job.client}"

    def see_turns(self, batch: Send | SendAhead) -> None:
        """Nobody of their clients was before them, except that now and then the oldest goes before its turn."""
        waiting = [job for job in self.scheduler._shared.jobs.values() if job.state is WAITING and not job.unbatched]
        rest = [job for job in waiting if not job.sends] + batch.jobs
        for job in batch.jobs:
            if job is not min((each for each in rest if each.client == job.client), key=self.turn):
                assert job is min(rest, key=lambda each: each.number), f"{job} has overtaken others"
                self.taken_before_their_turn += 1
            rest.remove(job)
        self.taken += len(batch.jobs)
        assert self.taken_before_their_turn * OLDEST_EVERY <= self.taken

    def see_order(self, batch: Send | SendAhead) -> None:
        if not (self.policy.sequences or self.has_deadlines or batch.jobs[0].unbatched or self.runs[batch.jobs[0].id]):
            self.see_turns(batch)
        for job in batch.jobs:
            in_time = job.expires_at is None or job.expires_at > self.now
            assert in_time or (job.was_sent_before and self.durable), f"{job} was sent too late"
            if not self.policy.sequences:
                continue
            queue = self.queue_of(job)
            assert self.last_sent.get(queue, -1) < self.number[job.id], f"{job} was overtaken"
            self.last_sent[queue] = self.number[job.id]

    def see_sequences(self) -> None:
        """Each sequence that was opened is open or has ended once."""
        source = self.scheduler._source
        if not isinstance(source, sequence_source.Sequences):
            assert not self.ended
            return
        assert self.opened - self.ended == Counter(source.open.keys()), "a sequence has not ended"
        assert not self.ended - self.opened, "a sequence has ended twice"
        capacity = max(self.policy.sequences.max_sequences, self.wanted * self.policy.batch_size)
        assert len(source.open) <= max(capacity, len(self.open))
        was = Counter(sequence.lane.worker_id for sequence in self.open.values())
        self.open = dict(source.open)
        for worker_id, bound in Counter(sequence.lane.worker_id for sequence in self.open.values()).items():
            if worker_id is not None and bound > was[worker_id]:
                assert bound <= ceil(capacity / max(1, self.wanted)), "a worker has more sequences than slots"

    @invariant()
    def consistent(self):
        if hasattr(self, "scheduler"):
            self.perform(self.scheduler.tick(self.now))
            validate(self.scheduler, self.now)

    def teardown(self):
        """Left alone with a worker, everything that was accepted is answered and every sequence ends by itself."""
        if not hasattr(self, "scheduler"):
            return
        self.counting.stop()
        with self.counting:
            self.finish()

    def finish(self):
        self.set_workers(1)
        if all(worker.retired for worker in self.workers.values()):
            self.worker_up()
        for _ in range(1_000):
            for worker in list(self.workers.values()):
                for job_id in list(worker.in_flight):
                    self.hand_in((job_id, False))
            for number, worker in enumerate(list(self.workers.values())):
                if worker.rests:
                    self.rest(number)
            for sequence in list(self.scheduler.sequences()):
                self.perform(self.scheduler.stay(sequence, self.now))
            for worker_id, worker in list(self.workers.items()):
                if not worker.retired:
                    self.perform(self.scheduler.reopen(worker_id, self.now))
            if self.scheduler.is_idle and not self.open:
                break
            if not self.scheduler.in_flight:
                self.wake()
        assert self.scheduler.is_idle
        assert all(self.outcomes[job.id] == 1 for job in self.jobs), "a job had no outcome"
        assert not self.open


def machine(policy: Policy, *, has_deadlines: bool = False) -> type:
    played = type("Machine", (SchedulerMachine,), {"policy": policy, "has_deadlines": has_deadlines}).TestCase
    played.settings = settings(max_examples=examples(50), stateful_step_count=60)
    return played


SEQUENCES = SequencePolicy(max_idle=4.0)

TestFifoWhenIdle = machine(Policy())
TestFifoAhead = machine(Policy(ahead=True))
TestSequencesAhead = machine(Policy(ahead=True, sequences=SEQUENCES))
TestFifoWhileBelow = machine(Policy(continuous=True))
TestSequencesWhenIdle = machine(Policy(sequences=SEQUENCES))
TestSequencesWhileBelow = machine(Policy(continuous=True, sequences=SEQUENCES))
TestDeadlinesFifo = machine(Policy(ahead=True), has_deadlines=True)
TestDeadlinesFifoWhileBelow = machine(Policy(continuous=True), has_deadlines=True)
TestDeadlinesSequences = machine(Policy(ahead=True, sequences=SEQUENCES), has_deadlines=True)
TestDeadlinesSequencesWhileBelow = machine(Policy(continuous=True, sequences=SEQUENCES), has_deadlines=True)
