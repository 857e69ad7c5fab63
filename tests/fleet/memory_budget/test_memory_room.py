"""Who gets room: workers and models without processes, which have as much memory as a test says."""

import asyncio
from collections.abc import Callable

import pytest
from tests.core.dispatch.shell import cause_of, durable, stateful, stateless
from tests.fleet.memory_budget.shared_budget import MB, BudgetOf, until

from torchserve_py.base.causes import Cause
from torchserve_py.core.scheduling.policy import Policy
from torchserve_py.core.workers.startup import WorkerFailed
from torchserve_py.fleet.memory_budget import memory_room as module


async def test_an_idle_model_makes_room(make: Callable[..., BudgetOf]) -> None:
    budget = make(host=100 * MB)
    first, second = budget.model("first", memory=70 * MB), budget.model("second", memory=50 * MB)
    await first.load(70 * MB)
    assert budget.usage.budgets["host"] == (70 * MB, 100 * MB)
    waiting = second.start()
    second_job = second.shell.submit("x")
    await until(lambda: first.was_unloaded)
    assert first.pool.resized[0] == (0, "room for model second 1.0")
    assert not waiting.done()  # the memory is not free before the process is gone
    first.end()
    await asyncio.wait_for(waiting, 60)
    second_job.cancel()


@pytest.mark.parametrize(
    ("policy", "keys"),
    [
        pytest.param(stateless(), {"pin": True}, id="pinned"),
        pytest.param(stateful(), {}, id="an open sequence is only in its memory"),
    ],
)
async def test_a_model_that_must_not_go_stays(
    make: Callable[..., BudgetOf], policy: Policy, keys: dict[str, object]
) -> None:
    budget = make(host=100 * MB)
    stays, goes = budget.model("stays", policy, memory=50 * MB, **keys), budget.model("goes", memory=40 * MB)
    await stays.load(50 * MB)
    assert stays.up is not None
    stays.shell.answer(stays.up, stays.shell.submit("x", "s"))
    await goes.load(40 * MB)
    other = budget.model("other", memory=45 * MB)
    waiting = other.start()
    job = other.shell.submit("x")
    await until(lambda: goes.was_unloaded)
    goes.end()
    await asyncio.wait_for(waiting, 60)
    assert not stays.was_unloaded
    job.cancel()


async def test_a_model_whose_sequences_are_stored_may_go(make: Callable[..., BudgetOf]) -> None:
    budget = make(host=100 * MB)
    stored, other = budget.model("stored", durable(), memory=70 * MB), budget.model("other", memory=50 * MB)
    await stored.load(70 * MB)
    assert stored.up is not None
    stored.shell.answer(stored.up, stored.shell.submit("x", "s"))
    waiting = other.start()
    job = other.shell.submit("x")
    await until(lambda: stored.was_unloaded)
    waiting.cancel()
    job.cancel()


async def test_each_gpu_has_its_budget(make: Callable[..., BudgetOf]) -> None:
    budget = make(each_gpu=100 * MB)
    first, beside, same = (budget.model(name, memory=70 * MB) for name in ("first", "beside", "same"))
    await first.load(70 * MB, gpu_index=0)
    await beside.load(70 * MB, gpu_index=1)
    assert set(budget.usage.budgets) == {"gpu 0", "gpu 1"}
    waiting = same.start(gpu_index=1)
    job = same.shell.submit("x")
    await until(lambda: beside.was_unloaded)
    assert not first.was_unloaded
    waiting.cancel()
    job.cancel()


async def test_a_worker_is_told_what_others_leave_of_its_gpu(make: Callable[..., BudgetOf]) -> None:
    budget = make(each_gpu=100 * MB)
    first, second = budget.model("first", memory=30 * MB), budget.model("second", memory=20 * MB)
    assert await first.start(gpu_index=0) == 100 * MB
    assert await second.start(gpu_index=0) == 70 * MB
    assert await budget.model("beside", memory=20 * MB).start(gpu_index=1) == 100 * MB
    assert await make(host=100 * MB).model("on the host", memory=20 * MB).start() is None


async def test_what_was_measured_counts_at_the_next_load(make: Callable[..., BudgetOf]) -> None:
    budget = make(host=100 * MB)
    model, other = budget.model("m", memory=10 * MB), budget.model("other", memory=40 * MB)
    await model.load(80 * MB)
    model.end()
    await other.load(40 * MB)
    model.start()
    job = model.shell.submit("x")
    await until(lambda: other.was_unloaded)
    job.cancel()


async def test_a_model_that_took_more_than_the_budget_to_load_does_not_start_again(
    make: Callable[..., BudgetOf],
) -> None:
    budget = make(host=100 * MB)
    model = budget.model("m", memory=10 * MB)
    await model.load(120 * MB)
    await until(lambda: model.was_unloaded)
    model.end()
    with pytest.raises(WorkerFailed, match="it takes 120 MB, and memory_budget is 100 MB") as refused:
        await model.start()
    assert refused.value.lacks_memory


async def test_a_request_is_refused_where_there_never_will_be_room(make: Callable[..., BudgetOf]) -> None:
    budget = make(host=100 * MB)
    pinned, other = budget.model("pinned", pin=True, memory=70 * MB), budget.model("other", memory=50 * MB)
    await pinned.load(70 * MB)
    assert await cause_of(other.shell.submit("x")) is Cause.not_loaded
    assert not other.scaled.is_set()


async def test_a_request_waits_behind_others_if_there_is_room_for_one_of_them_at_a_time(
    make: Callable[..., BudgetOf],
) -> None:
    budget = make(host=100 * MB)
    fixed, first = budget.model("fixed", min_workers=1, memory=50 * MB), budget.model("first", memory=40 * MB)
    second, third = budget.model("second", memory=40 * MB), budget.model("third", memory=40 * MB)
    await fixed.load(50 * MB)
    await first.load(40 * MB)
    working = first.shell.submit("x")
    waiting = second.start()
    jobs = [second.shell.submit("x"), third.shell.submit("x")]
    assert [each.shell.dispatcher.scheduler.queued for each in (second, third)] == [1, 1]
    for job in (working, *jobs):
        job.cancel()
    waiting.cancel()


async def test_a_worker_that_nobody_waits_for_any_more_is_taken_away(
    make: Callable[..., BudgetOf], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_GRACE", 0.01)
    budget = make(host=100 * MB)
    busy, other = budget.model("busy", memory=70 * MB), budget.model("other", memory=50 * MB)
    await busy.load(70 * MB)
    working = busy.shell.submit("x")
    waiting = other.start()
    await until(lambda: other.pool.resized)
    assert other.pool.resized == [(0, "no request waits for it any more")]
    assert not busy.was_unloaded
    waiting.cancel()
    working.cancel()


async def test_a_model_with_workers_all_the_time_is_not_unloaded(make: Callable[..., BudgetOf]) -> None:
    budget = make(host=100 * MB)
    fixed, other = budget.model("fixed", min_workers=1, memory=70 * MB), budget.model("other", memory=50 * MB)
    await fixed.load(70 * MB)
    assert await cause_of(other.shell.submit("x")) is Cause.not_loaded
    assert not fixed.was_unloaded
