"""Looks at every model once a second, and keeps its history. Requests pay nothing: the sampler reads their counters."""

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from torchserve_py.base.background_tasks import in_background
from torchserve_py.core.serving.errors import ModelError
from torchserve_py.core.serving.model_activity import Activity
from torchserve_py.core.serving.serving import ModelStatus, ServedModel, Serving, WorkerStatus
from torchserve_py.tools.console.history import COARSE, NOTHING, History, ModelHistory, ends_coarse, short, sum_of
from torchserve_py.tools.console.last_minute import LastMinute, trouble
from torchserve_py.tools.console.timeline import Timeline

logger = logging.getLogger(__name__)

#: Model versions with a history, from their first worker or request on; each takes 54 kB, a busy one 110 kB.
MOST_HISTORIES: Final = 500
#: Models that are looked at in one turn of the event loop.
_AT_ONCE: Final = 25
#: Seconds of the small chart in the table of models.
_SPARK: Final = 60

Row = dict[str, Any]


def about(model: ServedModel) -> Row:
    """Return what does not change of a model version."""
    return {
        "id": model.id,
        "name": model.name,
        "version": model.version,
        "contract": model.contract.name,
        "stateful": model.is_stateful,
        "durable": model.is_durable,
    }


def _has_begun(activity: Activity) -> bool:
    """Return whether a model has, or had, a worker or a request."""
    return bool(activity.workers_wanted or activity.queued or activity.succeeded or activity.failures)


def _was_used(row: Row | None) -> bool:
    """Return whether a model had answered requests when it was looked at the last time."""
    return row is not None and bool(row["succeeded"] or row["failed"])


class Sampler:
    """The histories of all model versions, and the rows of the table of models."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        #: All models together.
        self.totals = History()
        #: Seconds on a steady clock; each has one sample.
        self.tick = int(time.monotonic())
        self.histories: dict[int, ModelHistory] = {}
        #: What each model with a history did in the last minute, by id.
        self.minutes: dict[int, Row] = {}
        self.timeline = Timeline()
        self._failing_since: dict[int, float] = {}
        self._last_minutes: dict[int, LastMinute] = {}
        self._rows: dict[int, Row] = {}
        self._changed: dict[int, int] = {}
        self._ticked = asyncio.Event()
        #: Whether samples are taken.
        self.is_open = True
        self._task = in_background(self._run(), "sampling for the console")

    async def next(self) -> bool:
        """Wait for the next sample; return False if the server closes its endpoints instead."""
        if self.is_open:
            await self._ticked.wait()
        return self.is_open

    def close(self) -> None:
        """Take no more samples, and let nobody wait for one."""
        self.is_open = False
        self._task.cancel()
        self._wake()

    def rows(self, since: int = -1) -> list[Row]:
        """Return the rows that have changed after a tick."""
        return [self._rows[key] for key, tick in self._changed.items() if tick > since]

    def ids(self) -> set[int]:
        """Return the ids of the models with a row."""
        return set(self._rows)

    def sparks(self) -> dict[str, list[float | None]]:
        """Return the answers per second of each model in the last minute, by id."""
        return {str(key): short(each.seconds.latest("answers", _SPARK)) for key, each in self.histories.items()}

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(1.0 - time.monotonic() % 1.0)
            tick = int(time.monotonic())
            if tick == self.tick:
                continue
            try:
                await self._sample(tick)
            except Exception:
                logger.exception("The console could not look at the models this time")
            self.tick = tick
            self._wake()

    def _wake(self) -> None:
        self._ticked.set()
        self._ticked.clear()

    async def _sample(self, tick: int) -> None:
        serving, seen = self._serving, set()
        every = [(model, model is each) for each in serving.models() for model in serving.versions(each.name)]
        for number, (model, is_default) in enumerate(every):
            if number % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)
            try:
                self._look_at(model, tick, is_default=is_default)
            except ModelError:  # it was unregistered meanwhile
                continue
            seen.add(model.id)
        gone = self._rows.keys() - seen
        self.timeline.forget(sorted(gone), time.time())
        for key in gone:
            self._failing_since.pop(key, None)
            del self._rows[key], self._changed[key]
            self.histories.pop(key, None)
            self._last_minutes.pop(key, None)
            self.minutes.pop(key, None)
        self.totals.seconds.add(tick, sum_of(each.seconds.last for each in self.histories.values()))
        if ends_coarse(tick):
            self.totals.coarse.add(tick // COARSE, sum_of(each.coarse.last for each in self.histories.values()))

    def _look_at(self, model: ServedModel, tick: int, *, is_default: bool) -> None:
        activity, at = self._serving.activity(model), time.monotonic()
        status = self._serving.status(model)
        # A worker that is back within a second, and another maximum of workers, change nothing in the row.
        self.timeline.look(model, status, time.time(), is_default=is_default)
        history = self.histories.get(model.id)
        if history is not None:
            history.sample(tick, activity, at)
        elif len(self.histories) < MOST_HISTORIES and _has_begun(activity):
            is_new = not _was_used(self._rows.get(model.id))
            history = self.histories[model.id] = ModelHistory(tick, activity, at, is_new=is_new)
            self._last_minutes[model.id] = LastMinute(NOTHING if is_new else activity)
        minute = None
        if history is not None:
            minute = self.minutes[model.id] = self._last_minutes[model.id].sample(tick, activity, status.workers)
        row: Row = {
            **about(model),
            "default": is_default,
            "workers": activity.workers,
            "wanted": activity.workers_wanted,
            "on_demand": status.loads_on_demand,
            "waits": any(worker.waits for worker in status.workers),
            "rests": _rest_of(status.workers, self._serving.usage.rests),
            **self._failure(model, status),
            "trouble": None if minute is None else trouble(minute, status.workers),
            "queued": activity.queued,
            "running": activity.running,
            "sequences": activity.sequences,
            "memory": activity.memory,
            "succeeded": activity.succeeded,
            "failed": activity.failed,
            "last": None if history is None else short(history.seconds.last),
            "minute": minute,
        }
        if row != self._rows.get(model.id):
            self._rows[model.id] = row
            self._changed[model.id] = tick

    def _failure(self, model: ServedModel, status: ModelStatus) -> Row:
        """Return whether no worker could load a model, since when, and why."""
        if not self._serving.fails_to_load(model):
            self._failing_since.pop(model.id, None)
            return {"failing": False}
        since = self._failing_since.setdefault(model.id, time.time())
        reasons = [each.failure for each in status.workers if each.failure]
        starts_at = min((each.starts_at for each in status.workers if each.starts_at is not None), default=None)
        why = reasons[0] if reasons else ""
        return {"failing": True, "failing_since": since, "why": why, "starts_at": starts_at}


def _rest_of(workers: Sequence[WorkerStatus], rests: Mapping[int, tuple[str, float]]) -> str:
    """Return whether a model sleeps or how it becomes so or awake, in a word; empty if a worker takes jobs."""
    words = [rests[each.pid][0] for each in workers if each.pid in rests]
    return words[0] if words and len(words) == len(workers) else ""
