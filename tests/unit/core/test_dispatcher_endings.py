"""How a worker retires, and how a dispatcher drains, finishes and closes."""

import asyncio

import pytest
from tests.unit.core.shell import Shell, cause_of, stateful, stateless

from torchserve_py.scheduling.effects import Cause
from torchserve_py.scheduling.policy import Policy, SequencePolicy


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
    assert worker.ended.get_nowait() == ("a", "unregistered")
    assert await cause_of(shell.submit("3", sequence_id="a")) is Cause.unregistered
    shell.answer(worker, running)
    shell.lose(worker)
    assert worker.ended.empty()


async def test_closing_many_sequences_leaves_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchserve_py.core.dispatcher._ENDED_AT_ONCE", 10)
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
