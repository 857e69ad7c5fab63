"""A dispatcher with workers that only note what they are given."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from torchserve_py.base.causes import Cause
from torchserve_py.base.metrics.server_metrics import ServerMetrics
from torchserve_py.core.dispatch.dispatcher import Dispatcher
from torchserve_py.core.jobs.batch_encoding import encode_batch
from torchserve_py.core.jobs.call import Call, SequenceRequest
from torchserve_py.core.jobs.parts import Input, JobFailed, part_of
from torchserve_py.core.scheduling.closed import ClosedSequences
from torchserve_py.core.scheduling.policy import Policy, SequencePolicy
from torchserve_py.core.workers.worker import Worker
from torchserve_py.net.running_time import running_time

STREAM_BUFFER = 100


class FakeWorker:
    """A worker that answers when a test says so."""

    def __init__(self, worker_id: str, dispatcher: Dispatcher) -> None:
        self.id = worker_id
        self.dispatcher = dispatcher
        self.sent_at = 0.0
        self.loss_cause, self.left_unread = Cause.worker_died, False
        self.ended: asyncio.Future[str] = asyncio.Future()
        self.ended.set_result("exited with code 3")
        self.batches: list[list[str]] = []
        self.ahead: list[list[str]] = []
        self.cancelled: list[str] = []
        self.inputs: list[tuple[str, bool, bytes]] = []
        self.ended_sequences: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        self.paused = False
        self.hands_over = False

    @property
    def in_flight(self) -> set[str]:
        """The jobs that the worker has, as the dispatcher knows them."""
        return set(self.dispatcher.jobs_of(cast("Worker", self)))

    def send(self, jobs: Sequence[Call], moment_of: Callable[[float], float] | None) -> None:
        self.batches.append(_sent(jobs))

    def send_ahead(self, jobs: Sequence[Call], moment_of: Callable[[float], float] | None, *, joins: bool) -> None:
        self.ahead.append(_sent(jobs))

    def take_back(self) -> int:
        not_begun = len(self.ahead)
        self.ahead.clear()
        return not_begun

    def begin(self, now: float) -> None:
        if self.ahead:
            self.batches.append([body for bodies in self.ahead for body in bodies])
            self.ahead.clear()

    def cancel(self, job_ids: Sequence[str]) -> None:
        self.cancelled += job_ids

    def send_input(self, job_id: str, given: Input) -> None:
        self.inputs.append((job_id, *given))

    def end_sequence(self, sequence_id: str, reason: str, moment: float) -> None:
        self.ended_sequences.put_nowait((sequence_id, reason))

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False


def _sent(jobs: Sequence[Call]) -> list[str]:
    """Return the bodies that a worker is sent."""
    encode_batch(jobs, None)
    return [job.body for job in jobs if job.refusal is None]


class Shell:
    """A version's dispatcher and its workers, ``w1``, ``w2``, …"""

    def __init__(
        self, policy: Policy, workers: int = 1, over: ClosedSequences | None = None, version: str = "1"
    ) -> None:
        self.version = version
        self.is_stateful = policy.sequences is not None
        self.recorded: list[list[Any]] = []
        self.metrics = ServerMetrics()
        self.dispatcher = Dispatcher(
            policy,
            self.metrics.model("m", "1.0"),
            stream_buffer_size=STREAM_BUFFER,
            record_model_metrics=self.recorded.extend,
            over=over,
        )
        self.dispatcher.set_workers(workers)
        self.workers = [self.add_worker(f"w{number}") for number in range(1, workers + 1)]

    def add_worker(self, worker_id: str) -> FakeWorker:
        worker = FakeWorker(worker_id, self.dispatcher)
        self.dispatcher.worker_up(cast("Worker", worker))
        return worker

    def submit(
        self, body: str, sequence_id: str | None = None, *, ends_sequence: bool = False, expires_in: float | None = None
    ) -> Call:
        sequence = None if sequence_id is None else SequenceRequest(sequence_id, False, ends_sequence, ())
        return self.run(Call((), body, "text/plain", sequence=sequence, expires_in=expires_in))

    def run(self, call: Call) -> Call:
        """Submit a call, and return it."""
        self.dispatcher.submit(call)
        return call

    def answer(
        self, worker: FakeWorker, parts: Call, body: bytes = b"ok", *, more: bool = False, news: Any = None
    ) -> None:
        self.result(worker, parts.id, more, 200, "", [], body, None, news=news)

    def result(self, worker: FakeWorker, *fields: Any, news: Any = None) -> None:
        """The worker sends one row of these fields."""
        self.results(worker, [[*fields, news]])

    def results(self, worker: FakeWorker, rows: list[list[Any]]) -> None:
        """The worker sends these rows together."""
        parts, now = [part_of(row) for row in rows], running_time().now()
        self.dispatcher.results(cast("Worker", worker), parts, 0.001, now)

    def lose(self, worker: FakeWorker) -> None:
        self.dispatcher.worker_lost(cast("Worker", worker))

    async def retire(self, worker: FakeWorker, limit: float) -> None:
        await self.dispatcher.retire(cast("Worker", worker), limit)


def told(
    cause: str = "",
    ended: Sequence[str] = (),
    token: str = "",
    version: str = "",
    state_size: int = 0,
    migration: str = "",
    last: int = 0,
) -> list[Any]:
    """Return what a row tells of sequences, as it arrives."""
    return [cause, [*ended], token, version, state_size, migration, last]


def stateless(**fields: Any) -> Policy:
    return Policy(batch_size=1, **fields)


def stateful(max_idle: float = 600.0) -> Policy:
    return Policy(batch_size=2, sequences=SequencePolicy(max_idle, queue_size=5, max_sequences=10))


def durable() -> Policy:
    return Policy(batch_size=1, sequences=SequencePolicy(600.0, queue_size=5, max_sequences=10, durable=True))


async def cause_of(parts: Call) -> Cause:
    with pytest.raises(JobFailed) as failed:
        await parts.next()
    return failed.value.cause
