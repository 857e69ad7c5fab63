"""The shell around the scheduler, with workers that only note what they are given."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest

from torchserve_py.metrics.server_metrics import ServerMetrics
from torchserve_py.scheduling.effects import Cause
from torchserve_py.scheduling.job import Job
from torchserve_py.scheduling.policy import Policy, SequencePolicy
from torchserve_py.workers.dispatcher import Dispatcher
from torchserve_py.workers.parts import JobFailed, Parts
from torchserve_py.workers.worker import Worker

STREAM_BUFFER = 100


class FakeWorker:
    """A worker that answers when a test says so."""

    def __init__(self, worker_id: str) -> None:
        self.id = worker_id
        self.in_flight: set[str] = set()
        self.sent_at = 0.0
        self.loss_cause = Cause.worker_died
        self.batches: list[list[str]] = []
        self.cancelled: list[str] = []
        self.ended: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        self.paused = False

    def send(self, jobs: Sequence[Job], now: float) -> None:
        for job in jobs:
            job.payload[3].encode()
        self.in_flight.update(job.id for job in jobs)
        self.batches.append([job.payload[3] for job in jobs])

    def cancel(self, job_ids: Sequence[str]) -> None:
        self.cancelled += job_ids

    def end_sequence(self, sequence_id: str, reason: str) -> None:
        self.ended.put_nowait((sequence_id, reason))

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False


class Shell:
    """A dispatcher and its workers, ``w1``, ``w2``, …"""

    def __init__(self, policy: Policy, workers: int = 1) -> None:
        self.recorded: list[list[Any]] = []
        self.metrics = ServerMetrics()
        self.dispatcher = Dispatcher(
            policy,
            self.metrics.model("m", "1.0"),
            end_header="Ts_Request_Sequence_End",
            stream_buffer_size=STREAM_BUFFER,
            record_model_metrics=self.recorded.extend,
        )
        self.dispatcher.set_workers(workers)
        self.workers = [self.add_worker(f"w{number}") for number in range(1, workers + 1)]

    def add_worker(self, worker_id: str) -> FakeWorker:
        worker = FakeWorker(worker_id)
        self.dispatcher.worker_up(cast("Worker", worker))
        return worker

    def submit(self, body: str, **more: Any) -> Parts:
        return self.dispatcher.submit((), body, "text/plain", **more)

    def answer(
        self, worker: FakeWorker, parts: Parts, body: bytes = b"ok", *, more: bool = False, headers: Any = ()
    ) -> None:
        row = [parts.job.id, more, 200, "", headers, body, None]
        self.dispatcher.results(cast("Worker", worker), [row], 0.001)

    def lose(self, worker: FakeWorker) -> None:
        self.dispatcher.worker_lost(cast("Worker", worker))

    async def retire(self, worker: FakeWorker, limit: float) -> None:
        await self.dispatcher.retire(cast("Worker", worker), limit)


def stateless(**fields: Any) -> Policy:
    return Policy(batch_size=1, **fields)


def stateful(max_idle: float = 600.0) -> Policy:
    return Policy(batch_size=2, sequences=SequencePolicy(max_idle, queue_size=5, max_sequences=10))


async def cause_of(parts: Parts) -> Cause:
    with pytest.raises(JobFailed) as failed:
        await parts.next()
    return failed.value.cause


async def test_a_job_goes_to_a_worker_and_its_answer_to_its_reader() -> None:
    shell = Shell(stateless())
    (worker,) = shell.workers
    parts = shell.submit("hello")
    assert worker.batches == [["hello"]]
    shell.answer(worker, parts, b"hello back")
    part = await parts.next()
    assert (part.body, part.more, part.job_id) == (b"hello back", False, parts.job.id)
    assert not worker.in_flight


async def test_job_ids_are_version_4_uuids() -> None:
    shell = Shell(stateless())
    ids = {shell.submit("x").job.id for _ in range(50)}
    assert len(ids) == 50
    assert all(len(job_id) == 36 and job_id[14] == "4" and job_id[19] in "89ab" for job_id in ids)


async def test_what_waits_is_sent_when_the_worker_has_answered() -> None:
    shell = Shell(stateless())
    (worker,) = shell.workers
    first, _second = shell.submit("1"), shell.submit("2")
    assert (worker.batches, shell.dispatcher.queued) == ([["1"]], 1)
    shell.answer(worker, first, more=True)
    assert shell.dispatcher.queued == 1
    shell.answer(worker, first)
    assert (worker.batches, shell.dispatcher.queued) == ([["1"], ["2"]], 0)


async def test_without_workers_a_job_is_refused() -> None:
    shell = Shell(stateless(), workers=0)
    assert await cause_of(shell.submit("x")) is Cause.no_worker


async def test_a_full_queue_refuses() -> None:
    shell = Shell(stateless(queue_size=1))
    shell.submit("running")
    shell.submit("waiting")
    assert shell.dispatcher.remaining_capacity == 0
    assert await cause_of(shell.submit("refused")) is Cause.queue_full


# Readers who leave


async def test_a_waiting_job_whose_reader_leaves_is_never_sent() -> None:
    shell = Shell(stateless())
    (worker,) = shell.workers
    running, left = shell.submit("1"), shell.submit("2")
    left.cancel()
    shell.answer(worker, running)
    assert worker.batches == [["1"]]
    assert not worker.cancelled


async def test_a_running_job_whose_reader_leaves_is_cancelled_and_keeps_its_place_until_the_worker_answers() -> None:
    shell = Shell(stateless())
    (worker,) = shell.workers
    left, _next = shell.submit("1"), shell.submit("2")
    left.cancel()
    left.cancel()
    assert worker.cancelled == [left.job.id]
    assert worker.batches == [["1"]]
    shell.answer(worker, left)
    assert worker.batches == [["1"], ["2"]]


# Workers that come and go


async def test_when_a_worker_is_lost_its_jobs_fail_and_the_others_wait_for_the_next() -> None:
    shell = Shell(stateless())
    (worker,) = shell.workers
    worker.loss_cause = Cause.response_timeout
    running, waiting = shell.submit("1"), shell.submit("2")
    shell.lose(worker)
    shell.lose(worker)
    assert await cause_of(running) is Cause.response_timeout
    replacement = shell.add_worker("w1")
    assert replacement.batches == [["2"]]
    shell.lose(worker)  # the old one: nothing happens to the new one
    shell.answer(replacement, waiting)
    assert (await waiting.next()).body == b"ok"


async def test_answers_of_jobs_that_are_over_are_ignored() -> None:
    shell = Shell(stateless())
    (worker,) = shell.workers
    parts = shell.submit("1")
    shell.answer(worker, parts)
    shell.answer(worker, parts, b"again")
    assert (await parts.next()).body == b"ok"
    assert parts.buffered_bytes == 0


async def test_a_result_of_a_job_that_the_worker_does_not_have_is_refused_and_harms_nobody() -> None:
    shell = Shell(stateless(), workers=2)
    one, two = shell.workers
    running, other, waiting = shell.submit("1"), shell.submit("2"), shell.submit("3")
    for absurd in (other, waiting):
        for more in (True, False):
            with pytest.raises(ValueError, match=f"{absurd.job.id}, which it does not have"):
                shell.answer(one, absurd, b"absurd", more=more)
    shell.lose(one)
    assert await cause_of(running) is Cause.worker_died
    shell.answer(two, other, b"2")
    assert (await other.next()).body == b"2"
    assert two.batches == [["2"], ["3"]]
    shell.answer(two, waiting, b"3")
    assert (await waiting.next()).body == b"3"


async def test_a_request_that_cannot_be_sent_is_refused_and_its_batch_mates_are_sent() -> None:
    shell = Shell(Policy(batch_size=3, max_batch_delay=60.0))
    (worker,) = shell.workers
    jobs = [shell.submit(body) for body in ("a", "\udcff", "b")]
    assert worker.batches == [["a"], ["b"]]
    part = await jobs[1].next()
    assert (part.status, part.more) == (400, False)
    assert "surrogates not allowed" in str(part.error)
    for parts in (jobs[0], jobs[2]):
        shell.answer(worker, parts)
        assert (await parts.next()).body == b"ok"
    assert worker.in_flight == set()
    following = [shell.submit(body) for body in ("c", "d", "e")]
    assert worker.batches[-1] == ["c", "d", "e"]
    assert not any(parts.ended for parts in following)


async def test_a_worker_retires_when_it_has_answered_what_it_has() -> None:
    shell = Shell(stateless(), workers=2)
    one, two = shell.workers
    shell.submit("1")
    on_two = shell.submit("2")
    waiting = shell.submit("3")
    retired = asyncio.create_task(shell.retire(two, 60))
    await asyncio.sleep(0)
    assert not retired.done()
    shell.answer(two, on_two)
    await retired
    assert two.batches == [["2"]]
    assert (one.batches, shell.dispatcher.queued) == ([["1"]], 1)
    assert not waiting.ended


async def test_a_worker_that_does_not_answer_retires_at_its_limit() -> None:
    shell = Shell(stateless())
    (worker,) = shell.workers
    parts = shell.submit("1")
    await shell.retire(worker, 0.01)
    shell.lose(worker)
    assert await cause_of(parts) is Cause.worker_died


async def test_a_worker_that_dies_while_it_retires_holds_nobody_up() -> None:
    shell = Shell(stateless())
    (worker,) = shell.workers
    parts = shell.submit("1")
    retired = asyncio.create_task(shell.retire(worker, 60))
    await asyncio.sleep(0)
    shell.lose(worker)
    await retired
    assert await cause_of(parts) is Cause.worker_died


# Sequences


@pytest.mark.parametrize("name", ["ts_request_sequence_end", "Ts_Request_Sequence_End"])
async def test_a_response_header_ends_sequences(name: str) -> None:
    shell = Shell(stateful())
    (worker,) = shell.workers
    for sequence_id in ("a", "b", "c"):
        shell.answer(worker, shell.submit("x", sequence_id=sequence_id))
    last = shell.submit("y", sequence_id="a")
    shell.answer(worker, last, headers=[[name, "a; b;nobody"]])
    assert {worker.ended.get_nowait(), worker.ended.get_nowait()} == {("a", "ended"), ("b", "ended")}
    assert worker.ended.empty()


async def test_the_header_means_nothing_to_a_stateless_model() -> None:
    shell = Shell(stateless())
    (worker,) = shell.workers
    parts = shell.submit("x")
    shell.answer(worker, parts, headers=[["ts_request_sequence_end", "a"]])
    assert (await parts.next()).headers == [["ts_request_sequence_end", "a"]]
    assert worker.ended.empty()


async def test_an_idle_sequence_ends_without_anybody_asking() -> None:
    shell = Shell(stateful(max_idle=0.01))
    (worker,) = shell.workers
    shell.answer(worker, shell.submit("x", sequence_id="a"))
    assert await worker.ended.get() == ("a", "idle")
    assert await cause_of(shell.submit("y", sequence_id="a")) is Cause.sequence_expired


async def test_a_lost_worker_loses_its_sequences() -> None:
    shell = Shell(stateful())
    (worker,) = shell.workers
    shell.answer(worker, shell.submit("x", sequence_id="a"))
    shell.lose(worker)
    assert await cause_of(shell.submit("y", sequence_id="a")) is Cause.sequence_lost


# Time


async def test_a_job_that_expires_before_it_is_sent_never_is() -> None:
    shell = Shell(stateless())
    (worker,) = shell.workers
    running = shell.submit("1")
    expired = shell.submit("2", expires_in=0.01)
    assert await cause_of(expired) is Cause.client_timeout
    shell.answer(worker, running)
    assert worker.batches == [["1"]]


async def test_a_batch_leaves_when_it_has_waited_long_enough() -> None:
    shell = Shell(Policy(batch_size=8, max_batch_delay=0.01))
    (worker,) = shell.workers
    jobs = [shell.submit(str(number)) for number in range(3)]
    assert worker.batches == []
    async with asyncio.timeout(10):
        while not worker.batches:
            await asyncio.sleep(0)
    assert worker.batches == [["0", "1", "2"]]
    assert not any(job.ended for job in jobs)


# The end


async def test_draining_refuses_what_is_new_and_waits_for_the_rest() -> None:
    shell = Shell(stateful())
    (worker,) = shell.workers
    running = shell.submit("1", sequence_id="a")
    drained = asyncio.create_task(shell.dispatcher.drain(60))
    await asyncio.sleep(0)
    assert await cause_of(shell.submit("2", sequence_id="b")) is Cause.draining
    shell.answer(worker, running)
    await asyncio.sleep(0)
    assert not drained.done()
    last = shell.submit("3", sequence_id="a", ends_sequence=True)
    shell.answer(worker, last)
    assert await drained is True


async def test_draining_has_a_limit() -> None:
    shell = Shell(stateful())
    (worker,) = shell.workers
    shell.answer(worker, shell.submit("1", sequence_id="a"))
    assert await shell.dispatcher.drain(0.01) is False


async def test_finishing_waits_for_what_was_accepted_and_not_for_open_sequences() -> None:
    shell = Shell(stateful())
    running, waiting = (shell.submit(each, sequence_id="a") for each in "12")
    finished = asyncio.create_task(shell.dispatcher.finish(Cause.unregistered, 60))
    await asyncio.sleep(0)
    assert await cause_of(shell.submit("3", sequence_id="b")) is Cause.unregistered
    shell.answer(shell.workers[0], running)
    assert (await running.next()).body == b"ok"
    assert not finished.done()
    shell.answer(shell.workers[0], waiting)
    await asyncio.wait_for(finished, 60)
    assert (await waiting.next()).body == b"ok"


async def test_finishing_has_a_limit() -> None:
    shell = Shell(stateless())
    parts = shell.submit("1")
    await shell.dispatcher.finish(Cause.unregistered, 0.01)
    await shell.dispatcher.close(Cause.unregistered)
    assert await cause_of(parts) is Cause.unregistered


async def test_draining_an_idle_dispatcher_takes_no_time() -> None:
    assert await Shell(stateless()).dispatcher.drain(60) is True


async def test_closing_answers_everything_and_tells_every_sequence() -> None:
    shell = Shell(stateful())
    (worker,) = shell.workers
    running = shell.submit("1", sequence_id="a")
    waiting = shell.submit("2", sequence_id="a")
    await shell.dispatcher.close(Cause.unregistered)
    assert await cause_of(running) is Cause.unregistered
    assert await cause_of(waiting) is Cause.unregistered
    assert worker.ended.get_nowait() == ("a", "unregistered")
    assert await cause_of(shell.submit("3", sequence_id="a")) is Cause.unregistered
    shell.answer(worker, running)
    shell.lose(worker)
    assert worker.ended.empty()


async def test_closing_many_sequences_leaves_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchserve_py.workers.dispatcher._ENDED_AT_ONCE", 10)
    shell = Shell(Policy(batch_size=2, sequences=SequencePolicy(600.0, queue_size=5, max_sequences=100)))
    (worker,) = shell.workers
    for number in range(100):
        shell.answer(worker, shell.submit("1", sequence_id=f"s{number}"))
    running = shell.submit("1", sequence_id="s0")
    closing = asyncio.ensure_future(shell.dispatcher.close(Cause.unregistered))
    await asyncio.sleep(0)
    assert await cause_of(running) is Cause.unregistered  # jobs end at once
    assert await cause_of(shell.submit("2", sequence_id="s50")) is Cause.unregistered
    assert not closing.done()
    await closing
    ended = [worker.ended.get_nowait() for _ in range(100)]
    assert sorted(ended) == sorted((f"s{number}", "unregistered") for number in range(100))
    assert worker.ended.empty()


# Slow readers


async def test_a_worker_waits_for_the_only_reader_that_it_serves() -> None:
    shell = Shell(stateless())
    (worker,) = shell.workers
    parts = shell.submit("stream")
    paused = []
    for body in (b"x" * STREAM_BUFFER, b"x"):
        shell.answer(worker, parts, body, more=True)
        paused.append(worker.paused)
    await parts.next()
    assert [*paused, worker.paused] == [False, True, False]


async def test_a_slow_reader_that_leaves_does_not_leave_its_worker_waiting() -> None:
    shell = Shell(stateless())
    (worker,) = shell.workers
    parts = shell.submit("stream")
    shell.answer(worker, parts, b"x" * (STREAM_BUFFER + 1), more=True)
    paused = worker.paused
    parts.cancel()
    assert [paused, worker.paused] == [True, False]


async def test_a_slow_reader_is_given_up_when_others_need_its_worker() -> None:
    shell = Shell(Policy(batch_size=2, continuous=True))
    (worker,) = shell.workers
    slow, quick = shell.submit("slow"), shell.submit("quick")
    sent = 0
    while not slow.ended:
        shell.answer(worker, slow, b"x" * STREAM_BUFFER, more=True)
        sent += STREAM_BUFFER
        assert not worker.paused
        assert sent <= 10 * STREAM_BUFFER
    assert worker.cancelled == [slow.job.id]
    shell.answer(worker, quick)
    assert (await quick.next()).body == b"ok"
    while slow.buffered_bytes:
        await slow.next()
    assert await cause_of(slow) is Cause.cancelled


# Metrics


async def test_what_handlers_measure_is_passed_on() -> None:
    shell = Shell(stateless())
    shell.dispatcher.model_metrics([["name", "ms", "GAUGE", 1.0, [], None]])
    assert shell.recorded == [["name", "ms", "GAUGE", 1.0, [], None]]


async def test_what_happens_is_counted() -> None:
    shell = Shell(stateful())
    (worker,) = shell.workers
    shell.answer(worker, shell.submit("x", sequence_id="a"))
    shell.answer(worker, shell.submit("x", sequence_id="b", ends_sequence=True))
    text = shell.metrics.expose(None).decode()
    samples = {line.partition("{")[0] + (" ended" if '"ended"' in line else ""): line for line in text.splitlines()}
    assert samples["ts_open_sequences"].endswith(" 1.0")
    assert samples["ts_sequences_closed_total ended"].endswith(" 1.0")


async def test_a_job_of_which_nothing_was_heard_is_ended_and_its_mates_go_on() -> None:
    shell = Shell(Policy(batch_size=4, continuous=True))
    (worker,) = shell.workers
    silent, mate = shell.submit("silent"), shell.submit("mate")
    shell.dispatcher.jobs_overdue([silent.job.id, "answered meanwhile"])
    assert await cause_of(silent) is Cause.response_timeout
    assert worker.cancelled == [silent.job.id]
    shell.answer(worker, mate)
    assert (await mate.next()).body == b"ok"
    shell.answer(worker, silent)
    assert worker.in_flight == set()


async def test_jobs_are_counted_by_how_they_ended():
    shell = Shell(Policy(batch_size=1))
    (worker,) = shell.workers
    answered, refused, given_up = shell.submit("a"), shell.submit("b"), shell.submit("c")
    shell.answer(worker, answered)
    shell.dispatcher.results(worker, [[refused.job.id, False, 400, "", [], b"", "no"]], 0.25)
    given_up.cancel()
    outcomes = shell.dispatcher.metrics.outcomes
    assert (outcomes.succeeded, outcomes.failed) == (1, 2)
    assert outcomes.executions[1][0] >= 1
    assert outcomes.last_at > 0


@pytest.mark.parametrize(
    ("cause", "ended"),
    [
        (Cause.sequence_lost, [("s", "evicted")]),
        (Cause.sequence_expired, [("s", "idle")]),
        (Cause.sequence_moved, [("s", "suspended")]),
        (Cause.sequence_store, []),
        (Cause.request_running, []),
    ],
)
async def test_a_step_that_the_worker_does_not_apply_fails_with_its_cause(
    cause: Cause, ended: list[tuple[str, str]]
) -> None:
    shell = Shell(stateful())
    (worker,) = shell.workers
    parts = shell.submit("a", sequence_id="s")
    row = [parts.job.id, False, 409, "", [["ts-error-cause", cause.value]], b"", "why"]
    shell.dispatcher.results(cast("Worker", worker), [row], 0.0)
    assert await cause_of(parts) is cause
    assert not worker.in_flight
    assert [worker.ended.get_nowait() for _ in range(worker.ended.qsize())] == ended


async def test_jobs_of_stored_sequences_go_from_a_lost_worker_to_another() -> None:
    shell = Shell(Policy(sequences=SequencePolicy(600.0, queue_size=5, max_sequences=10, durable=True)), workers=2)
    first, second = shell.workers
    parts = shell.submit("a", sequence_id="s")
    shell.lose(first)
    assert second.batches == [["a"]]
    shell.answer(second, parts, b"done")
    assert (await parts.next()).body == b"done"
