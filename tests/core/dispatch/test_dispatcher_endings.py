"""How a worker retires, and how a dispatcher drains, finishes and closes."""

import asyncio

import pytest
from tests.core.dispatch.shell import Shell, cause_of, stateful, stateless, told

from torchserve_py.base.causes import Cause
from torchserve_py.core.dispatch import dispatcher
from torchserve_py.core.jobs.call import Call, SequenceRequest
from torchserve_py.core.scheduling.closed import ClosedSequences, ClosedTokens
from torchserve_py.core.scheduling.policy import Policy, SequencePolicy
from torchserve_py.core.scheduling.remembered import Remembered


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
    assert (one.batches, shell.dispatcher.scheduler.queued) == ([["1"]], 1)
    assert not waiting.ended


async def test_a_worker_that_does_not_answer_retires_at_its_limit() -> None:
    shell = Shell(stateless())
    (worker,) = shell.workers
    parts = shell.submit("1")
    await shell.retire(worker, 0.01)
    shell.lose(worker)
    shell.dispatcher.set_workers(0)
    assert await cause_of(parts) is Cause.worker_died


async def test_a_worker_that_dies_while_it_retires_holds_nobody_up() -> None:
    shell = Shell(stateless())
    (worker,) = shell.workers
    parts = shell.submit("1")
    retired = asyncio.create_task(shell.retire(worker, 60))
    await asyncio.sleep(0)
    shell.lose(worker)
    await retired
    shell.dispatcher.set_workers(0)
    assert await cause_of(parts) is Cause.worker_died


async def test_a_worker_can_be_retired_twice() -> None:
    shell = Shell(stateless())
    (worker,) = shell.workers
    parts = shell.submit("1")
    both = asyncio.gather(shell.retire(worker, 60), shell.retire(worker, 60))
    await asyncio.sleep(0)
    shell.answer(worker, parts)
    await asyncio.wait_for(both, 30)


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
    finished = asyncio.create_task(shell.dispatcher.drain(60, Cause.unregistered))
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
    await shell.dispatcher.drain(0.01, Cause.unregistered)
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
    assert worker.ended_sequences.get_nowait() == ("a", "unregistered")
    assert await cause_of(shell.submit("3", sequence_id="a")) is Cause.unregistered
    shell.answer(worker, running)
    shell.lose(worker)
    assert worker.ended_sequences.empty()


async def test_closing_many_sequences_leaves_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchserve_py.core.dispatch.dispatcher._ENDED_AT_ONCE", 10)
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
    ended = [worker.ended_sequences.get_nowait() for _ in range(100)]
    assert sorted(ended) == sorted((f"s{number}", "unregistered") for number in range(100))
    assert worker.ended_sequences.empty()


@pytest.mark.parametrize("drains_first", [True, False])
async def test_the_server_may_end_while_a_model_finishes(drains_first: bool) -> None:
    shell = Shell(stateful())
    (worker,) = shell.workers
    shell.answer(worker, shell.submit("1", sequence_id="stays open"))
    running = shell.submit("2", sequence_id="a")
    ways = [shell.dispatcher.drain(60), shell.dispatcher.drain(60, Cause.unregistered)]
    both = asyncio.gather(*(ways if drains_first else reversed(ways)))
    await asyncio.sleep(0)
    shell.answer(worker, running)
    await asyncio.wait_for(both, 30)


async def test_finishing_without_jobs_ends_a_drain_that_waits_for_sequences() -> None:
    shell = Shell(stateful())
    shell.answer(shell.workers[0], shell.submit("1", sequence_id="stays open"))
    draining = asyncio.create_task(shell.dispatcher.drain(60))
    await asyncio.sleep(0)
    await shell.dispatcher.drain(60, Cause.unregistered)
    assert await asyncio.wait_for(draining, 30) is True


async def test_a_token_that_the_worker_made_up_is_known_after_the_end() -> None:
    shell = Shell(stateful())
    (worker,) = shell.workers
    first = shell.submit("1", "s")
    shell.answer(worker, first, news=told(token="t"))
    shell.dispatcher.close_sequence("s", keep_stored=False)
    late = Call((), "1", "text/plain", sequence=SequenceRequest("s", True, False, (), 1, "t"))
    assert await cause_of(shell.run(late)) is Cause.step_applied
    assert worker.batches == [["1"]]


async def test_what_fails_in_the_server_for_one_job_costs_neither_the_worker_nor_other_jobs() -> None:
    def fail(*of_job: object) -> None:
        raise RuntimeError("the span cannot be ended")

    shell = Shell(Policy(batch_size=2))
    (worker,) = shell.workers
    occupying = shell.submit("occupying")
    doomed = Call((), "doomed", "text/plain")
    doomed.on_end = fail
    shell.run(doomed)
    other = shell.submit("other")
    shell.answer(worker, occupying)
    ok = (False, 200, "", [], b"ok", None, None)
    shell.results(worker, [[parts.id, *ok] for parts in (doomed, other)])  # raises nothing
    assert [(await parts.next()).body for parts in (doomed, other)] == [b"ok", b"ok"]
    assert not worker.in_flight


async def test_an_effect_that_fails_loses_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    shell = Shell(stateless(), workers=2)
    one, two = shell.workers
    running = [shell.submit("1"), shell.submit("2")]
    waiting = shell.submit("3"), shell.submit("4")

    def fail(job_ids: object) -> None:
        raise RuntimeError("the connection is confused")

    monkeypatch.setattr(one, "cancel", fail)
    await shell.dispatcher.close(Cause.unregistered)
    assert two.cancelled == [running[1].id]
    assert [await cause_of(parts) for parts in (*running, *waiting)] == [Cause.unregistered] * 4


async def test_a_batch_that_cannot_be_sent_is_answered_and_the_worker_serves_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shell = Shell(stateless())
    (worker,) = shell.workers

    def fail(*arguments: object) -> None:
        raise RuntimeError("encoding failed")

    monkeypatch.setattr(worker, "send", fail)
    parts = shell.submit("lost")
    monkeypatch.undo()
    waiting = shell.submit("next")
    part = await asyncio.wait_for(parts.next(), 60)
    assert (part.status, part.error) == (500, "The server failed to send the request to a worker; its log says why.")
    shell.answer(worker, waiting)
    assert (await waiting.next()).body == b"ok"


async def test_a_result_that_the_server_fails_to_handle_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    shell = Shell(stateful())
    (worker,) = shell.workers
    parts = shell.submit("1", "s")

    def fail(news: object, *, durable: bool) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(dispatcher, "cause_of", fail)
    shell.answer(worker, parts, news=told(cause="sequence_lost"))
    assert (await parts.next()).status == 500
    monkeypatch.undo()
    following = shell.submit("2", "s")
    shell.answer(worker, following)
    assert (await following.next()).body == b"ok"


async def test_sequences_that_are_forgotten_before_their_time_are_counted_and_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    over = ClosedSequences(3600.0)
    over.tokens = ClosedTokens(Remembered(3600.0, most=2, segment=1))
    shell = Shell(stateful(), over=over)
    (worker,) = shell.workers
    for number in range(5):
        parts = shell.submit("x", f"s{number}", ends_sequence=True)
        shell.answer(worker, parts, news=told(token=f"t{number}"))
    assert shell.dispatcher.metrics.sequences_forgotten.value == 3
    assert len([each for each in caplog.records if "rememberEndedSec" in each.message]) == 1
