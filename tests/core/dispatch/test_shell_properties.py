"""Random interleavings of all that can happen to a dispatcher, without processes and without waiting.

Whatever clients, workers and the pool do: every job ends exactly once, its reader sees so, it is counted and traced
once, and in the end no record of any job is left.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.core.dispatch.shell import FakeWorker, Shell, told
from tests.core.scheduling.invariants import validate
from tests.examples import examples

from torchserve_py.base.causes import Cause
from torchserve_py.base.metrics.model_metrics import EndedJob
from torchserve_py.core.jobs.call import Call, SequenceRequest
from torchserve_py.core.jobs.parts import JobFailed, Part
from torchserve_py.core.scheduling.job import CANCELLED, RUNNING, STREAMING
from torchserve_py.core.scheduling.policy import Policy, SequencePolicy

picks = st.integers(0, 1_000)
damages = st.dictionaries(
    st.integers(1, 7), st.one_of(st.none(), st.booleans(), st.integers(), st.just("text"), st.just([["x"]])), max_size=2
)
news = st.sampled_from([None, None, told(ended=["s0", "s1"]), told("sequence_lost"), told("outcome_unknown")])


class Spans:
    """Counts how often each job has ended."""

    def __init__(self) -> None:
        self.ends: Counter[str] = Counter()
        self.failed: set[str] = set()

    def ended(self, job: EndedJob, last: Part | None) -> None:
        self.ends[job.id] += 1
        if not job.succeeded:
            self.failed.add(job.id)


class ShellMachine(RuleBasedStateMachine):
    """One dispatcher; `policy` is that of the model."""

    policy = Policy()

    @initialize(batch_size=st.integers(1, 3), delay=st.sampled_from([0.0, 1.0]), workers=st.integers(0, 2))
    def start(self, batch_size: int, delay: float, workers: int) -> None:
        self.loop = asyncio.new_event_loop()
        self.policy = replace(self.policy, batch_size=batch_size, max_batch_delay=delay, queue_size=4)
        self.spans = Spans()
        self.now = 0.0
        self.jobs: list[Call] = []
        self.retiring: list[asyncio.Task[None]] = []
        self.worker_number = workers
        self.closed = False
        self.do(lambda: self.set_up(workers))

    def set_up(self, workers: int) -> None:
        self.shell = Shell(replace(self.policy), 0)
        self.dispatcher = self.shell.dispatcher
        self.dispatcher.now = lambda: self.now
        self.workers: list[FakeWorker] = self.shell.workers
        self.dispatcher.set_workers(workers)
        self.workers += [self.shell.add_worker(f"w{number}") for number in range(workers)]

    def do(self, action: Callable[[], Any]) -> Any:
        """Do something on the event loop, and what follows from it at once."""

        async def act() -> Any:
            result = action()
            if asyncio.iscoroutine(result):
                result = await result
            await asyncio.sleep(0)
            return result

        return self.loop.run_until_complete(act())

    # Clients

    @rule(
        pick=picks,
        starts=st.booleans(),
        ends=st.sampled_from([False, False, True]),
        body=st.sampled_from(["x", "x", "x", "\udcff"]),
        expires_in=st.sampled_from([None, None, 0.0, 2.0]),
        unbatched=st.sampled_from([False] * 6 + [True]),
        open_ended=st.sampled_from([False, False, True]),
    )
    def submit(self, pick, starts, ends, body, expires_in, unbatched, open_ended):
        sequence = SequenceRequest(f"s{pick % 4}", starts, ends, ()) if self.policy.sequences else None
        call = Call(
            (),
            body,
            "text/plain",
            sequence=None if unbatched else sequence,
            unbatched=unbatched,
            open_ended=open_ended,
            expires_in=expires_in,
        )
        call.on_end = self.spans.ended
        self.jobs.append(self.do(lambda: self.shell.run(call)))

    @precondition(lambda self: self.jobs)
    @rule(pick=picks, leaves=st.booleans())
    def reader(self, pick, leaves):
        parts = self.jobs[pick % len(self.jobs)]
        if leaves:
            self.do(parts.cancel)
        elif parts.buffered_bytes:
            self.do(lambda: parts.take_arrived(1))

    @precondition(lambda self: any(parts.inputs is not None and not parts.ended for parts in self.jobs))
    @rule(pick=picks, more=st.booleans())
    def give_input(self, pick, more):
        open_jobs = [parts for parts in self.jobs if parts.inputs is not None and not parts.ended]
        parts = open_jobs[pick % len(open_jobs)]
        if len(parts.inputs._untaken) < 10:
            self.do(lambda: parts.send_input(b"more", more=more))

    # Workers

    def of_worker(self, pick: int) -> tuple[FakeWorker, list[str]]:
        worker = self.workers[pick % len(self.workers)]
        return worker, sorted(worker.in_flight)

    @precondition(lambda self: self.workers)
    @rule(
        pick=picks,
        mores=st.lists(st.booleans(), min_size=1, max_size=4),
        damage=damages,
        news=news,
        error=st.sampled_from([None, None, "an error"]),
    )
    def rows(self, pick, mores, damage, news, error):
        worker, in_flight = self.of_worker(pick)
        rows = [
            [job_id, more and error is None, 200, "", [], b"x" * (pick % 300), error, news]
            for job_id, more in zip(in_flight, mores, strict=False)
        ]
        for row in rows[:1]:
            for field, value in damage.items():
                row[field] = value
        self.do(lambda: self.shell.results(worker, rows + rows[: pick % 2]))

    @precondition(lambda self: self.workers and self.jobs)
    @rule(pick=picks, job=picks, more=st.booleans())
    def row_of_any_job(self, pick, job, more):
        """A row of a job that the worker may not have, or that is over."""
        worker, in_flight = self.of_worker(pick)
        parts = self.jobs[job % len(self.jobs)]
        row = [parts.id, more, 200, "", [], b"absurd", None, None]
        if parts.id in self.dispatcher._jobs and parts.id not in in_flight:
            with pytest.raises(ValueError, match="which it does not have"):
                self.do(lambda: self.shell.results(worker, [row]))
        else:
            self.do(lambda: self.shell.results(worker, [row]))

    @precondition(lambda self: self.workers)
    @rule(pick=picks, count=st.integers(0, 3))
    def takes_inputs(self, pick, count):
        worker, in_flight = self.of_worker(pick)
        for job_id in [*in_flight, "unknown"]:
            self.do(lambda job_id=job_id: self.dispatcher.taken(worker, job_id, count))

    @precondition(lambda self: self.dispatcher._jobs)
    @rule(pick=picks)
    def overdue(self, pick):
        jobs = [job for job in self.dispatcher._jobs.values() if job.state in (RUNNING, STREAMING, CANCELLED)]
        if jobs:
            self.do(lambda: self.dispatcher.cancel(jobs[pick % len(jobs)], Cause.response_timeout))

    @precondition(lambda self: self.workers)
    @rule(
        pick=picks,
        cause=st.sampled_from([Cause.worker_died, Cause.response_timeout]),
        unread=st.booleans(),
        replaced=st.booleans(),
    )
    def worker_dies(self, pick, cause, unread, replaced):
        worker = self.workers.pop(pick % len(self.workers))
        rows = [[job_id, False, 200, "", [], b"late", None] for job_id in sorted(worker.in_flight)]
        worker.loss_cause, worker.left_unread = cause, unread
        self.do(lambda: self.shell.lose(worker))
        if replaced:
            self.workers.append(self.do(lambda: self.shell.add_worker(worker.id)))
        self.do(lambda: self.shell.lose(worker))
        for row in rows:
            self.do(lambda row=row: self.late(worker, row))

    def late(self, worker: FakeWorker, row: list[Any]) -> None:
        """A row of a worker that is lost already means nothing, or is refused."""
        try:
            self.shell.results(worker, [row])
        except ValueError:
            assert row[0] in self.dispatcher._jobs

    @rule()
    def worker_comes(self):
        if len(self.workers) < 3:
            self.worker_number += 1
            self.do(lambda: self.dispatcher.set_workers(len(self.workers) + 1))
            self.workers.append(self.do(lambda: self.shell.add_worker(f"w{self.worker_number}")))

    @precondition(lambda self: self.workers)
    @rule(pick=picks, at_once=st.booleans())
    def worker_retires(self, pick, at_once):
        worker = self.workers[pick % len(self.workers)]
        if at_once:
            self.do(lambda: self.dispatcher.take_out(cast(Any, worker)))
        else:
            self.do(lambda: self.retiring.append(self.loop.create_task(self.shell.retire(worker, 600))))

    # The server

    @rule(seconds=st.sampled_from([0.1, 1.0, 5.0, 40.0]))
    def time_passes(self, seconds):
        self.now += seconds
        self.do(lambda: self.dispatcher._pass(self.dispatcher.scheduler.tick))

    @rule(count=st.integers(0, 3))
    def workers_wanted(self, count):
        self.do(lambda: self.dispatcher.set_workers(count))

    @rule(odds=st.integers(0, 20))
    def drains(self, odds):
        if not odds:
            self.do(lambda: self.dispatcher.drain(0))

    @rule(odds=st.integers(0, 20))
    def closes(self, odds):
        if not odds:
            self.close()

    def close(self) -> None:
        self.closed = True
        self.do(lambda: self.dispatcher.close(Cause.draining))

    # What is true

    @invariant()
    def every_record_agrees_with_what_its_reader_knows(self):
        if not hasattr(self, "shell"):
            return
        validate(self.dispatcher.scheduler, self.now)
        records = self.dispatcher._jobs
        for parts in self.jobs:
            job = records.get(parts.id)
            assert self.spans.ends[parts.id] == (1 if parts.ended else 0)
            if parts.ended:
                assert job is None or job.state is CANCELLED, f"{job} is over but was kept"
            else:
                assert job is parts
        assert not self.closed or not records
        for worker in self.workers:
            held = [
                job.id
                for job in records.values()
                if job.worker_id == worker.id and job.state in (RUNNING, STREAMING, CANCELLED)
            ]
            assert worker.in_flight == set(held)

    def teardown(self):
        if not hasattr(self, "shell"):
            return
        self.close()
        self.every_record_agrees_with_what_its_reader_knows()
        assert all(parts.ended for parts in self.jobs)
        for parts in self.jobs:
            self.do(lambda parts=parts: self.read(parts))
        self.dispatcher.metrics.fold()
        outcomes = self.dispatcher.metrics.outcomes
        unanswered = sum(outcomes.failures.values())
        assert unanswered == len(self.spans.failed)
        assert outcomes.succeeded + unanswered == len(self.jobs) == self.spans.ends.total()
        for worker in list(self.workers):
            self.do(lambda worker=worker: self.shell.lose(worker))
        for task in self.retiring:
            self.loop.run_until_complete(task)
        self.loop.close()

    async def read(self, parts: Call) -> None:
        """Read what has arrived: it ends in one way, and nothing comes after."""
        while parts._buffer:
            if not (await parts.next()).more:
                assert not parts._buffer
                return
        if parts.id in self.spans.failed and parts._failure is not None:
            with pytest.raises(JobFailed):
                await parts.next()


LIMITS = SequencePolicy(4.0, timeout=20.0, queue_size=2, max_sequences=4)
POLICIES = {
    "Fifo": Policy(),
    "FifoAhead": Policy(ahead=True),
    "FifoContinuous": Policy(continuous=True),
    "Sequences": Policy(sequences=LIMITS),
    "SequencesAhead": Policy(ahead=True, sequences=LIMITS),
    "SequencesContinuous": Policy(continuous=True, sequences=LIMITS),
    "SequencesDurable": Policy(sequences=replace(LIMITS, durable=True)),
    "SequencesDurableAhead": Policy(ahead=True, sequences=replace(LIMITS, durable=True)),
}


@pytest.mark.parametrize("name", POLICIES)
def test_every_job_ends_once(name: str) -> None:
    from hypothesis.stateful import run_state_machine_as_test

    machine = type(name, (ShellMachine,), {"policy": POLICIES[name]})
    run_state_machine_as_test(machine, settings=settings(max_examples=examples(25), stateful_step_count=40))
