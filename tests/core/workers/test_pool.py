"""How many workers there are, and which of them make room."""

import asyncio
import itertools
from collections.abc import Callable
from typing import cast

import pytest

from torchserve_py.base.metrics.server_metrics import ServerMetrics
from torchserve_py.core.workers import restarts
from torchserve_py.core.workers.lifecycle import WorkerState
from torchserve_py.core.workers.pool import OVERTAKEN, PoolPlace, WorkerPool
from torchserve_py.core.workers.startup import WorkerFailed
from torchserve_py.core.workers.worker import Worker, WorkerEvents


class FakeWorker:
    """Gets ready as soon as ``loading`` is set, and lives until it is stopped; fails to load if ``broken`` is set."""

    pid = 1
    gpu_index = None
    has_worked = False

    def __init__(self, place: PoolPlace, loading: asyncio.Event, broken: asyncio.Event) -> None:
        self.loading = loading
        self.broken = broken
        self.id = place.worker_id
        self.label = f"W-{place.worker_id}-m_1.0"
        self.state = WorkerState.STARTING
        self.disconnected = asyncio.Event()
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    @property
    def ready(self) -> bool:
        return self.state is WorkerState.READY

    async def start(self) -> None:
        await self.loading.wait()
        if self.state is WorkerState.STOPPED:
            raise WorkerFailed(500, "was stopped")
        if self.broken.is_set():
            self.state = WorkerState.DIED
            raise WorkerFailed(500, "does not load")
        self.state = WorkerState.READY

    async def stop(self, limit: float) -> None:
        self.state = WorkerState.STOPPED
        self.disconnected.set()
        self.ended.set_result("was stopped")


class FakeDispatcher:
    def __init__(self) -> None:
        self.expected: asyncio.Queue[int] = asyncio.Queue()
        self.taken_out: list[str] = []
        self.up: list[str] = []
        #: Why the sequences of workers cannot move, once that is known, by worker; only these have sequences.
        self.vacated: dict[str, asyncio.Future[str]] = {}
        self.reopened: list[str] = []

    def worker_up(self, worker: Worker) -> None:
        self.up.append(worker.id)

    def worker_lost(self, worker: Worker) -> None: ...
    def take_out(self, worker: Worker) -> None:
        self.taken_out.append(worker.id)

    def hands_over(self, worker: Worker) -> bool:
        return worker.id in self.vacated

    async def vacate(self, worker: Worker, limit: float) -> str:
        return await self.vacated[worker.id]

    def reopen(self, worker: Worker) -> None:
        self.reopened.append(worker.id)

    async def retire(self, worker: Worker, limit: float) -> None: ...
    def set_workers(self, count: int) -> None:
        self.expected.put_nowait(count)


class Pool:
    """A pool, and the places that it has had."""

    def __init__(self, *, renew_to_scale: bool, on_demand: bool = False) -> None:
        self.places: list[tuple[str, int, int]] = []
        self.ended: list[str] = []
        self.loading = asyncio.Event()
        self.loading.set()
        self.broken = asyncio.Event()
        self.dispatcher = FakeDispatcher()
        numbers = itertools.count(1)
        self.pool = WorkerPool(
            self._new_place,
            self.ended.append,
            lambda: str(next(numbers)),
            cast("WorkerEvents", self.dispatcher),
            ServerMetrics().model("m", "1.0"),
            max_retry=60.0,
            stop_limit=60.0,
            renew_to_scale=renew_to_scale,
            on_demand=on_demand,
        )

    def _new_place(self, place: PoolPlace) -> Callable[[], Worker]:
        self.places.append((place.worker_id, place.index, place.count))
        return lambda: cast("Worker", FakeWorker(place, self.loading, self.broken))

    async def scale(self, workers: int) -> list[str]:
        """Scale, and return the ids of the workers that are there then."""
        async with asyncio.timeout(60):
            await self.pool.scale(workers, workers)
        assert self.pool.ready_count == workers
        return [supervisor.id for supervisor in self.pool.supervisors]


async def test_scaling_keeps_the_oldest_workers() -> None:
    pool = Pool(renew_to_scale=False)
    assert [await pool.scale(count) for count in (2, 3, 1, 2)] == [["1", "2"], ["1", "2", "3"], ["1"], ["1", "4"]]
    assert pool.ended == ["2", "3"]
    assert await pool.pool.stop(60) == []


async def test_scaling_to_the_number_that_is_set_waits_for_workers_that_load() -> None:
    pool = Pool(renew_to_scale=False)
    pool.loading.clear()
    first = asyncio.create_task(pool.pool.scale(1, 1))
    again = asyncio.create_task(pool.pool.scale(1, 1))
    done, _ = await asyncio.wait([first, again], timeout=0.05)
    assert not done
    pool.loading.set()
    async with asyncio.timeout(60):
        await asyncio.gather(first, again)
    assert pool.pool.ready_count == 1
    assert await pool.pool.stop(60) == []


async def test_a_scaling_that_another_one_overtakes_says_so() -> None:
    pool = Pool(renew_to_scale=False)
    pool.loading.clear()
    async with asyncio.timeout(60):
        first = asyncio.create_task(pool.pool.scale(3, 3))
        while None in (workers := [each.worker for each in pool.pool.supervisors]) or not workers:
            await asyncio.sleep(0)
        second = asyncio.create_task(pool.pool.scale(1, 1))
        while [each and each.state for each in workers].count(WorkerState.STOPPED) < 2:
            await asyncio.sleep(0)
        pool.loading.set()
        with pytest.raises(WorkerFailed, match=r"^another call has changed the number of workers meanwhile$") as failed:
            await first
        await second
    assert failed.value.status == OVERTAKEN
    assert pool.pool.ready_count == 1
    assert await pool.pool.stop(60) == []


async def test_workers_of_a_pool_on_hold_get_work_once_it_resumes() -> None:
    pool = Pool(renew_to_scale=False)
    pool.pool.hold()
    assert await pool.scale(3) == ["1", "2", "3"]
    assert pool.dispatcher.up == []
    await pool.scale(2)  # a worker that is gone again gets none
    pool.pool.resume()
    assert pool.dispatcher.up == ["1", "2"]
    await pool.scale(3)
    assert pool.dispatcher.up == ["1", "2", "4"]
    assert await pool.pool.stop(60) == []


async def test_workers_that_share_something_are_all_replaced_when_their_number_changes() -> None:
    pool = Pool(renew_to_scale=True)
    assert [await pool.scale(count) for count in (2, 2, 3, 1)] == [["1", "2"], ["1", "2"], ["3", "4", "5"], ["6"]]
    assert pool.places == [("1", 0, 2), ("2", 1, 2), ("3", 0, 3), ("4", 1, 3), ("5", 2, 3), ("6", 0, 1)]
    assert await pool.pool.stop(60) == []


async def test_requests_do_not_wait_for_workers_that_keep_failing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restarts, "RESTART_DELAYS", (0,))
    monkeypatch.setattr(restarts, "WORTH_WAITING", 0.0)
    pool = Pool(renew_to_scale=False)
    pool.broken.set()
    async with asyncio.timeout(60):
        with pytest.raises(WorkerFailed):
            await pool.pool.scale(2, 2)
        assert await pool.dispatcher.expected.get() == 2
        while await pool.dispatcher.expected.get():
            """One of the two may be expected still."""
        pool.broken.clear()
        await pool.scale(2)
        while await pool.dispatcher.expected.get() != 2:
            """The call may come before the workers are ready."""
    assert await pool.pool.stop(60) == []


@pytest.mark.parametrize(("on_demand", "wanted"), [(False, 2), (True, 0)])
async def test_workers_that_are_given_up_are_wanted_all_the_same(
    on_demand: bool, wanted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restarts, "RESTART_DELAYS", (0,))
    pool = Pool(renew_to_scale=False, on_demand=on_demand)
    pool.pool.max_retry = 0.0
    pool.broken.set()
    async with asyncio.timeout(60):
        with pytest.raises(WorkerFailed):
            await pool.pool.scale(0 if on_demand else 2, 2, 2)
        while not all(each.gave_up for each in pool.pool.supervisors):
            await asyncio.sleep(0)
    metrics = pool.pool.metrics
    read = (pool.pool.counts.wanted, metrics.workers_wanted.read(), metrics.workers_given_up.read())
    assert read == (wanted, wanted, 2)
    assert pool.pool.healthy is on_demand
    if not on_demand:
        assert pool.pool.starts_at is not None
    pool.broken.clear()
    assert await pool.scale(2) == ["3", "4"]
    assert (metrics.workers_given_up.read(), pool.pool.healthy, pool.pool.starts_at) == (0, True, None)
    assert await pool.pool.stop(60) == []


async def test_workers_that_load_go_before_those_that_are_ready() -> None:
    pool = Pool(renew_to_scale=False)
    await pool.scale(2)
    pool.loading.clear()
    pool.pool.min_workers, pool.pool.max_workers = 1, 4
    pool.pool.resize(4, (), "the load")
    assert [each.id for each in pool.pool.supervisors] == ["1", "2", "3", "4"]
    pool.pool.resize(1, ["1", "2"], "the load")
    assert [each.id for each in pool.pool.supervisors] == ["2"]
    assert pool.dispatcher.taken_out == ["1"]
    pool.loading.set()
    assert await pool.pool.stop(60) == []


async def test_only_workers_that_may_go_do() -> None:
    pool = Pool(renew_to_scale=False)
    await pool.scale(3)
    pool.pool.resize(1, ["2", "gone"], "the load")
    assert [each.id for each in pool.pool.supervisors] == ["1", "3"]
    assert await pool.pool.stop(60) == []


@pytest.mark.parametrize(
    ("on_demand", "limits", "expected"), [(True, (0, 2), 1), (True, (0, 0), 0), (False, (0, 2), 0)]
)
async def test_requests_wait_without_a_worker_only_where_they_start_one(
    on_demand: bool, limits: tuple[int, int], expected: int
) -> None:
    pool = Pool(renew_to_scale=False, on_demand=on_demand)
    await pool.pool.scale(*limits)
    assert pool.dispatcher.expected.get_nowait() == expected
    assert pool.pool.loads_on_demand is bool(expected)


async def test_requests_wait_without_a_worker_while_one_is_announced() -> None:
    pool = Pool(renew_to_scale=False)
    pool.pool.let_requests_wait(wait=True)
    assert pool.dispatcher.expected.get_nowait() == 1
    await pool.scale(0)
    assert pool.dispatcher.expected.get_nowait() == 1
    pool.pool.let_requests_wait(wait=False)
    assert pool.dispatcher.expected.get_nowait() == 0


async def test_scaling_by_hand_keeps_the_number_between_the_limits() -> None:
    pool = Pool(renew_to_scale=False)
    async with asyncio.timeout(60):
        for limits, count in (((0, 4), 0), ((0, 4, 3), 3), ((1, 4), 3), ((1, 2), 2), ((4, 6), 4)):
            await pool.pool.scale(*limits)
            assert pool.pool.counts.wanted == count
    assert await pool.pool.stop(60) == []


async def test_workers_ask_for_room_and_the_latest_change_is_told() -> None:
    pool, asked = Pool(renew_to_scale=False), asyncio.Queue[str]()

    async def take_room(worker: Worker) -> None:
        asked.put_nowait(worker.id)

    pool.loading.set()
    pool.pool.take_room = take_room
    await pool.pool.scale(0, 2)
    pool.pool.resize(1, (), "a request waits")
    assert await asyncio.wait_for(asked.get(), 60) == "1"
    change = pool.pool.latest_change
    assert change is not None
    assert (change.before, change.now, change.why) == (0, 1, "a request waits")
    await pool.pool.stop(1)


@pytest.mark.parametrize("goes_back", [True, False])
async def test_the_successor_of_a_worker_that_stays_goes_unless_sequences_cannot_leave_it(goes_back: bool) -> None:
    pool = Pool(renew_to_scale=False)
    await pool.scale(1)
    for worker_id, why in (("1", "1: it is a test"), ("2", "" if goes_back else "1: it is a test")):
        pool.dispatcher.vacated[worker_id] = asyncio.get_running_loop().create_future()
        pool.dispatcher.vacated[worker_id].set_result(why)
    with pytest.raises(WorkerFailed, match="worker 1 stays"):
        await pool.pool.renew("1")
    assert {supervisor.id for supervisor in pool.pool.supervisors} == ({"1"} if goes_back else {"1", "2"})
    assert pool.dispatcher.reopened == (["1"] if goes_back else ["1", "2"])
    assert await pool.pool.stop(60) == []


async def test_a_worker_whose_successor_goes_meanwhile_takes_sequences_again() -> None:
    pool = Pool(renew_to_scale=False)
    await pool.scale(1)
    moved = pool.dispatcher.vacated["1"] = asyncio.get_running_loop().create_future()
    renewing = asyncio.create_task(pool.pool.renew("1"))
    async with asyncio.timeout(60):
        while pool.dispatcher.up != ["1", "2"]:
            await asyncio.sleep(0)
        pool.pool.resize(1, ["2"], "a test")
        moved.set_result("")
        await renewing
    assert [supervisor.id for supervisor in pool.pool.supervisors] == ["1"]
    assert pool.dispatcher.reopened == ["1"]
    assert await pool.pool.stop(60) == []


async def test_two_renewals_of_a_worker_at_once_start_one_successor() -> None:
    pool = Pool(renew_to_scale=False)
    await pool.scale(1)
    moved = pool.dispatcher.vacated["1"] = asyncio.get_running_loop().create_future()
    renewals = [asyncio.create_task(pool.pool.renew("1")) for _ in range(2)]
    async with asyncio.timeout(60):
        while "2" not in pool.dispatcher.up:
            await asyncio.sleep(0)
        renewals.append(asyncio.create_task(pool.pool.renew("1")))
        await asyncio.sleep(0)
        moved.set_result("")
        await asyncio.gather(*renewals)
        await pool.pool.renew("1")  # it is gone
    assert [supervisor.id for supervisor in pool.pool.supervisors] == ["2"]
    assert await pool.pool.stop(60) == []


async def test_a_worker_that_the_load_no_longer_needs_goes_once_its_sequences_have_moved() -> None:
    pool = Pool(renew_to_scale=False)
    await pool.scale(2)
    moved = pool.dispatcher.vacated["1"] = asyncio.get_running_loop().create_future()
    pool.pool.resize(1, ["1"], "a test")
    await asyncio.sleep(0)
    assert [supervisor.id for supervisor in pool.pool.supervisors] == ["2"]
    assert (pool.ended, pool.dispatcher.taken_out) == ([], [])
    moved.set_result("")
    async with asyncio.timeout(60):
        while pool.ended != ["1"]:
            await asyncio.sleep(0)
    assert await pool.pool.stop(60) == []


@pytest.mark.parametrize(
    ("meanwhile", "left"), [("nothing", ["2", "1"]), ("the load is back", ["2", "3", "1"]), ("fewer are wanted", ["2"])]
)
async def test_a_worker_whose_sequences_cannot_move_is_put_back_unless_fewer_are_wanted(
    meanwhile: str, left: list[str]
) -> None:
    pool = Pool(renew_to_scale=False)
    await pool.scale(2)
    moved = pool.dispatcher.vacated["1"] = asyncio.get_running_loop().create_future()
    pool.pool.resize(1, ["1"], "a test")
    if meanwhile == "the load is back":
        pool.pool.resize(2, [], meanwhile)
    elif meanwhile == "fewer are wanted":
        await pool.scale(1)
    moved.set_result("1: it is a test")
    async with asyncio.timeout(60):
        while pool.dispatcher.reopened != ["1"] if "1" in left else pool.ended != ["1"]:
            await asyncio.sleep(0)
    assert [supervisor.id for supervisor in pool.pool.supervisors] == left
    assert await pool.pool.stop(60) == []
