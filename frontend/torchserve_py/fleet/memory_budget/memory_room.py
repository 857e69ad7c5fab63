"""Who may start a worker: it waits until the budget has room for it, and idle models are unloaded to make some.

Workers wait in order, those of models without a ready worker first, be it to start or to wake. Where memory of a GPU
is missing, models sleep that can, instead of being unloaded. What counts is measured: of a worker that is
loaded its own peak, of one that loads what the workers before it took, or what it takes already if that is more.
"""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from torchserve_py.base.background_tasks import in_background
from torchserve_py.base.causes import Cause
from torchserve_py.base.metrics.server_metrics import ServerMetrics
from torchserve_py.base.settings.table import Settings
from torchserve_py.core.jobs.call import Call
from torchserve_py.core.jobs.parts import Exceeded
from torchserve_py.core.models.model import Model
from torchserve_py.core.serving.usage import Budget, Usage
from torchserve_py.core.workers.startup import WorkerFailed
from torchserve_py.core.workers.worker import Worker
from torchserve_py.fleet.memory_budget import worker_memory
from torchserve_py.fleet.memory_budget.budget_keys import BudgetKeys
from torchserve_py.fleet.memory_budget.budget_metrics import BudgetMetrics
from torchserve_py.fleet.memory_budget.budget_settings import BudgetSettings
from torchserve_py.fleet.memory_budget.budgeted_model import (
    BudgetedModel,
    BudgetedWorker,
    Rest,
    size_of_files,
    total,
)
from torchserve_py.fleet.memory_budget.footprint import HOST, Sizes
from torchserve_py.fleet.memory_budget.making_room import Occupant, room_in, to_unload
from torchserve_py.fleet.memory_budget.measured_file import MeasuredFile
from torchserve_py.fleet.memory_budget.model_sleep import SleepFailed, fall_asleep, wake
from torchserve_py.fleet.memory_budget.sizes import shown
from torchserve_py.ops.system_metrics.nvml import memory_by_process

logger = logging.getLogger(__name__)

#: Seconds between two looks while workers wait for room or load, and while none does.
_SOON: Final = 0.05
_LATER: Final = 1.0
#: Measuring may take this share of the time; seconds between two measurements at least.
_MEASURED_SHARE: Final = 0.05
_LEAST_PAUSE: Final = 0.25
#: How long (seconds) a worker waits for room although no request waits for it any more.
_GRACE: Final = 5.0
#: The part of a mean that the next value of it makes up.
_WEIGHT: Final = 0.2


@dataclass(eq=False)
class _Waiting:
    """A worker that waits for room, to start or, if it is a `sleeper`, to wake."""

    member: BudgetedModel
    worker: Worker
    since: float
    sleeper: BudgetedWorker | None = None
    is_given_up: bool = False
    may_start: asyncio.Future[int | None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    @property
    def is_additional(self) -> bool:
        """Whether its model has a worker that takes jobs; one that sleeps does not."""
        return self.sleeper is None and self.member.model.pool.ready_count > 0

    @property
    def needs(self) -> Sizes:
        needed = self.member.needs(self.worker.gpu_index)
        if self.sleeper is None:
            return needed
        has = self.sleeper.sizes
        return {each: max(0, size - has.get(each, 0)) for each, size in needed.items() if each != HOST}


class MemoryRoom:
    """The budget of one server, a `models.model.WorkerRoom`; ``host`` and ``each_gpu`` are its bytes, None: any."""

    def __init__(
        self,
        host: int | None,
        each_gpu: int | None,
        metrics: BudgetMetrics,
        usage: Usage,
        file: MeasuredFile | None = None,
    ) -> None:
        self._host, self._each_gpu = host, each_gpu
        self._metrics, self._usage, self._file = metrics, usage, file
        self._members: dict[Model, BudgetedModel] = {}
        self._waiting: list[_Waiting] = []
        self._workers: list[BudgetedWorker] = []
        self._resources: set[str] = set()
        self._works_for = 0.0  # how long workers waited for room, on average
        self._measure_at = 0.0
        self._look: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._is_over = False  # whether more is used than may be
        if host is not None:
            self._show(HOST)

    # What the kernel asks.

    def add(self, model: Model) -> None:
        """Take a model into account."""
        keys = model.config.plugin_keys.of(BudgetKeys)
        member = BudgetedModel(model, keys, self._host is not None, self._each_gpu is not None)
        self._members[model] = member
        if self._file is not None:
            self._file.recall(member)
        model.pool.take_room = partial(self._take, member)
        model.dispatcher.refuses = partial(self._refuses, member)

    def remove(self, model: Model) -> None:
        """Forget a model."""
        self._members.pop(model, None)
        name, version = model.name, model.version
        if all((other.name, other.version) != (name, version) for other in self._members):
            self._metrics.forget(name, version)

    async def _take(self, member: BudgetedModel, worker: Worker) -> int | None:
        """Wait until there is room for a worker; return what it may take of each GPU, None for any number of bytes.

        Raises WorkerFailed: it takes more than the budget, or has waited for as long as loading may take.
        """
        if member.footprint.files is None:
            folder = member.model.files.model_dir
            member.footprint.files = await asyncio.to_thread(size_of_files, folder)
        waiting = _Waiting(member, worker, time.monotonic())
        self._check(waiting)
        self._waiting.append(waiting)
        if self._look is None or self._look.done():
            self._look = in_background(self._watch(), "watching the memory of workers")
        try:
            self._serve_waiting()
            async with asyncio.timeout(member.model.config.startup_timeout):
                return await waiting.may_start
        except TimeoutError:
            limit = member.model.config.startup_timeout
            problem = f"there has been no room for it in the memory budget for {limit} s"
            raise WorkerFailed(503, problem, unplaced=True) from None
        finally:
            if waiting in self._waiting:
                self._waiting.remove(waiting)
            self._changed.set()

    def _refuses(self, member: BudgetedModel, limit: float | None, call: Call) -> Cause | None:
        """Return why a request that may wait so long is refused while its model is not loaded, if it is.

        Its client is told when the model will probably be loaded.
        """
        sleeper = member.resting  # even if it is to stay by now: it was scaled while it slept
        if member.model not in self._members or member.is_awake or not (member.loads_on_demand or sleeper):
            return None
        now = time.monotonic()
        member.asked_at = now
        self._metrics.missed(member.model.name, member.model.version)
        ready_in = self._ready_in(member, now) if sleeper is None else self._awake_in(sleeper, now)
        if ready_in < math.inf and (limit is None or ready_in <= limit):
            return None
        if ready_in < math.inf:
            seconds = max(1, math.ceil(ready_in))
            told = f"is not loaded; that takes about {seconds} s more, longer than the request may wait."
            call.exceeded = Exceeded(Cause.not_loaded, f'Model "{member.model.name}" {told}', seconds)
            if not member.model.pool.counts.wanted:  # for who comes again
                in_background(_load(member.model), f"loading model {member.label}")
        return Cause.not_loaded

    def _ready_in(self, member: BudgetedModel, now: float) -> float:
        """Return in how many seconds a model without a worker may be loaded."""
        load_seconds = member.load_seconds or 0.0
        loading = next((each for each in member.workers if each.loaded_at is None), None)
        if loading is not None:
            return load_seconds - (now - loading.since)
        return self._room_in(member, now) + load_seconds

    def _awake_in(self, sleeper: BudgetedWorker, now: float) -> float:
        """Let a worker wake that sleeps, and return in how many seconds it may have woken."""
        wake_seconds = sleeper.member.wake_seconds
        if sleeper.rest is Rest.falling_asleep:  # it is asked once it sleeps, because a request waits
            return self._works_for + wake_seconds
        self._ask_to_wake(sleeper, now)
        if sleeper.rest is Rest.waking:
            return wake_seconds - (now - sleeper.rest_since)
        return self._room_in(sleeper.member, now) + wake_seconds

    # The budget.

    def _show(self, resource: str) -> None:
        self._resources.add(resource)
        self._metrics.resource(resource, self._total(resource), lambda: self._used(resource))
        self._publish()

    def _publish(self) -> None:
        self._usage.budgets = {each: Budget(self._used(each), self._total(each)) for each in sorted(self._resources)}
        resting = [each for each in self._workers if each.rest is not Rest.awake]
        self._usage.rests = {each.worker.pid: (each.rest.value, each.rest_at) for each in resting}

    def _total(self, resource: str) -> int:
        total = self._host if resource == HOST else self._each_gpu
        return total or 0

    def _used(self, resource: str) -> int:
        return sum(each.sizes.get(resource, 0) for each in self._workers)

    def _lacking(self, needed: Sizes, *, leaving: bool) -> dict[str, int]:
        """Return what is missing for ``needed``; with ``leaving``, once the models that are being unloaded are gone."""
        used = total(each.staying if leaving else each.sizes for each in self._workers)
        lacking = {each: size + used.get(each, 0) - self._total(each) for each, size in needed.items()}
        return {each: size for each, size in lacking.items() if size > 0}

    def _check(self, waiting: _Waiting) -> None:
        """Refuse a worker that is known to take more than the whole budget. Raises WorkerFailed."""
        for resource, size in waiting.member.least(waiting.worker.gpu_index).items():
            if size > self._total(resource):
                name = "memory_budget" if resource == HOST else "gpu_memory_budget"
                problem = f"it takes {shown(size)}, and {name} is {shown(self._total(resource))}"
                raise WorkerFailed(507, f"worker {waiting.worker.label} cannot start: {problem}")

    def _needed(self, waiting: _Waiting) -> Sizes:
        """Return what a worker needs: the whole budget at most, since it may take less than the one before."""
        return {resource: min(size, self._total(resource)) for resource, size in waiting.needs.items()}

    # Making room.

    def _serve_waiting(self) -> None:
        """Let workers start for which there is room, in order, and make room for the first that finds none."""
        now = time.monotonic()
        blocked: set[str] = set()  # what those before wait for
        for waiting in sorted(self._waiting, key=lambda each: (each.is_additional, each.since)):
            if self._is_given_up(waiting, now):
                continue
            needed = self._needed(waiting)
            for resource in needed:
                if resource not in self._resources:
                    self._show(resource)
            if not blocked.isdisjoint(needed):
                continue
            if not (lacking := self._lacking(needed, leaving=False)):
                self._start(waiting, needed, now)
                continue
            blocked.update(lacking)
            if lacking := self._lacking(needed, leaving=True):
                self._unload(lacking, needed, f"room for model {waiting.member.label}", now, waiting.member)
        self._publish()

    def _is_given_up(self, waiting: _Waiting, now: float) -> bool:
        """Take a worker away that nobody waits for any more; return whether it was."""
        member = waiting.member
        if waiting.is_given_up:
            return True
        asked_at = max(waiting.since, member.asked_at)
        if not member.loads_on_demand or member.is_asked_for or now - asked_at < _GRACE:
            return False
        if waiting.sleeper is not None:
            self._waiting.remove(waiting)
            return True
        pool = member.model.pool
        waiting.is_given_up = True
        pool.resize(max(0, pool.counts.wanted - 1), (), "no request waits for it any more")
        return True

    def _start(self, waiting: _Waiting, needed: Sizes, now: float) -> None:
        self._waiting.remove(waiting)
        if waiting.sleeper is not None:
            self._wake(waiting.sleeper, needed, now)
            return
        member, worker = waiting.member, waiting.worker
        member.footprint.begin()
        share = BudgetedWorker(member, worker, dict(needed), now)
        member.workers.append(share)
        self._workers.append(share)
        worker.ended.add_done_callback(lambda _: self._gone(share))
        waited = now - waiting.since
        self._metrics.waited(waited)
        self._works_for += _WEIGHT * (waited - self._works_for)
        waiting.may_start.set_result(self._left_to(share))

    def _left_to(self, share: BudgetedWorker) -> int | None:
        """Return how many bytes of each of its GPUs the others leave to a worker; None if there is no limit."""
        gpus = [(each, size) for each, size in share.sizes.items() if each != HOST]
        return min((self._total(each) - self._used(each) + size for each, size in gpus), default=None)

    def _gone(self, share: BudgetedWorker) -> None:
        share.member.workers.remove(share)
        self._workers.remove(share)
        if share.rest is not Rest.awake:
            share.member.model.dispatcher.rests = False
        self._waiting = [each for each in self._waiting if each.sleeper is not share]
        self._serve_waiting()

    def _unload(
        self, lacking: Sizes, needed: Sizes, why: str, now: float, waiting: BudgetedModel | None = None
    ) -> None:
        """Let idle models go, or sleep, for what is ``lacking`` of what is ``needed``, by one that is ``waiting``.

        If no idle ones can make this room, models that can sleep take turns although they work.
        """
        occupants = self._occupants(now)
        sleepers = {each.model for each in occupants if self._may_sleep(each.model, lacking, needed)}
        occupants = [each for each in occupants if each.model in sleepers or not each.model.has_states]
        going = to_unload(occupants, lacking)
        if not going and waiting is not None and waiting.can_sleep and waiting.is_asked_for:
            going = to_unload([_had_turn(each, waiting, now) for each in occupants], lacking)
        for each in going:
            member: BudgetedModel = each.model
            if self._may_sleep(member, lacking, needed):
                self._put_to_sleep(member.workers[0], why, now)
                continue
            if member.has_states or member.is_asked_for:  # another one took the memory that it needs to sleep
                continue
            idle, size = each.idle_for or 0.0, sum(each.frees.values())
            logger.info(
                "Model %s is unloaded after %.1f s without a request, %s: %s", member.label, idle, shown(size), why
            )
            self._metrics.evicted(member.model.name, member.model.version)
            member.unload(why)

    # Sleep.

    def _may_sleep(self, member: BudgetedModel, lacking: Sizes, needed: Sizes) -> bool:
        """Whether a model may sleep to make this room: it gives memory of GPUs, and takes as much of the host's."""
        if HOST in lacking or not member.may_sleep or not (size := member.workers[0].on_gpus):
            return False
        return self._host is None or not self._lacking({HOST: size + needed.get(HOST, 0)}, leaving=True)

    def _put_to_sleep(self, share: BudgetedWorker, why: str, now: float) -> None:
        member = share.member
        logger.info("Model %s is to sleep: %s", member.label, why)
        if HOST in share.sizes and not share.has_slept:
            share.sizes[HOST] += share.on_gpus
        share.turn(Rest.falling_asleep, now)
        member.model.dispatcher.rest(share.worker, rests=True)
        in_background(self._fall_asleep(share, why), f"letting model {member.label} sleep")

    async def _fall_asleep(self, share: BudgetedWorker, why: str) -> None:
        """Wait until a worker sleeps; one that does not has to go, since nobody knows what memory it has."""
        member = share.member
        try:
            await fall_asleep(share.worker)
        except SleepFailed as failure:
            self._give_up(share, "sleep", str(failure))
            if member.loads_on_demand and member.model.pool.counts.wanted and not member.is_asked_for:
                self._metrics.evicted(member.model.name, member.model.version)
                member.unload(why)
            return
        now = time.monotonic()
        share.turn(Rest.asleep, now)
        self._metrics.slept(member.model.name, member.model.version)
        if member.is_asked_for and not share.is_leaving:
            self._ask_to_wake(share, now)
        self._measure_at = 0.0
        self._changed.set()

    def _give_up(self, share: BudgetedWorker, what: str, failure: str) -> None:
        """End a worker that does not do what it was asked to, unless it ends already; the pool replaces it."""
        share.is_leaving = True
        if share.worker.ready:
            logger.error("Model %s does not %s, so its worker ends: %s", share.member.label, what, failure)
            share.worker.kill(f"its handler does not {what}: {failure}")

    def _ask_to_wake(self, sleeper: BudgetedWorker, now: float) -> None:
        """Let a worker that sleeps wait for the room that it needs."""
        if all(each.sleeper is not sleeper for each in self._waiting):
            self._waiting.append(_Waiting(sleeper.member, sleeper.worker, now, sleeper))
            self._serve_waiting()
            self._changed.set()

    def _wake(self, share: BudgetedWorker, needed: Sizes, now: float) -> None:
        """Give a worker jobs again, and what it needs for them."""
        for resource, size in needed.items():
            share.sizes[resource] = share.sizes.get(resource, 0) + size
        share.turn(Rest.waking, now)
        logger.info("Model %s wakes", share.member.label)
        in_background(self._wake_up(share), f"waking model {share.member.label}")

    async def _wake_up(self, share: BudgetedWorker) -> None:
        """Wait until a worker has woken, and give it jobs again; if it does not wake, they wait for another one."""
        member = share.member
        try:
            member.wake_seconds = await wake(member.model, share.worker)
        except SleepFailed as failure:
            self._give_up(share, "wake", str(failure))
            return
        now = time.monotonic()
        share.turn(Rest.awake, now)
        member.stay(now, member.wake_seconds)
        self._metrics.woken(member.model.name, member.model.version, member.wake_seconds)
        member.model.dispatcher.rest(share.worker, rests=False)
        self._measure_at = 0.0
        self._changed.set()

    def _wake_scaled(self, now: float) -> None:
        """Wake workers of models that were scaled while they slept, so that they do not sleep any more."""
        for each in self._workers:
            pool = each.member.model.pool
            if each.rest is Rest.asleep and not each.is_leaving and (pool.min_workers or pool.max_workers > 1):
                self._ask_to_wake(each, now)

    def _occupants(self, now: float) -> Sequence[Occupant]:
        found = [each.occupant(now) for each in {each.member: None for each in self._workers}]
        return [each for each in found if each is not None]

    def _room_in(self, member: BudgetedModel, now: float) -> float:
        """Return in how many seconds there may be room for a model; behind others that wait, as long as they did."""
        own = next((each for each in self._waiting if each.member is member), None)
        needed = member.needs(None) if own is None else own.needs
        lacking = self._lacking({each: min(size, self._total(each)) for each, size in needed.items()}, leaving=True)
        first = room_in(self._occupants(now), lacking, self._works_for)
        is_behind = any(each is not own for each in self._waiting)
        return max(first, self._works_for) if is_behind else first

    # Measuring.

    async def _watch(self) -> None:
        """Measure, and serve those that wait, until there is neither a worker nor one that waits."""
        while self._waiting or self._workers:
            now = time.monotonic()
            self._note_loaded(now)
            self._wake_scaled(now)
            if now >= self._measure_at:
                try:
                    await self._measure()
                except Exception:
                    logger.exception("The memory of workers could not be measured this time")
                took = time.monotonic() - now
                pause = 0.0 if any(each.is_unmeasured for each in self._workers) else _LEAST_PAUSE
                self._measure_at = now + took + max(pause, took / _MEASURED_SHARE)
            self._relieve(time.monotonic())
            self._serve_waiting()
            self._changed.clear()
            is_busy = self._waiting or any(each.loaded_at is None for each in self._workers)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), _SOON if is_busy else _LATER)

    def _note_loaded(self, now: float) -> None:
        for each in self._workers:
            if each.loaded_at is None and each.worker.ready:
                each.member.loaded(each, now)
                self._metrics.loaded(each.member.model.name, each.member.model.version)
                if each.member.can_sleep:  # it does so only once it is known what it takes
                    self._measure_at = 0.0

    async def _measure(self) -> None:
        pids = {each.worker.pid: each for each in self._workers if each.worker.pid > 0}
        loading = {pid for pid, each in pids.items() if each.loaded_at is None}
        loaded = {pid for pid, each in pids.items() if pid not in loading and not each.peak_is_reset}
        ranks = {pid: {pid, *each.worker.pids} for pid, each in pids.items()}
        began = time.monotonic()
        measured, on_gpus = await asyncio.to_thread(_measured, ranks, loaded, gpus=self._each_gpu is not None)
        for pid, memory in measured.items():
            each = pids[pid]
            if each.rest_since >= began:  # it may have been measured before or after it fell asleep or woke
                continue
            sizes = each.take(memory, on_gpus.get(pid))
            if not each.has_slept:
                each.member.footprint.note(sizes, is_loading=pid in loading)
            elif each.rest is Rest.awake:
                each.member.footprint.note({name: size for name, size in sizes.items() if name != HOST})
            if pid in loaded:
                each.member.footprint.loading, each.peak_is_reset = sizes, True
        if self._file is not None:
            self._file.keep({each.member for each in pids.values() if each.peak_is_reset})

    def _relieve(self, now: float) -> None:
        """Unload idle models while more is used than may be: a model took more than was known."""
        lacking = self._lacking(dict.fromkeys(self._resources, 0), leaving=True)
        if lacking:
            self._unload(lacking, {}, "more memory is used than the budget has", now)
        if lacking and not self._is_over:
            over = ", ".join(f"{shown(size)} of the {resource}" for resource, size in lacking.items())
            logger.warning("Workers have more memory than the budget allows: %s", over)
        self._is_over = bool(lacking)


def _had_turn(each: Occupant, waiting: BudgetedModel, now: float) -> Occupant:
    """Return an occupant as one that may sleep now, if it works but has had its turn, and is not of more priority."""
    if each.idle_for is not None or each.priority > waiting.keys.priority or not each.model.had_its_turn(now):
        return each
    return replace(each, idle_for=0.0)


async def _load(model: Model) -> None:
    """Load a model without a request that waits; a failure is in the log already."""
    with contextlib.suppress(WorkerFailed):
        await model.scale(model.pool.min_workers, model.pool.max_workers, 1)


def _measured(
    workers: Mapping[int, Collection[int]], loaded: Collection[int], *, gpus: bool
) -> tuple[Mapping[int, worker_memory.WorkerMemory], Mapping[int, int]]:
    """Return the memory of workers, and what they have on GPUs, by process id; then forget peaks of those loaded.

    Args:
        workers: As those of `worker_memory.measure`.
    """
    memory = worker_memory.measure(workers)
    for name in loaded:
        worker_memory.reset_peak(workers[name])
    if not gpus:
        return memory, {}
    by_process, family = memory_by_process(), worker_memory.with_children
    return memory, {name: sum(by_process.get(each, 0) for each in family(*pids)) for name, pids in workers.items()}


def worker_room(settings: Settings, metrics: ServerMetrics, usage: Usage) -> MemoryRoom | None:
    """Return what the workers of a server ask before they start; None without a budget."""
    budget = settings.of(BudgetSettings)
    if budget.memory_budget is None and budget.gpu_memory_budget is None:
        return None
    return MemoryRoom(
        budget.memory_budget, budget.gpu_memory_budget, BudgetMetrics(metrics), usage, MeasuredFile(settings)
    )
