"""Models that sleep where memory of a GPU is needed: without processes, and without a GPU."""

import asyncio
from collections.abc import Callable

import pytest
from tests.features.memory_budget.shared_budget import MB, BudgetOf, Sharing, until

from torchserve_py.features.memory_budget import memory_room as module

Make = Callable[..., BudgetOf]


async def asked_to_sleep(model: Sharing) -> str:
    """Wait until the handler of a model is asked to sleep; return the job."""
    assert model.up is not None
    worker = model.up
    await until(lambda: worker.in_flight)
    (job_id,) = worker.in_flight
    return job_id


async def sleep(model: Sharing, left: int = 5 * MB) -> None:
    """Wait until a model is asked to sleep, and let it: it has so much on its GPU then."""
    job_id = await asked_to_sleep(model)
    assert model.up is not None
    model.budget.memory[model.up.pid] = left
    model.shell.result(model.up, job_id, False, 200, "", [], b"", None)


async def two_that_take_turns(make: Make, **sizes: int) -> tuple[Sharing, Sharing, "asyncio.Task[None]"]:
    """A model that sleeps is loaded, and another one wants its room."""
    budget = make(each_gpu=100 * MB, **sizes)
    first, second = (budget.model(name, memory=70 * MB, sleeps=True) for name in ("first", "second"))
    await first.load(70 * MB, gpu_index=0)
    return first, second, second.start(gpu_index=0)


async def test_a_model_sleeps_and_its_requests_wait_for_room_to_wake(make: Make) -> None:
    first, second, waiting = await two_that_take_turns(make)
    job = second.shell.submit("x")
    await sleep(first)
    await asyncio.wait_for(waiting, 60)
    assert not first.was_unloaded
    assert second.pool.worker is not None
    first.budget.memory[second.pool.worker.pid] = 70 * MB
    second.up = second.pool.worker
    second.up.ready = True
    second.shell.dispatcher.worker_up(second.up)  # type: ignore[arg-type]
    # A request for the sleeper waits: the other model works.
    asked = first.shell.submit("y")
    assert first.up is not None
    assert first.up.batches == [[b""]]
    second.shell.answer(second.up, job)
    await sleep(second)
    await until(lambda: first.up is not None and first.up.in_flight)
    assert first.up.batches == [[b""], ["y"]]
    first.shell.answer(first.up, asked)
    assert (await asked.next()).body == b"ok"
    # Awake it counts for what it had, whatever it has at the moment.
    await until(lambda: first.budget.usage.budgets["gpu 0"].used == 75 * MB)
    assert not first.was_unloaded
    assert not second.was_unloaded


async def test_a_model_that_fails_to_sleep_is_unloaded(make: Make) -> None:
    first, _, waiting = await two_that_take_turns(make)
    job_id = await asked_to_sleep(first)
    assert first.up is not None
    first.shell.result(first.up, job_id, False, 500, "", [], b"", "no room for the weights")
    await until(lambda: first.was_unloaded)
    waiting.cancel()


async def test_a_model_is_unloaded_if_the_host_has_no_room_for_what_sleeps(make: Make) -> None:
    first, _, waiting = await two_that_take_turns(make, host=150 * MB)
    await until(lambda: first.was_unloaded)
    assert first.up is not None
    assert not first.up.batches
    waiting.cancel()


async def test_memory_of_the_host_is_made_by_unloading(make: Make) -> None:
    budget = make(host=100 * MB)
    first, second = budget.model("first", memory=70 * MB, sleeps=True), budget.model("second", memory=50 * MB)
    await first.load(70 * MB)
    waiting = second.start()
    job = second.shell.submit("x")
    await until(lambda: first.was_unloaded)
    waiting.cancel()
    job.cancel()


async def test_a_request_that_comes_while_a_model_falls_asleep_is_answered(make: Make) -> None:
    first, _, waiting = await two_that_take_turns(make)
    job_id = await asked_to_sleep(first)
    assert first.up is not None
    late = first.shell.submit("late")
    first.shell.result(first.up, job_id, False, 200, "", [], b"", None)
    await until(lambda: first.up is not None and first.up.in_flight)
    first.shell.answer(first.up, late)
    assert (await late.next()).body == b"ok"
    again = first.shell.submit("again")  # it has jobs, asleep or not
    await until(lambda: ["again"] in (first.up.batches if first.up is not None else []))
    again.cancel()
    waiting.cancel()


async def test_a_sleeping_model_whose_worker_dies_is_forgotten(make: Make) -> None:
    first, second, waiting = await two_that_take_turns(make)
    await sleep(first)
    await asyncio.wait_for(waiting, 60)
    asked = first.shell.submit("y")
    first.end()
    await until(lambda: first.budget.usage.budgets["gpu 0"].used == 70 * MB)  # of the other model, which loads
    second.end()
    asked.cancel()


async def test_a_model_that_was_woken_for_nothing_sleeps_again(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, waiting = await two_that_take_turns(make)
    await sleep(first)
    await asyncio.wait_for(waiting, 60)
    asked = first.shell.submit("y")
    asked.cancel()
    second.end()
    await until(lambda: first.budget.usage.budgets["gpu 0"].used == 70 * MB)
    monkeypatch.setattr(module, "_GRACE", 0.0)
    await sleep(first)
    await until(lambda: first.budget.usage.budgets["gpu 0"].used == 5 * MB)
    assert first.up is not None
    assert first.up.batches == [[b""], [b""]]
    assert not first.was_unloaded


async def answers(model: Sharing) -> None:
    """Let a model answer a request."""
    assert model.up is not None
    job = model.shell.submit("x")
    model.shell.answer(model.up, job)
    await job.next()


async def test_a_model_that_is_to_stay_since_it_was_scaled_asleep_wakes(make: Make) -> None:
    first, second, waiting = await two_that_take_turns(make)
    await sleep(first)
    await asyncio.wait_for(waiting, 60)
    second.end()
    first.pool.min_workers = 1
    first.shell.submit("y")
    await until(lambda: first.up is not None and ["y"] in first.up.batches)


async def test_who_wakes_and_who_loads_take_turns_as_they_were_asked_for(make: Make) -> None:
    first, second, waiting = await two_that_take_turns(make)
    await sleep(first)
    await asyncio.wait_for(waiting, 60)
    assert first.up is not None
    asked = first.shell.submit("y")
    third = first.budget.model("third", memory=70 * MB)
    loading = third.start(gpu_index=0)
    job = third.shell.submit("z")
    await until(lambda: first.budget.usage.budgets["gpu 0"].used == 75 * MB)
    assert not loading.done()
    second.end()
    await until(lambda: loading.done() or (first.up is not None and ["y"] in first.up.batches))
    assert not loading.done()
    for each in (asked, job):
        each.cancel()
    loading.cancel()


async def test_to_sleep_is_no_use_of_a_model(make: Make) -> None:
    budget = make(host=400 * MB, each_gpu=100 * MB)
    older, newer = budget.model("older", memory=70 * MB, sleeps=True), budget.model("newer", memory=70 * MB)
    for index, each in enumerate((older, newer)):
        await each.load(70 * MB, gpu_index=index)
        await answers(each)
    waiting = budget.model("third", memory=70 * MB).start(gpu_index=0)
    await sleep(older)
    await asyncio.wait_for(waiting, 60)
    more = budget.model("more", memory=403 * MB - budget.usage.budgets["host"].used)
    loading = more.start()
    job = more.shell.submit("x")
    await until(lambda: older.was_unloaded or newer.was_unloaded)
    assert older.was_unloaded
    assert not newer.was_unloaded
    job.cancel()
    loading.cancel()
