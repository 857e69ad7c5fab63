"""One model version that shares the budget: what its workers have of it, and how it is loaded and unloaded."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

from torchserve_py.core.models.model import Model
from torchserve_py.core.workers.worker import Worker
from torchserve_py.fleet.memory_budget.budget_keys import BudgetKeys
from torchserve_py.fleet.memory_budget.footprint import HOST, Footprint, Sizes, gpu
from torchserve_py.fleet.memory_budget.making_room import Occupant
from torchserve_py.fleet.memory_budget.worker_memory import WorkerMemory

#: How long a model that was loaded or has woken stays at least: as long as that took, within these limits (seconds),
#: and twice that for each time that it did so before within `_AGAIN` seconds, but never more than `_MOST_DOUBLINGS`
#: times.
_SHORTEST_STAY: Final = 0.2
_LONGEST_STAY: Final = 60.0
_AGAIN: Final = 60.0
_MOST_DOUBLINGS: Final = 2
#: For how long a model works at least before it sleeps in the midst of its work, since others wait: so many times as
#: long as waking took, and at least so long (seconds).
_TURN: Final = 10.0
_SHORTEST_TURN: Final = 1.0


class Rest(StrEnum):
    """Whether a worker sleeps."""

    awake = "awake"  # only then it gets jobs
    falling_asleep = "falling asleep"  # its handler has been asked to sleep
    asleep = "asleep"
    waking = "waking"  # it has room, and its handler has been asked to wake


#: What may follow.
_NEXT_RESTS: Final = {
    Rest.awake: {Rest.falling_asleep},
    Rest.falling_asleep: {Rest.asleep},
    Rest.asleep: {Rest.waking},
    Rest.waking: {Rest.awake},
}


@dataclass(eq=False)
class BudgetedWorker:
    """A worker that has its share of the budget, from the moment it may start until it is gone."""

    member: BudgetedModel
    worker: Worker
    sizes: dict[str, int]  # what it counts for
    since: float
    loaded_at: float | None = None
    peak_is_reset: bool = False  # whether the peak of its loading counts no more
    is_leaving: bool = False
    rest: Rest = Rest.awake
    rest_since: float = 0.0
    rest_at: float = 0.0  # the same moment in seconds since 1970
    has_slept: bool = False
    is_unmeasured: bool = False  # whether it sleeps, and what it has asleep is not known yet

    @property
    def staying(self) -> Sizes:
        """What it will count for once what goes now is gone."""
        if self.is_leaving:
            return {}
        if self.rest is Rest.falling_asleep or self.is_unmeasured:
            return {HOST: self.sizes[HOST]} if HOST in self.sizes else {}
        return self.sizes

    @property
    def on_gpus(self) -> int:
        """What it counts for on GPUs."""
        return sum(size for resource, size in self.sizes.items() if resource != HOST)

    def turn(self, rest: Rest, now: float) -> None:
        """Note that it sleeps, or no longer does."""
        assert rest in _NEXT_RESTS[self.rest], f"{rest} after {self.rest}"
        self.rest, self.rest_since, self.rest_at = rest, now, time.time()
        self.is_unmeasured = rest is Rest.asleep
        self.has_slept |= self.is_unmeasured

    def take(self, memory: WorkerMemory, on_gpus: int | None) -> Sizes:
        """Count what was measured, until it is loaded only if that is more than the forecast; return it.

        The same while it wakes. One that can sleep counts awake for what it has had on GPUs at most, since it must have
        that again when it has woken. What it had in the host's memory while it slept goes on to count.
        """
        self.is_unmeasured = False
        gpus = [resource for resource in self.sizes if resource != HOST]
        measured = {HOST: memory.peak} if HOST in self.sizes else {}
        if on_gpus or self.rest is Rest.asleep:
            measured |= {resource: (on_gpus or 0) // len(gpus) for resource in gpus}
        is_settled = self.loaded_at is not None and self.rest in {Rest.awake, Rest.asleep}
        for resource, size in measured.items():
            if resource != HOST and self.member.can_sleep and self.rest is Rest.awake:
                size = max(size, self.member.footprint.forecast(resource, decides=False))  # noqa: PLW2901
            self.sizes[resource] = size if is_settled else max(size, self.sizes[resource])
        return measured


@dataclass(eq=False)
class BudgetedModel:
    """A model version, with its ``keys`` and the workers that have a share."""

    model: Model
    keys: BudgetKeys
    limits_host: bool
    limits_gpus: bool
    workers: list[BudgetedWorker] = field(default_factory=list)
    load_seconds: float | None = None  # how long loading took the last time
    wake_seconds: float = 0.0  # how long waking took the last time
    asked_at: float = 0.0  # when a request came last while it was not loaded
    loads: deque[float] = field(default_factory=lambda: deque(maxlen=_MOST_DOUBLINGS + 1))
    stays_until: float = 0.0

    def __post_init__(self) -> None:
        self.footprint = Footprint(self.keys.memory)
        self.can_sleep = self.keys.sleep

    @property
    def label(self) -> str:
        """Its name and version, for people."""
        return f"{self.model.name} {self.model.version}"

    @property
    def loads_on_demand(self) -> bool:
        """Whether it may be unloaded, because a request loads it again."""
        pool = self.model.pool
        return pool.on_demand and not pool.min_workers and pool.max_workers > 0

    @property
    def may_sleep(self) -> bool:
        """Whether its handler could give the memory of a GPU back now; with several workers a model does not sleep."""
        return (
            self.can_sleep and self.model.pool.max_workers == 1 and [each.rest for each in self.workers] == [Rest.awake]
        )

    @property
    def resting(self) -> BudgetedWorker | None:
        """Its worker, if that gets no jobs since it sleeps, is about to, or wakes."""
        return next((each for each in self.workers if each.rest is not Rest.awake and not each.is_leaving), None)

    @property
    def is_awake(self) -> bool:
        """Whether a worker is loaded that does not rest."""
        return any(each.rest is Rest.awake and each.worker.ready and not each.is_leaving for each in self.workers)

    @property
    def has_states(self) -> bool:
        """Whether a worker has the only copy of the state of a sequence."""
        dispatcher = self.model.dispatcher
        return bool(dispatcher.scheduler.demand(dispatcher.now()).bound)

    @property
    def is_asked_for(self) -> bool:
        """Whether a job waits or runs."""
        return bool(self.model.dispatcher.scheduler.jobs)

    @property
    def answered_at(self) -> float:
        """When its latest job ended, by the time of its dispatcher; 0: it has had none."""
        metrics = self.model.dispatcher.metrics
        metrics.fold()
        return metrics.outcomes.last_at

    def needs(self, gpu_index: int | None) -> Sizes:
        """Return what the next worker takes, as far as it is limited; on GPUs from this one."""
        return self._of_next(gpu_index, self.footprint.forecast)

    def least(self, gpu_index: int | None) -> Sizes:
        """Return what the next worker is known to take at least."""
        return self._of_next(gpu_index, self.footprint.least)

    def _of_next(self, gpu_index: int | None, size_of: Callable[..., int]) -> Sizes:
        gpus = []
        if self.limits_gpus and gpu_index is not None:
            count = max(1, self.model.config.parallel_level)
            gpus = [gpu(index) for index in range(gpu_index, gpu_index + count)]
        sizes = {each: size_of(each, decides=True) for each in gpus}
        if self.limits_host:
            sizes[HOST] = size_of(HOST, decides=not gpus)
        return sizes

    def loaded(self, each: BudgetedWorker, now: float) -> None:
        """Note that a worker is ready."""
        each.loaded_at = now
        self.load_seconds = now - each.since
        self.stay(now, self.load_seconds)

    def stay(self, now: float, took: float) -> None:
        """Stay for a while: it was loaded, or has woken, which took so long (seconds)."""
        again = sum(now - moment < _AGAIN for moment in self.loads)
        self.loads.append(now)
        stay = max(_SHORTEST_STAY, took) * 2 ** min(again, _MOST_DOUBLINGS)
        self.stays_until = now + min(_LONGEST_STAY, stay)

    def occupant(self, now: float) -> Occupant | None:
        """Return it as one that could make room; None if it will not."""
        staying = [each for each in self.workers if not each.is_leaving]
        if self.keys.pin or not self.loads_on_demand or not staying:
            return None
        dispatcher = self.model.dispatcher
        idle_for = None
        loaded = [each.loaded_at for each in staying if each.loaded_at is not None]
        is_loading = len(loaded) < len(staying) or any(map(self._is_unsettled, staying))
        if not (self.is_asked_for or is_loading or (self.has_states and not self.may_sleep)):
            last_at = self.answered_at
            idle_for = min(now - max(loaded), dispatcher.now() - last_at if last_at else math.inf)
        return Occupant(
            self, self.keys.priority, idle_for, self.stays_until - now, total(each.sizes for each in staying)
        )

    def had_its_turn(self, now: float) -> bool:
        """Whether it has worked for so long that it may sleep in the midst of its work, because others wait."""
        if not self.may_sleep or now < self.stays_until or any(map(self._is_unsettled, self.workers)):
            return False
        (worker,) = self.workers
        awake_since = worker.rest_since if worker.has_slept else worker.loaded_at
        return awake_since is not None and now - awake_since >= max(_SHORTEST_TURN, _TURN * self.wake_seconds)

    def _is_unsettled(self, each: BudgetedWorker) -> bool:
        """Whether a worker falls asleep or wakes, or it is not known yet what it has awake or asleep."""
        is_changing = each.rest in {Rest.falling_asleep, Rest.waking}
        return is_changing or each.is_unmeasured or (self.can_sleep and not each.peak_is_reset)

    def unload(self, why: str) -> None:
        """Take its workers down; they have nothing to do."""
        for each in self.workers:
            each.is_leaving = True
        dispatcher = self.model.dispatcher
        self.model.pool.resize(0, dispatcher.scheduler.demand(dispatcher.now()).movable, why)


def total(sizes: Iterable[Sizes]) -> dict[str, int]:
    """Return the sums by resource."""
    sums: dict[str, int] = {}
    for each in sizes:
        for resource, size in each.items():
            sums[resource] = sums.get(resource, 0) + size
    return sums


def size_of_files(folder: Path) -> int:
    """Return the bytes of all files in a folder; call it off the event loop."""
    return sum(each.stat().st_size for each in folder.rglob("*") if each.is_file())
