"""The shell around the scheduler: jobs to workers, answers to readers."""

import asyncio
from typing import Any

import pytest
from tests.base.metrics.exposition import exposed
from tests.core.dispatch.shell import Shell, cause_of, durable, stateful, stateless, told

from torchserve_py.base.causes import Cause
from torchserve_py.core.jobs.call import Call
from torchserve_py.core.scheduling.policy import Policy


async def test_a_job_goes_to_a_worker_and_its_answer_to_its_reader() -> None:
    shell = Shell(stateless())
    (worker,) = shell.workers
    parts = shell.submit("hello")
    assert worker.batches == [["hello"]]
    shell.answer(worker, parts, b"hello back")
    part = await parts.next()
    assert (part.body, part.more, part.job_id) == (b"hello back", False, parts.id)
    assert not worker.in_flight


async def test_job_ids_are_version_4_uuids() -> None:
    shell = Shell(stateless())
    ids = {shell.submit("x").id for _ in range(50)}
    assert len(ids) == 50
    assert all(len(job_id) == 36 and job_id[14] == "4" and job_id[19] in "89ab" for job_id in ids)


async def test_what_waits_is_sent_when_the_worker_has_answered() -> None:
    shell = Shell(stateless())
    (worker,) = shell.workers
    first, _second = shell.submit("1"), shell.submit("2")
    assert (worker.batches, shell.dispatcher.scheduler.queued) == ([["1"]], 1)
    shell.answer(worker, first, more=True)
    assert shell.dispatcher.scheduler.queued == 1
    shell.answer(worker, first)
    assert (worker.batches, shell.dispatcher.scheduler.queued) == ([["1"], ["2"]], 0)


async def test_without_workers_a_job_is_refused() -> None:
    shell = Shell(stateless(), workers=0)
    assert await cause_of(shell.submit("x")) is Cause.no_worker


async def test_a_request_that_is_refused_from_the_start_is_counted_and_starts_no_worker() -> None:
    shell, started, ended = Shell(stateless(), workers=0), list[str](), list[object]()
    shell.dispatcher.on_waiting = lambda: started.append("a worker")
    call = Call((), b"")
    call.on_end = lambda record, last: ended.append(record.told)
    shell.dispatcher.submit(call, Cause.rate_limited)
    assert await cause_of(call) is Cause.rate_limited
    assert (started, ended) == ([], [Cause.rate_limited])
    shell.metrics.fold()
    assert shell.dispatcher.metrics.request_seconds.sum == 0, "it has taken no time"


async def test_a_job_that_is_kept_until_it_is_counted_keeps_no_body() -> None:
    shell = Shell(stateless())
    (worker,) = shell.workers
    answered, cancelled = shell.submit("one"), shell.submit("two")
    assert answered.body
    cancelled.cancel()
    shell.answer(worker, answered, b"answer")
    kept = shell.dispatcher.metrics.jobs
    assert kept == [cancelled, answered]
    assert [each.body for each in (cancelled, answered)] == [None, None]
    assert [(each.told, each.succeeded) for each in kept] == [(Cause.cancelled, False), (200, True)]
    shell.metrics.fold()
    assert kept == []


async def test_a_full_queue_refuses() -> None:
    shell = Shell(stateless(queue_size=1))
    shell.submit("running")
    shell.submit("waiting")
    assert shell.dispatcher.scheduler.remaining_capacity == 0
    assert await cause_of(shell.submit("refused")) is Cause.queue_full


async def test_the_times_until_the_first_part_of_a_stream_and_between_parts_are_counted() -> None:
    shell = Shell(stateless())
    (worker,) = shell.workers
    metrics = shell.dispatcher.metrics
    for more in (0, 1, 3):
        parts = shell.submit("x")
        for _ in range(more):
            shell.answer(worker, parts, more=True)
        shell.answer(worker, parts)
    metrics.fold()
    assert sum(metrics.first_part_seconds.counts) == 2
    assert sum(metrics.next_part_seconds.counts) == 2, "the last part may only end the stream"


async def test_jobs_that_have_ended_are_told_with_their_ids() -> None:
    told: list[tuple[str, str, str, str | None, str | None, str]] = []
    shell = Shell(stateless())
    (worker,) = shell.workers
    shell.metrics.followers.append(
        lambda name, version, jobs: told.extend(
            (name, version, each.id, each.trace_id, each.sequence_id, each.worker_id) for each in jobs
        )
    )
    parts = shell.submit("x")
    shell.answer(worker, parts)
    shell.metrics.fold()
    shell.metrics.fold()
    assert told == [("m", "1.0", parts.id, None, None, worker.id)]


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


@pytest.mark.parametrize("size", [10, 2**20])
async def test_a_worker_that_had_not_read_a_job_may_have_died_of_a_large_one(size: int) -> None:
    shell = Shell(stateless(), workers=3)
    job = shell.submit("x" * size)
    for worker in shell.workers:
        worker.left_unread = True
        shell.lose(worker)
    assert (job.ended, job.sends) == ((False, 1) if size == 10 else (True, 2))


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
            with pytest.raises(ValueError, match=f"{absurd.id}, which it does not have"):
                shell.answer(one, absurd, b"absurd", more=more)
    shell.lose(one)
    shell.answer(two, other, b"2")
    assert (await other.next()).body == b"2"
    assert two.batches == [["2"], ["1"]]
    shell.answer(two, running, b"1")
    assert (await running.next()).body == b"1"
    assert two.batches == [["2"], ["1"], ["3"]]
    shell.answer(two, waiting, b"3")
    assert (await waiting.next()).body == b"3"


async def test_a_request_that_cannot_be_sent_is_refused_and_its_batch_mates_are_sent() -> None:
    shell = Shell(Policy(batch_size=3, max_batch_delay=60.0))
    (worker,) = shell.workers
    jobs = [shell.submit(body) for body in ("a", "\udcff", "b")]
    assert worker.batches == [["a", "b"]]
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


@pytest.mark.parametrize("is_durable", [False, True])
async def test_a_request_that_cannot_be_sent_ends_once_although_its_worker_is_lost_meanwhile(is_durable: bool) -> None:
    shell = Shell(durable() if is_durable else stateful(), workers=2)
    errors: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: errors.append(context))
    parts = shell.submit("\udcff", sequence_id="s")
    shell.lose(shell.workers[0])
    if is_durable:
        assert (await parts.next()).status == 400
    else:
        assert await cause_of(parts) is Cause.worker_died
    await asyncio.sleep(0)
    assert not errors
    assert not any(worker.in_flight for worker in shell.workers)


# Batches ahead


async def test_a_job_is_timed_once_its_worker_begins() -> None:
    shell = Shell(stateless(ahead=True))
    (worker,) = shell.workers
    first, second = shell.submit("a"), shell.submit("b")
    assert worker.ahead == [["b"]]
    assert worker.in_flight == {first.id}
    assert shell.dispatcher.scheduler.queued == 1
    shell.answer(worker, first)
    assert worker.batches == [["a"], ["b"]]
    assert worker.in_flight == {second.id}
    shell.answer(worker, second)
    assert (await second.next()).body == b"ok"


async def test_what_a_lost_worker_was_sent_ahead_goes_to_another() -> None:
    shell = Shell(stateless(ahead=True))
    (worker,) = shell.workers
    first, second = shell.submit("a"), shell.submit("b")
    shell.lose(worker)
    other = shell.add_worker("w2")
    assert (other.batches, other.ahead) == ([["a"]], [])
    shell.answer(other, first)
    assert other.batches == [["a"], ["b"]]
    shell.answer(other, second)
    assert (await second.next()).body == b"ok"


async def test_what_cannot_be_sent_ahead_is_refused_once_its_batch_begins() -> None:
    shell = Shell(Policy(batch_size=2, ahead=True))
    (worker,) = shell.workers
    first = shell.submit("a")
    bad, good = shell.submit("\udcff"), shell.submit("b")
    assert worker.ahead == [[], ["b"]]
    shell.answer(worker, first)
    part = await bad.next()
    assert (part.status, part.more) == (400, False)
    shell.answer(worker, good)
    assert (await good.next()).body == b"ok"
    assert worker.in_flight == set()


# Sequences


async def test_a_handler_ends_sequences() -> None:
    shell = Shell(stateful())
    (worker,) = shell.workers
    for sequence_id in ("a", "b", "c"):
        shell.answer(worker, shell.submit("x", sequence_id=sequence_id))
    last = shell.submit("y", sequence_id="a")
    shell.answer(worker, last, news=told(ended=["a", "b", "nobody"]))
    assert {worker.ended_sequences.get_nowait(), worker.ended_sequences.get_nowait()} == {
        ("a", "ended"),
        ("b", "ended"),
    }
    assert worker.ended_sequences.empty()


async def test_followers_are_told_how_large_the_state_is_that_a_step_has_written() -> None:
    shell = Shell(stateful())
    (worker,) = shell.workers
    sizes: list[int] = []
    shell.metrics.followers.append(lambda _name, _version, jobs: sizes.extend(job.state_size for job in jobs))
    shell.answer(worker, shell.submit("x", sequence_id="a"), news=told(token="t", state_size=1500))
    shell.answer(worker, shell.submit("y", sequence_id="a"))
    shell.metrics.fold()
    assert sizes == [1500, 0]


async def test_what_a_stateless_model_tells_of_sequences_means_nothing() -> None:
    shell = Shell(stateless())
    (worker,) = shell.workers
    parts = shell.submit("x")
    shell.answer(worker, parts, news=told("sequence_held", ["a"], "t", "2"))
    assert (await parts.next()).body == b"ok"
    assert worker.ended_sequences.empty()


async def test_an_idle_sequence_ends_without_anybody_asking() -> None:
    shell = Shell(stateful(max_idle=0.01))
    (worker,) = shell.workers
    shell.answer(worker, shell.submit("x", sequence_id="a"))
    assert await worker.ended_sequences.get() == ("a", "idle")
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


async def test_a_job_whose_client_gives_up_before_it_is_sent_never_is() -> None:
    shell = Shell(stateless())
    (worker,) = shell.workers
    running = shell.submit("1")
    given_up = shell.run(Call((), "2", answer_in=0.01, expires_in=60.0))
    assert await cause_of(given_up) is Cause.client_timeout
    shell.answer(worker, running)
    assert worker.batches == [["1"]]


async def test_no_answer_is_too_late_where_the_client_decides_how_long_a_job_runs() -> None:
    shell = Shell(stateless())
    for more_input in (False, True):
        shell.dispatcher.submit(Call((), "x", answer_in=60.0, open_ended=more_input))
    first, open_ended = shell.dispatcher.scheduler.jobs.values()
    assert first.answer_by is not None
    assert open_ended.answer_by is None
    assert first.expires_at is not None
    assert open_ended.expires_at is not None


async def test_a_batch_leaves_when_it_has_waited_long_enough() -> None:
    shell = Shell(Policy(batch_size=8, max_batch_delay=0.01))
    (worker,) = shell.workers
    now = 1000.0
    shell.dispatcher.now = lambda: now
    jobs = [shell.submit(str(number)) for number in range(3)]
    assert worker.batches == []
    now += 0.01
    async with asyncio.timeout(60):
        while not worker.batches:
            await asyncio.sleep(0)
    assert worker.batches == [["0", "1", "2"]]
    assert not any(job.ended for job in jobs)


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
    text = exposed(shell.metrics).decode()
    samples = {line.partition("{")[0] + (" ended" if '"ended"' in line else ""): line for line in text.splitlines()}
    assert samples["ts_open_sequences"].endswith(" 1.0")
    assert samples["ts_sequences_closed_total ended"].endswith(" 1.0")


async def test_a_job_of_which_nothing_was_heard_is_ended_and_its_mates_go_on() -> None:
    shell = Shell(Policy(batch_size=4, continuous=True))
    (worker,) = shell.workers
    silent, mate = shell.submit("silent"), shell.submit("mate")
    answered = shell.submit("answered meanwhile")
    jobs = dict(shell.dispatcher._jobs)
    shell.answer(worker, answered)
    for parts in (silent, answered):
        shell.dispatcher.cancel(jobs[parts.id], Cause.response_timeout)
    assert (await answered.next()).body == b"ok"
    assert await cause_of(silent) is Cause.response_timeout
    assert worker.cancelled == [silent.id]
    shell.answer(worker, mate)
    assert (await mate.next()).body == b"ok"
    shell.answer(worker, silent)
    assert worker.in_flight == set()


async def test_jobs_are_counted_by_how_they_ended():
    shell = Shell(Policy(batch_size=1))
    (worker,) = shell.workers
    answered, refused, given_up = shell.submit("a"), shell.submit("b"), shell.submit("c")
    shell.answer(worker, answered)
    shell.result(worker, refused.id, False, 400, "", [], b"", "no")
    given_up.cancel()
    shell.dispatcher.metrics.fold()
    outcomes = shell.dispatcher.metrics.outcomes
    assert (outcomes.succeeded, outcomes.failed) == (1, 1), "what the handler refuses is the client's mistake"
    assert outcomes.failures == {"refused_by_handler": 1, "cancelled": 1}
    assert outcomes.executions[1][0] >= 1
    assert outcomes.last_at > 0


@pytest.mark.parametrize(("policy", "reason"), [(stateful(), "ended"), (durable(), "suspended")])
async def test_a_sequence_whose_only_step_has_failed_takes_no_room(policy: Policy, reason: str) -> None:
    shell = Shell(policy)
    (worker,) = shell.workers
    refused = shell.submit("a", sequence_id="s")
    shell.result(worker, refused.id, False, 400, "", [], b"", "no number")
    assert [worker.ended_sequences.get_nowait() for _ in range(worker.ended_sequences.qsize())] == [("s", reason)]
    assert shell.dispatcher.scheduler.open_sequences == 0
    again = shell.submit("b", sequence_id="s")  # it may begin all the same
    shell.answer(worker, again)
    assert (await again.next()).body == b"ok"
    failed = shell.submit("c", sequence_id="s")
    shell.result(worker, failed.id, False, 400, "", [], b"", "no number")
    assert worker.ended_sequences.empty(), "an earlier step has succeeded"
    assert shell.dispatcher.scheduler.open_sequences == 1


@pytest.mark.parametrize(
    ("cause", "ended"),
    [
        (Cause.sequence_lost, [("s", "evicted")]),
        (Cause.sequence_expired, [("s", "idle")]),
        (Cause.sequence_moved, [("s", "suspended")]),
        (Cause.sequence_store, [("s", "ended")]),
        (Cause.request_running, [("s", "ended")]),
    ],
)
async def test_a_step_that_the_worker_does_not_apply_fails_with_its_cause(
    cause: Cause, ended: list[tuple[str, str]]
) -> None:
    shell = Shell(durable() if cause is Cause.sequence_moved else stateful())  # what only memory has does not move
    (worker,) = shell.workers
    parts = shell.submit("a", sequence_id="s")
    shell.result(worker, parts.id, False, 409, "", [], b"", "why", news=told(cause.value))
    assert await cause_of(parts) is cause
    assert not worker.in_flight
    assert [worker.ended_sequences.get_nowait() for _ in range(worker.ended_sequences.qsize())] == ended


async def test_jobs_of_stored_sequences_go_from_a_lost_worker_to_another() -> None:
    shell = Shell(durable(), workers=2)
    first, second = shell.workers
    parts = shell.submit("a", sequence_id="s")
    shell.lose(first)
    assert second.batches == [["a"]]
    shell.answer(second, parts, b"done")
    assert (await parts.next()).body == b"done"


END = told(ended=["s"])
NOT_STORED = told("sequence_store")


@pytest.mark.parametrize("news", [NOT_STORED, told("handler_error"), None, END])
async def test_a_step_of_a_stored_sequence_that_fails_ends_nothing(news: list[Any] | None) -> None:
    shell = Shell(durable())
    (worker,) = shell.workers
    shell.answer(worker, shell.submit("a", sequence_id="s"))
    last = shell.submit("b", sequence_id="s", ends_sequence=True)
    shell.result(worker, last.id, False, 503, "", [], b"", "why", news=news)
    assert worker.ended_sequences.empty()
    streamed = shell.submit("c", sequence_id="s")
    shell.answer(worker, streamed, more=True, news=END)
    assert worker.ended_sequences.empty()
    shell.result(worker, streamed.id, False, 503, "", [], b"", "why")
    assert worker.ended_sequences.empty()
    streamed = shell.submit("d", sequence_id="s")
    shell.answer(worker, streamed, more=True, news=END)
    shell.answer(worker, streamed)
    assert worker.ended_sequences.get_nowait() == ("s", "ended")


@pytest.mark.parametrize(("error", "ended"), [("cancelled", [("s", "suspended")]), (None, [("s", "ended")])])
async def test_a_stored_sequence_that_ends_in_a_cancelled_stream_ends_if_its_step_is_kept(
    error: str | None, ended: list[tuple[str, str]]
) -> None:
    shell = Shell(durable())
    (worker,) = shell.workers
    streamed = shell.submit("a", sequence_id="s")
    shell.answer(worker, streamed, more=True)
    streamed.cancel()
    shell.answer(worker, streamed, more=True, news=END)
    assert worker.ended_sequences.empty()
    shell.result(worker, streamed.id, False, 200 if error is None else 499, "", [], b"", error)
    assert [worker.ended_sequences.get_nowait() for _ in range(worker.ended_sequences.qsize())] == ended
    following = shell.submit("b", sequence_id="s")
    shell.answer(worker, following)
    assert (await following.next()).body == b"ok"
