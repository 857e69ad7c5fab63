"""Models that sleep where memory of a GPU is needed: without processes, and without a GPU."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tests.core.dispatch.shell import stateful
from tests.fleet.memory_budget.shared_budget import MB, BudgetOf, RoomWorker, Sharing, until

from torchserve_py.core.jobs.call import Call
from torchserve_py.fleet.memory_budget import memory_room as module

Make = Callable[..., BudgetOf]


@pytest.fixture
def one_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model has had its turn at once."""
    for name in ("_SHORTEST_TURN", "_TURN"):
        monkeypatch.setattr(f"torchserve_py.fleet.memory_budget.budgeted_model.{name}", 0.0)


async def asked(model: Sharing, question: str) -> RoomWorker:
    """Wait until the handler of a model is asked to sleep or to wake; return the worker."""
    assert model.up is not None
    worker = model.up
    await until(lambda: worker.asked == question)
    return worker


async def sleep(model: Sharing, left: int = 5 * MB) -> None:
    """Wait until a model is asked to sleep, and let it: it has so much on its GPU then."""
    worker = await asked(model, "sleep")
    model.budget.memory[worker.pid] = left
    worker.answers(0.5)


async def wake(model: Sharing) -> None:
    """Wait until a model is asked to wake, and let it."""
    (await asked(model, "wake")).answers(0.5)


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
    late = first.shell.submit("y")
    assert first.up is not None
    second.shell.answer(second.up, job)
    await sleep(second)
    worker = await asked(first, "wake")
    assert not worker.batches
    worker.answers(0.5)
    await until(lambda: worker.batches == [["y"]])
    first.shell.answer(worker, late)
    assert (await late.next()).body == b"ok"
    # Awake it counts for what it had, whatever it has at the moment.
    await until(lambda: first.budget.usage.budgets["gpu 0"].used == 75 * MB)
    assert not first.was_unloaded
    assert not second.was_unloaded


async def test_a_model_that_fails_to_sleep_is_unloaded_and_its_worker_ends(make: Make) -> None:
    first, _, waiting = await two_that_take_turns(make)
    worker = await asked(first, "sleep")
    worker.answers("MemoryError: no room for the weights")
    await until(lambda: first.was_unloaded)
    assert worker.killed == "its handler does not sleep: MemoryError: no room for the weights"
    waiting.cancel()


async def test_a_model_that_hangs_while_it_falls_asleep_or_wakes_does_not_keep_its_worker(make: Make) -> None:
    first, _, waiting = await two_that_take_turns(make)
    worker = await asked(first, "sleep")
    worker.answers(None)
    await until(lambda: worker.killed)
    assert worker.killed == "its handler does not sleep: it takes longer than 60 s"
    waiting.cancel()


async def test_the_worker_of_a_model_that_fails_to_wake_ends_and_its_requests_wait_for_the_next_one(make: Make) -> None:
    first, second, waiting = await two_that_take_turns(make)
    await sleep(first)
    await asyncio.wait_for(waiting, 60)
    second.end()
    late = first.shell.submit("y")
    worker = await asked(first, "wake")
    worker.answers("RuntimeError: CUDA has gone")
    await until(lambda: worker.killed)
    assert worker.killed == "its handler does not wake: RuntimeError: CUDA has gone"
    assert not worker.batches
    first.end()
    await first.load(70 * MB, gpu_index=0)
    assert first.up is not None
    assert first.up.batches == [["y"]]
    first.shell.answer(first.up, late)
    assert (await late.next()).body == b"ok"


async def test_a_model_is_unloaded_if_the_host_has_no_room_for_what_sleeps(make: Make) -> None:
    first, _, waiting = await two_that_take_turns(make, host=150 * MB)
    await until(lambda: first.was_unloaded)
    assert first.up is not None
    assert not first.up.asked
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


async def test_a_request_that_comes_while_a_model_falls_asleep_waits_for_its_turn(make: Make) -> None:
    first, second, waiting = await two_that_take_turns(make)
    worker = await asked(first, "sleep")
    late = first.shell.submit("late")
    await sleep(first)
    await asyncio.wait_for(waiting, 60)
    assert not worker.batches
    second.end()
    await wake(first)
    await until(lambda: worker.batches == [["late"]])
    late.cancel()


async def test_a_sleeping_model_whose_worker_dies_is_forgotten(make: Make) -> None:
    first, second, waiting = await two_that_take_turns(make)
    await sleep(first)
    await asyncio.wait_for(waiting, 60)
    late = first.shell.submit("y")
    first.end()
    await until(lambda: first.budget.usage.budgets["gpu 0"].used == 70 * MB)  # of the other model, which loads
    assert not first.budget.usage.rests
    second.end()
    late.cancel()


async def test_a_client_that_gives_up_wakes_nobody(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, waiting = await two_that_take_turns(make)
    await sleep(first)
    await asyncio.wait_for(waiting, 60)
    monkeypatch.setattr(module, "_GRACE", 0.0)
    late = first.shell.submit("y")
    late.cancel()
    await asyncio.sleep(0.01)
    second.end()
    await until(lambda: first.budget.usage.budgets["gpu 0"].used == 5 * MB)
    assert first.up is not None
    assert not first.up.asked
    third = first.budget.model("third", memory=70 * MB)
    job = third.shell.submit("z")
    await asyncio.wait_for(third.start(gpu_index=0), 60)
    assert not first.was_unloaded
    job.cancel()


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
    await wake(first)


async def test_who_wakes_and_who_loads_take_turns_as_they_were_asked_for(make: Make) -> None:
    first, second, waiting = await two_that_take_turns(make)
    await sleep(first)
    await asyncio.wait_for(waiting, 60)
    assert first.up is not None
    late = first.shell.submit("y")
    third = first.budget.model("third", memory=70 * MB)
    loading = third.start(gpu_index=0)
    job = third.shell.submit("z")
    await until(lambda: first.budget.usage.budgets["gpu 0"].used == 75 * MB)
    assert not loading.done()
    second.end()
    await wake(first)
    assert not loading.done()
    for each in (late, job):
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


async def works(model: Sharing) -> tuple[Call, Call]:
    """Let a model run one request while another one waits; return their answers."""
    assert model.up is not None
    running, queued = model.shell.submit("running"), model.shell.submit("queued")
    assert model.up.batches == [["running"]]
    return running, queued


async def test_models_that_sleep_take_turns_though_they_work_all_the_time(make: Make, one_turn: None) -> None:
    first, second, waiting = await two_that_take_turns(make)
    running, queued = await works(first)
    job = second.shell.submit("x")
    assert first.up is not None
    await until(lambda: first.budget.usage.rests)
    assert not first.up.asked  # before it has answered
    first.shell.answer(first.up, running)
    await sleep(first)
    await asyncio.wait_for(waiting, 60)
    assert first.up.batches == [["running"]]
    second.end()
    await wake(first)
    await until(lambda: first.up is not None and first.up.batches == [["running"], ["queued"]])
    for each in (queued, job):
        each.cancel()


@pytest.mark.parametrize("other", [{"sleeps": False}, {"sleeps": True, "priority": -1}], ids=["awake", "less urgent"])
async def test_a_model_that_works_makes_no_room_for_others(make: Make, one_turn: None, other: dict[str, Any]) -> None:
    budget = make(each_gpu=100 * MB)
    first, second = budget.model("first", memory=70 * MB, sleeps=True), budget.model("second", memory=70 * MB, **other)
    await first.load(70 * MB, gpu_index=0)
    jobs = [*await works(first), second.shell.submit("x")]
    waiting = second.start(gpu_index=0)
    await asyncio.sleep(0.05)
    assert not budget.usage.rests
    assert not first.was_unloaded
    for each in jobs:
        each.cancel()
    waiting.cancel()


async def test_a_model_with_states_in_memory_sleeps_but_is_never_unloaded(make: Make) -> None:
    budget = make(host=400 * MB, each_gpu=100 * MB)
    first = budget.model("first", stateful(), memory=70 * MB, sleeps=True)
    await first.load(70 * MB, gpu_index=0)
    worker = first.up
    assert worker is not None
    step = first.shell.submit("one", "s")
    await until(lambda: worker.in_flight)
    first.shell.answer(worker, step)
    await step.next()
    second = budget.model("second", memory=70 * MB)
    waiting, job = second.start(gpu_index=0), second.shell.submit("x")
    await sleep(first)
    await asyncio.wait_for(waiting, 60)
    more = budget.model("more", memory=399 * MB)
    loading, other = more.start(), more.shell.submit("x")
    await asyncio.sleep(0.05)
    assert not (first.was_unloaded or loading.done())
    second.end()
    late = first.shell.submit("two", "s")
    await wake(first)
    await until(lambda: worker.batches == [["one"], ["two"]])
    for each in (late, job, other):
        each.cancel()
    loading.cancel()
