"""What operators watch of a model version: open sequences page by page, and why jobs failed."""

from typing import Any

import pytest
from tests.core.dispatch.shell import Shell, cause_of, stateful, stateless

from torchserve_py.base.causes import Cause
from torchserve_py.core.models.model import activity_of
from torchserve_py.core.scheduling.policy import Policy
from torchserve_py.core.serving.model_activity import SequenceOrder, SequencePage, page_of_sequences

OLDEST, NEWEST, IDLE = SequenceOrder


async def page(shell: Shell, text: str = "", order: SequenceOrder = OLDEST, limit: int = 10) -> SequencePage:
    dispatcher = shell.dispatcher
    return await page_of_sequences(dispatcher.scheduler.sequences(), text, order, limit, dispatcher.now)


def opened(*names: str) -> Shell:
    """A shell with idle sequences of these names."""
    shell = Shell(stateful())
    for name in names:
        shell.answer(shell.workers[0], shell.submit("step", name))
    return shell


@pytest.mark.parametrize(
    ("order", "names"), [(OLDEST, ["b", "a", "c"]), (NEWEST, ["c", "a", "b"]), (IDLE, ["b", "a", "c"])]
)
async def test_sequences_come_in_the_order_that_is_asked_for(order: SequenceOrder, names: list[str]) -> None:
    shell = opened("b", "a", "c")
    assert [each.id for each in (await page(shell, order=order)).sequences] == names
    assert [each.id for each in (await page(shell, order=order, limit=2)).sequences] == names[:2]


async def test_sequences_are_found_by_a_part_of_their_id() -> None:
    shell = opened("caller-1", "caller-2", "robot-2")
    found = await page(shell, "-2", limit=1)
    assert (found.open, found.found, [each.id for each in found.sequences]) == (3, 2, ["caller-2"])
    assert (await page(shell, "nobody")).sequences == []


async def test_a_sequence_tells_where_it_is_and_what_it_does() -> None:
    shell = opened("idle")
    shell.submit("step", "busy")
    shell.submit("next step", "busy")
    idle, busy = (await page(shell)).sequences
    assert (idle.state, idle.worker_id, idle.waiting, idle.in_flight) == ("idle", "w1", 0, 0)
    assert idle.idle is not None
    assert 0 <= idle.idle <= idle.age
    assert (busy.state, busy.idle, busy.waiting, busy.in_flight) == ("running", None, 1, 1)
    assert [each.id for each in (await page(shell, order=IDLE)).sequences] == ["idle"]


async def test_a_sequence_is_ended() -> None:
    shell = opened("a", "b")
    shell.dispatcher.close_sequence("a", keep_stored=False)
    assert [each.id for each in (await page(shell)).sequences] == ["b"]
    assert await shell.workers[0].ended_sequences.get() == ("a", "ended")


async def test_failures_are_counted_by_cause() -> None:
    shell = Shell(stateless(queue_size=1))
    (worker,) = shell.workers
    running, _waiting = shell.submit("running"), shell.submit("waiting")
    assert await cause_of(shell.submit("refused")) is Cause.queue_full
    shell.result(worker, running.id, False, 503, "", [], b"", "ValueError")
    activity = activity_of(shell.dispatcher.metrics, running=1, workers=1, workers_wanted=1, memory=0)
    assert activity.failures == {"queue_full": 1, "handler_error": 1}
    assert (activity.failed, activity.succeeded, activity.batched) == (2, 0, 2)


async def test_failures_and_parts_of_streams_are_no_executions() -> None:
    shell = Shell(Policy(batch_size=3))
    (worker,) = shell.workers
    shell.submit("alone")
    answered, failed, streamed = (shell.submit(name) for name in "abc")
    shell.result(worker, next(iter(worker.in_flight)), False, 200, "", [], b"", None)
    rows: list[list[Any]] = [
        [answered.id, False, 200, "", [], b"", None, None],
        [failed.id, False, 400, "", [], b"", "it failed", None],
        [streamed.id, True, 200, "", [], b"", None, None],
    ]
    shell.results(worker, rows)
    shell.result(worker, streamed.id, True, 200, "", [], b"", None)
    activity = activity_of(shell.dispatcher.metrics, running=1, workers=1, workers_wanted=1, memory=0)
    assert {size: count for size, (count, _) in activity.executions.items()} == {1: 2}
