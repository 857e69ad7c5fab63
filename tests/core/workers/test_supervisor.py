"""A place of the pool is kept filled, until that is hopeless or nobody wants it any more."""

import asyncio
import time
from collections.abc import Callable
from typing import cast

import pytest

from torchserve_py.core.workers import restarts as module
from torchserve_py.core.workers.lifecycle import WorkerState
from torchserve_py.core.workers.startup import WorkerFailed
from torchserve_py.core.workers.supervisor import Supervisor
from torchserve_py.core.workers.worker import Worker, WorkerEvents
from torchserve_py.net.running_time import running_time


class FakeWorker:
    """A worker whose start ends as it is told: ready, or with a failure."""

    label = "W-1-m_1.0"
    pid = 1
    id = "1"
    is_launched = False
    has_worked = False

    def __init__(self, failure: WorkerFailed | None) -> None:
        self._failure = failure
        self.state = WorkerState.STARTING
        self.disconnected = asyncio.Event()
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    @property
    def ready(self) -> bool:
        return self.state is WorkerState.READY

    async def start(self) -> None:
        if self._failure is not None:
            self.end(WorkerState.DIED)
            raise self._failure
        self.state = WorkerState.READY

    async def stop(self, limit: float) -> None:
        if not self.ended.done():
            self.end(WorkerState.STOPPED)

    def kill(self, reason: str) -> None:
        self.end(WorkerState.DIED)

    def end(self, state: WorkerState) -> None:
        self.state = state
        self.disconnected.set()
        self.ended.set_result("is over")


class Events:
    """Stands in for the dispatcher: notes the workers that come and go."""

    def __init__(self) -> None:
        self.up: asyncio.Queue[FakeWorker] = asyncio.Queue()
        self.lost: asyncio.Queue[FakeWorker] = asyncio.Queue()
        self.retired: list[FakeWorker] = []

    def worker_up(self, worker: FakeWorker) -> None:
        self.up.put_nowait(worker)

    def worker_lost(self, worker: FakeWorker) -> None:
        self.lost.put_nowait(worker)

    async def retire(self, worker: FakeWorker, limit: float) -> None:
        self.retired.append(worker)


#: An outcome: no machine has room.
UNPLACED = 503


class Place:
    """A supervisor whose workers start as ``outcomes`` says, the last for ever: True, ready; a number, failed so."""

    def __init__(self, outcomes: list[bool | int], max_retry: float = 60.0) -> None:
        self.events = Events()
        self.made: list[FakeWorker] = []
        self.restarts = 0
        self.gave_up = asyncio.Event()
        self._outcomes = outcomes
        self.supervisor = Supervisor("1", self._make, cast("WorkerEvents", self.events), max_retry)
        self.supervisor.on_restart = self._count_restart
        self.supervisor.on_unavailable = self.gave_up.set

    def _make(self) -> Worker:
        outcome = self._outcomes[min(len(self.made), len(self._outcomes) - 1)]
        failure = WorkerFailed(int(outcome), "failed", unplaced=outcome == UNPLACED)
        self.made.append(FakeWorker(None if outcome is True else failure))
        return cast("Worker", self.made[-1])

    def _count_restart(self) -> None:
        self.restarts += 1


async def room_of(room: asyncio.Event) -> None:
    await room.wait()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0)


@pytest.fixture(autouse=True)
def no_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RESTART_DELAYS", (0,))


async def test_a_worker_that_gets_ready_is_given_work() -> None:
    place = Place([True])
    assert await place.supervisor.attempt() is None
    assert place.supervisor.ready
    assert await place.events.up.get() is place.made[0]
    await place.supervisor.stop(1)


async def test_a_worker_that_dies_is_replaced() -> None:
    place = Place([True])
    first = await place.events.up.get()
    first.end(WorkerState.DIED)
    assert await place.events.lost.get() is first
    second = await place.events.up.get()
    assert second is not first
    assert place.restarts == place.supervisor.restarts == 1
    assert place.supervisor.ready
    assert (place.supervisor.condition, place.supervisor.last_end) == ("ready", "is over")
    await place.supervisor.stop(1)


async def test_a_worker_is_renewed_once_it_has_finished() -> None:
    place = Place([True, True, 500, True])
    first = await place.events.up.get()
    assert await place.supervisor.renew(1) is None
    assert place.events.retired == [first]
    assert (first.state, place.supervisor.worker) == (WorkerState.STOPPED, place.made[1])
    assert place.supervisor.last_end == ""
    failure = await place.supervisor.renew(1)
    assert failure is not None
    assert failure.status == 500
    assert await place.supervisor.renew(1) is None  # one is starting already
    assert place.events.retired == place.made[:2]
    assert place.supervisor.worker is place.made[3]
    await place.supervisor.stop(1)


async def test_a_place_may_end_while_its_worker_is_renewed() -> None:
    place = Place([True])
    await place.events.up.get()
    renewing = asyncio.create_task(place.supervisor.renew(1))
    await asyncio.sleep(0)
    await place.supervisor.stop(1)
    assert await asyncio.wait_for(renewing, 60) is not None


async def test_a_worker_starts_once_there_is_room_for_it() -> None:
    place, room = Place([True]), asyncio.Event()
    place.supervisor.take_room = lambda worker: room_of(room)
    await until(lambda: place.supervisor.waits)
    assert (place.supervisor.condition, place.supervisor.worker) == ("waiting", None)
    room.set()
    assert await place.supervisor.attempt() is None
    assert (place.supervisor.condition, place.supervisor.waits) == ("ready", False)
    await place.supervisor.stop(1)


async def test_a_place_ends_while_it_waits_for_room() -> None:
    place = Place([True])
    place.supervisor.take_room = lambda worker: room_of(asyncio.Event())
    await until(lambda: place.supervisor.waits)
    await asyncio.wait_for(place.supervisor.stop(1), 60)
    assert [each.ended.done() for each in place.made] == [True]
    assert place.events.up.empty()


async def test_no_worker_starts_if_the_place_ends_as_soon_as_there_is_room() -> None:
    place, room = Place([True]), asyncio.Event()
    place.supervisor.take_room = lambda worker: room_of(room)
    await until(lambda: place.supervisor.waits)
    room.set()
    await asyncio.wait_for(place.supervisor.stop(1), 60)
    assert [each.state for each in place.made] == [WorkerState.STARTING]
    assert place.made[0].ended.done()


async def test_a_worker_for_which_there_is_no_room_has_failed() -> None:
    place = Place([True])

    async def never(worker: Worker) -> None:
        raise WorkerFailed(507, "it takes 5 GB, and memory_budget is 2 GB")

    place.supervisor.take_room = never
    failure = await place.supervisor.attempt()
    assert failure is not None
    assert failure.lacks_memory
    assert place.supervisor.failure == "it takes 5 GB, and memory_budget is 2 GB"
    await place.supervisor.stop(1)


async def test_time_without_a_machine_is_no_time_of_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PLACE_DELAY", 0.15)
    place = Place([500, UNPLACED, UNPLACED, 500, True], max_retry=0.25)
    await place.events.up.get()
    assert not place.supervisor.gave_up
    await place.supervisor.stop(1)


async def test_time_of_waiting_for_room_is_no_time_of_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WORTH_WAITING", 0.1)
    place, room = Place([500, 500, True]), asyncio.Event()
    clock = running_time()

    async def in_a_while(worker: Worker) -> None:
        if len(place.made) > 1:
            await clock.wait([asyncio.ensure_future(room.wait())], 0.2)

    place.supervisor.take_room = in_a_while
    await place.events.up.get()
    assert place.supervisor.expected
    assert not place.gave_up.is_set()
    await place.supervisor.stop(1)


async def test_a_place_whose_worker_no_machine_has_room_for_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PLACE_DELAY", 60)
    place = Place([UNPLACED])
    await place.supervisor.attempt()
    assert (place.supervisor.waits, place.supervisor.condition) == (True, "waiting")
    place.made[-1].is_launched = True  # one has room again
    place.made[-1].state = WorkerState.STARTING
    place.made[-1].ended = asyncio.get_running_loop().create_future()
    assert (place.supervisor.waits, place.supervisor.condition) == (False, "starting")
    await place.supervisor.stop(1)


@pytest.mark.parametrize(("pid", "named"), [(7, "W-1-m_1.0 (pid 7)"), (-1, "W-1-m_1.0")])
async def test_the_log_names_processes_of_this_machine(
    pid: int, named: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(FakeWorker, "pid", pid)
    place = Place([True])
    (await place.events.up.get()).end(WorkerState.DIED)
    await place.events.up.get()
    assert f"Worker {named} is over" in caplog.messages
    await place.supervisor.stop(1)


async def test_jobs_are_settled_when_the_connection_is_gone_though_the_process_lives_on() -> None:
    place = Place([True])
    first = await place.events.up.get()
    first.disconnected.set()
    assert await place.events.lost.get() is first
    assert len(place.made) == 1
    first.end(WorkerState.DIED)
    await place.events.up.get()
    await place.supervisor.stop(1)


async def test_the_first_failure_is_told_and_the_worker_is_tried_again() -> None:
    place = Place([507, 500, True])
    failure = await place.supervisor.attempt()
    assert failure is not None
    assert failure.status == 507
    assert await place.events.up.get() is place.made[2]
    assert place.restarts == 2
    await place.supervisor.stop(1)


async def test_it_gives_up_when_no_worker_got_ready_for_too_long() -> None:
    place = Place([500], max_retry=0.0)
    async with asyncio.timeout(60):
        await place.gave_up.wait()
    assert place.supervisor.gave_up
    assert not place.supervisor.ready
    assert place.supervisor.condition == "gave up"
    assert not place.supervisor.expected
    await place.supervisor.stop(1)


async def test_a_worker_that_was_given_up_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GIVEN_UP_DELAY", 0.01)
    place = Place([500, 500, 500, 500, True], max_retry=0.0)
    worker = await place.events.up.get()
    assert worker is place.made[4]
    assert not place.supervisor.gave_up
    assert (place.supervisor.condition, place.supervisor.expected, place.supervisor.failure) == ("ready", True, "")
    await place.supervisor.stop(1)


async def test_a_worker_that_the_next_request_starts_is_not_tried_once_it_is_given_up() -> None:
    place = Place([500], max_retry=0.0)
    place.supervisor.tries_on = lambda: False
    async with asyncio.timeout(60):
        await place.gave_up.wait()
        await place.supervisor.stopped(60)
    assert (place.supervisor.condition, place.supervisor.starts_at) == ("gave up", None)


async def test_a_worker_tells_when_it_starts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RESTART_DELAYS", (600,))
    place = Place([500])
    await place.supervisor.attempt()
    await until(lambda: place.supervisor.starts_at is not None)
    assert place.supervisor.condition == "restarting"
    assert place.supervisor.starts_at is not None
    assert 590 < place.supervisor.starts_at - time.time() < 601
    await place.supervisor.stop(1)
    assert place.supervisor.starts_at is None


async def test_a_worker_that_has_worked_is_replaced_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RESTART_DELAYS", (0, 600))
    monkeypatch.setattr(FakeWorker, "has_worked", True)
    place = Place([True])
    for _ in range(5):
        (await place.events.up.get()).end(WorkerState.DIED)
    await place.events.up.get()
    await place.supervisor.stop(1)


async def test_stopping_retires_the_worker_and_starts_no_other() -> None:
    place = Place([True])
    worker = await place.events.up.get()
    await place.supervisor.stop(1)
    assert place.events.retired == [worker]
    assert worker.state is WorkerState.STOPPED
    assert place.made == [worker]
    assert place.restarts == 0


async def test_stopping_ends_the_wait_for_the_next_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RESTART_DELAYS", (600,))
    place = Place([500])
    assert await place.supervisor.attempt() is not None
    async with asyncio.timeout(60):
        await place.supervisor.stop(1)
    assert len(place.made) == 1


async def test_stopping_before_the_start_answers_who_waits_for_it() -> None:
    place = Place([True])
    await place.supervisor.stop(1)
    failure = await place.supervisor.attempt()
    assert failure is not None
    assert failure.status == 500
    assert place.made == []


async def test_an_error_in_the_server_itself_leaves_nobody_waiting_and_ends() -> None:
    place = Place([True])
    make, place.supervisor._make_worker = place.supervisor._make_worker, cast("Callable[[], Worker]", None)
    failure = await place.supervisor.attempt()
    assert failure is not None
    assert "not callable" in str(failure)
    assert not place.supervisor.gave_up
    place.supervisor._make_worker = make
    assert await place.events.up.get() is place.made[0]
    await place.supervisor.stop(1)


async def test_a_worker_that_the_server_fails_to_look_after_is_replaced() -> None:
    place = Place([True])

    def fails(label: str, seconds: float) -> None:
        place.supervisor.on_ready = lambda label, seconds: None
        raise RuntimeError("a bug")

    place.supervisor.on_ready = fails
    assert await place.events.up.get() is place.made[1]
    assert place.made[0].state is WorkerState.DIED
    await place.supervisor.stop(1)
